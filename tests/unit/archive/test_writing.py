import os
import stat
import zipfile

import pytest

from ddp_tokens.archive.writing import write_zip


@pytest.fixture
def contents(tmp_path):
    file = tmp_path / "file.bin"
    file.write_bytes(bytes(range(256)) * 5000)  # more than one piece
    return {"b/file.bin": file, "a.txt": b"text", "empty": b""}


def test_the_same_contents_give_the_same_bytes(contents, tmp_path):
    write_zip(tmp_path / "one.zip", contents)
    os.utime(contents["b/file.bin"], (0, 0))
    contents["b/file.bin"].chmod(0o755)
    before = os.umask(0o077)
    try:
        write_zip(tmp_path / "two.zip", dict(reversed(contents.items())))
    finally:
        os.umask(before)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_a_file_and_its_bytes_are_written_alike(contents, tmp_path):
    write_zip(tmp_path / "one.zip", contents)
    write_zip(tmp_path / "two.zip", contents | {"b/file.bin": contents["b/file.bin"].read_bytes()})
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_entries_are_sorted_and_have_fixed_times_and_permissions(contents, tmp_path):
    write_zip(tmp_path / "one.zip", contents)
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.namelist() == ["a.txt", "b/file.bin", "empty"]
        assert archive.testzip() is None
        assert archive.read("b/file.bin") == contents["b/file.bin"].read_bytes()
        for entry in archive.infolist():
            assert entry.date_time == (1980, 1, 1, 0, 0, 0)
            assert entry.external_attr >> 16 == stat.S_IFREG | 0o644
            assert entry.compress_type == zipfile.ZIP_STORED
            assert entry.create_system == 3


def test_a_missing_file_leaves_nothing_and_what_was_there(contents, tmp_path):
    target = tmp_path / "one.zip"
    write_zip(target, {"a": b"before"})
    contents["b/file.bin"].unlink()
    with pytest.raises(FileNotFoundError):
        write_zip(target, contents)
    with zipfile.ZipFile(target) as archive:
        assert archive.read("a") == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.zip"]
