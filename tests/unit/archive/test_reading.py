"""What is no archive, is damaged, or is not safe: one sentence, and nothing is written."""

import hashlib
import json
import random
import stat
import struct
import warnings
import zipfile

import pytest

from ddp_tokens.archive import entries
from ddp_tokens.archive.entries import GIB, PIECE
from ddp_tokens.archive.layout import DOCUMENT, SUMS
from ddp_tokens.archive.reading import open_archive
from ddp_tokens.archive.verify import verify
from ddp_tokens.archive.writing import write_zip
from ddp_tokens.errors import ArchiveError
from tests.unit.archive.made import FILES, crc_of, finished, patched, write

ASK = "do not unpack it, and ask whoever made it"
AGAIN = "get it again from where it came"
PLAN = "results/tiny/plan.json"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tiny.zip"


def refused(path, **options):
    """The sentence."""
    with pytest.raises(ArchiveError) as error, open_archive(path, **options):
        pass
    return str(error.value)


def damaged(path, name):
    """The sentence with which reading the entry ends, and extracting it, which leaves no file."""
    folder = path.with_name("unpacked")
    with open_archive(path) as archive:
        with pytest.raises(ArchiveError) as error:
            archive.read(name)
        with pytest.raises(ArchiveError, match="is damaged"):
            archive.sha256()
        with pytest.raises(ArchiveError, match="is damaged"):
            archive.extract(folder, name)
    assert [of for of in folder.rglob("*") if of.is_file()] == []
    return str(error.value)


def entry(name, kind=0, data=b"x"):
    info = zipfile.ZipInfo(name)
    info.external_attr = kind << 16
    return info, data


def write_entries(path, *entries):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for info, data in entries:
            archive.writestr(info, data)
    return path


def test_what_an_archive_holds_is_read(path, tmp_path):
    files = finished(FILES)
    write_zip(path, files)
    with open_archive(path) as archive:
        assert archive.path == path
        assert archive.names == tuple(sorted(files))
        assert archive.document.experiment == "tiny"
        assert {name: archive.read(name) for name in archive.names} == files
        assert archive.sha256() == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        archive.extract(tmp_path / "all")
        archive.extract(tmp_path / "some", "results/")
    for folder, below in (("all", ""), ("some", "results/")):
        there = {str(of.relative_to(tmp_path / folder)): of for of in (tmp_path / folder).rglob("*") if of.is_file()}
        assert {name: of.read_bytes() for name, of in there.items()} == {
            name: data for name, data in files.items() if name.startswith(below)
        }


def test_what_was_unpacked_and_zipped_again_is_read_too(path):
    """Deflated, with entries for folders, with times and permissions as another program sets them."""
    files = finished(FILES)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("results")
        archive.mkdir("results/tiny")
        for name, data in files.items():
            archive.writestr(entry(name, stat.S_IFREG | 0o600)[0], data, zipfile.ZIP_DEFLATED)
    with open_archive(path) as archive:
        assert archive.names == tuple(sorted(files))
        assert archive.sha256() == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 257])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_entries_of_several_pieces(path, size, method, monkeypatch):
    """Zeros, of which zlib holds back some when a piece is full, and bytes that do not shrink."""
    monkeypatch.setattr(entries, "MOST_TIMES", 2000)
    files = finished({"zeros": bytes(size), "mixed": random.Random(1).randbytes(size)})
    write(path, files, method)
    with open_archive(path) as archive:
        assert all(archive.read(name) == files[name] for name in ("zeros", "mixed"))


def test_no_archive(path, tmp_path):
    assert refused(path) == f"{path} does not exist: name the zip file of an archive"
    assert refused(tmp_path) == f"{tmp_path} is no file: name the zip file of an archive"
    path.write_text("hello")
    assert refused(path) == (f"{path} is no zip file, or is damaged or cut off (File is not a zip file): {AGAIN}")
    write(path, {"a": b"x"})
    assert refused(path) == f"{path} holds no archive.json: name an archive that this project has made"


def test_a_file_that_is_cut_off(path):
    whole = write(path, finished(FILES)).read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        assert refused(path).startswith(f"{path} is no zip file, or is damaged or cut off (")


def test_a_list_of_entries_that_is_damaged(path):
    data = bytearray(write(path, finished(FILES)).read_bytes())
    at = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    data[at] = 0
    path.write_bytes(data)
    assert refused(path).startswith(f"{path} is no zip file, or is damaged or cut off (Bad magic number")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("/etc/passwd", "has an absolute path"),
        ("../outside", "leads out of the archive's folder with '..'"),
        ("a\\b", "has a backslash in its name"),
        ("C:/a", "names a drive"),
        ("a\nb", "has a character in its name that cannot be shown"),
        ("a//b", "has a name that is not in its shortest form"),
        ("../", "leads out of the archive's folder with '..'"),
    ],
)
def test_names_that_are_not_safe(path, name, problem):
    write_entries(path, *(entry(of, data=data) for of, data in finished(FILES).items()), entry(name, data=b""))
    assert refused(path) == f"{path}: {name!r} {problem}: {ASK}"


def test_a_name_that_ends_before_it_ends(path):
    """zipfile itself reads "safe" of safe, NUL, .exe."""
    write(path, {**finished(FILES), "safe_.exe": b"x"})
    path.write_bytes(path.read_bytes().replace(b"safe_.exe", b"safe\0.exe"))
    assert refused(path) == f"{path}: 'safe\\x00.exe' has a character in its name that cannot be shown: {ASK}"


def test_a_name_that_is_no_text(path):
    write(path, {**finished(FILES), "aaaä": b"x"})
    path.write_bytes(path.read_bytes().replace("aaaä".encode(), b"aaa\xff\xff"))
    assert refused(path).startswith(f"{path} is no zip file, or is damaged or cut off ('utf-8' codec can't decode")


def test_a_name_without_letters(path):
    write_entries(path, entry("a"))
    data = path.read_bytes().replace(b"a", b"")
    at = data.index(b"PK\x01\x02")
    data = bytearray(data)
    struct.pack_into("<H", data, 26, 0)
    struct.pack_into("<H", data, at + 28, 0)
    struct.pack_into("<II", data, len(data) - 10, 46, at)
    path.write_bytes(data)
    assert refused(path) == f"{path}: '' has no name: {ASK}"


@pytest.mark.parametrize(
    ("more", "clash"),
    [(["a", "a"], "a"), (["a", "a/b"], "a"), (["a/", "a"], "a"), ([PLAN], PLAN), (["results"], "results")],
)
def test_names_that_clash(path, more, clash):
    of_archive = (entry(name, data=data) for name, data in finished(FILES).items())
    write_entries(path, *of_archive, *(entry(name, data=b"" if name.endswith("/") else b"x") for name in more))
    assert refused(path) == f"{path}: {clash!r} is there twice, as two files or as a file and a folder: {ASK}"


@pytest.mark.parametrize(
    ("kind", "name", "problem"),
    [
        (stat.S_IFLNK | 0o777, "a", "is a symbolic link"),
        (stat.S_IFLNK | 0o777, "a/", "is a symbolic link"),
        (stat.S_IFIFO, "a", "is neither a file nor a folder"),
        (stat.S_IFCHR, "a", "is neither a file nor a folder"),
        (stat.S_IFBLK, "a", "is neither a file nor a folder"),
        (stat.S_IFSOCK, "a", "is neither a file nor a folder"),
        (stat.S_IFDIR, "a", "is neither a file nor a folder"),
        (stat.S_IFREG, "a/", "is neither a file nor a folder"),
    ],
)
def test_links_and_special_files(path, kind, name, problem):
    data = b"" if name.endswith("/") else b"/etc/passwd"
    of_archive = (entry(of, data=content) for of, content in finished(FILES).items())
    write_entries(path, *of_archive, entry(name, kind, data))
    assert refused(path) == f"{path}: {name!r} {problem}: {ASK}"


def test_a_folder_that_holds_bytes(path):
    """No digest would cover them."""
    write(path, {**finished(FILES), "folder_": b"hidden"})
    path.write_bytes(path.read_bytes().replace(b"folder_", b"folder/"))
    assert refused(path) == f"{path}: 'folder/' is a folder and holds bytes: {ASK}"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"flags": 0x1}, "is encrypted, and nothing in an archive of this project is"),
        ({"flags": 0x40}, "is encrypted, and nothing in an archive of this project is"),
        ({"method": 12}, "is compressed by method 12, neither stored nor deflated"),
        ({"method": 99}, "is compressed by method 99, neither stored nor deflated"),
        ({"size": 12}, "is stored as 13 bytes and states 12"),
    ],
)
def test_entries_that_are_not_read(path, fields, problem):
    patched(write(path, finished(FILES)), PLAN, **fields)
    assert refused(path) == f"{path}: {PLAN!r} {problem}: {ASK}"


def test_an_entry_that_is_encrypted_by_its_own_header_only(path):
    data = bytearray(write(path, finished(FILES)).read_bytes())
    data[data.index(PLAN.encode()) - 30 + 6] |= 1
    path.write_bytes(data)
    assert refused(path) == f"{path}: what stands before {PLAN!r} is not what the list of entries says: {AGAIN}"


def test_an_entry_that_has_two_names(path):
    """In the list of entries and before its bytes: programs differ in which they believe."""
    data = write(path, finished(FILES)).read_bytes()
    path.write_bytes(data.replace(PLAN.encode(), PLAN.upper().encode(), 1))
    assert refused(path) == f"{path}: what stands before {PLAN!r} is not what the list of entries says: {AGAIN}"


def test_entries_that_overlap(path):
    """Many entries that are made of the same few bytes: a zip that no limit on its own size would stop."""
    write(path, {"aa": b"x" * 50, "bb": b"y" * 50, **finished(FILES)})
    patched(path, "bb", offset=10)
    assert refused(path) == f"{path}: 'bb' overlaps the entry before it: {ASK}"


@pytest.mark.parametrize("offset", [10**6, 2**32 - 2])
def test_an_entry_behind_the_end(path, offset):
    patched(write(path, {"aa": b"x" * 50, **finished(FILES)}), "aa", offset=offset)
    assert refused(path) == f"{path}: what stands before 'aa' is not what the list of entries says: {AGAIN}"


def test_an_entry_that_reaches_into_the_list(path):
    write(path, {**finished(FILES), "zz": b"x" * 10})
    data = bytearray(path.read_bytes())
    at = data.rindex(b"zz") - 46
    struct.pack_into("<II", data, at + 20, 60, 60)
    path.write_bytes(data)
    assert refused(path) == f"{path}: 'zz' does not end before the list of entries: {AGAIN}"


def test_more_than_the_limit(path):
    """A twentieth of what it unpacks to: 2 MiB, and some for the rest."""
    files = finished({"mixed": random.Random(1).randbytes(2**16) + bytes(2 * 2**20)})
    write(path, files, zipfile.ZIP_DEFLATED)
    size = sum(map(len, files.values()))
    limit = 2**20
    assert refused(path, limit=limit) == (
        f"{path} would unpack to {size:,} bytes (0.00 GiB), more than {limit / GIB:g} GiB: if you expect it to be that "
        "large, allow it with --limit-gib 1"
    )
    with open_archive(path, limit=size) as archive:
        assert archive.read("mixed") == files["mixed"]


PACK_LESS = "where you trust whoever made it, zip its files again uncompressed (zip -0)"


def test_an_entry_of_next_to_nothing_that_unpacks_to_much(path):
    """The CRC and the size are right: it is refused for how much it grows. Stored, it is read."""
    files = finished({"zeros.safetensors": bytes(2**20 + 1)})
    write(path, files, zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(path) as archive:
        packed = archive.getinfo("zeros.safetensors").compress_size
    assert packed < 2000
    grows = f"would unpack {packed:,} bytes to 1,048,577, more than 200 times as many"
    assert refused(path) == f"{path}: 'zeros.safetensors' {grows}: {PACK_LESS}"
    with open_archive(write(path, files)) as archive:
        assert archive.read("zeros.safetensors") == files["zeros.safetensors"]


def test_the_growth_that_is_taken_begins_above_a_mebibyte(path):
    head = random.Random(1).randbytes(2**14)
    files = finished({"zeros": bytes(2**20), "mixed": head})
    write(path, files, zipfile.ZIP_DEFLATED)
    with open_archive(path) as archive:
        assert archive.read("zeros") == files["zeros"]
    write(path, finished({"mixed": head + bytes(2**21)}), zipfile.ZIP_DEFLATED)  # grows 112 times
    with open_archive(path) as archive:
        assert archive.read("mixed").startswith(head)


def test_many_entries_of_next_to_nothing(path):
    """None of them alone is above a mebibyte."""
    files = {f"zeros-{number}": bytes(2**20) for number in range(12)}
    write(path, finished(files), zipfile.ZIP_DEFLATED)
    found = refused(path)
    assert found.startswith(f"{path} would unpack ")
    assert found.endswith(f", more than 200 times as many: {PACK_LESS}")


@pytest.mark.parametrize(
    "name", ["results/tiny/plan2.json", "machine/a.JSON", "b.yaml", "c.csv", "d.html", "e.md", "f.svg"]
)
def test_a_file_that_is_read_at_once_has_a_limit(path, name):
    """Stated, and so far from true that reading it would end too: it is refused before."""
    write(path, {**finished(FILES), name: bytes(2**16)})
    data = bytearray(path.read_bytes())
    at = data.rindex(name.encode()) - 46
    for size, refusal in ((2**28, "what stands before"), (2**28 + 1, "has 268,435,457 bytes, more than the 256 MiB")):
        struct.pack_into("<H", data, at + 10, 8)
        struct.pack_into("<II", data, at + 20, 2**24, size)
        path.write_bytes(data)
        assert refusal in refused(path)
    assert refused(path) == (
        f"{path}: {name!r} has 268,435,457 bytes, more than the 256 MiB of a file that is read at once: {ASK}"
    )


@pytest.mark.parametrize("name", ["results/tiny/rows.jsonl", "results/tiny/a.safetensors", "inputs/own.json"])
def test_lines_tensors_and_own_inputs_have_none(path, name):
    """It goes on to look for the bytes, which are not there."""
    write(path, {**finished(FILES), name: bytes(2**16)})
    data = bytearray(path.read_bytes())
    at = data.rindex(name.encode()) - 46
    struct.pack_into("<H", data, at + 10, 8)
    struct.pack_into("<II", data, at + 20, 2**24, 2**28 + 1)
    path.write_bytes(data)
    assert refused(path) == f"{path}: what stands before {name!r} is not what the list of entries says: {AGAIN}"


def test_more_entries_than_any_archive_has(path, monkeypatch):
    assert entries.MOST_ENTRIES == 100_000
    files = finished(FILES)
    write(path, files)
    monkeypatch.setattr(entries, "MOST_ENTRIES", len(files))
    with open_archive(path) as archive:
        assert len(archive.names) == len(files)
    monkeypatch.setattr(entries, "MOST_ENTRIES", len(files) - 1)
    assert refused(path) == f"{path} has {len(files)} entries, more than {len(files) - 1}: {ASK}"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"crc": 1}, "its CRC is not the one that it states"),
        ({"size": 1000, "crc": crc_of(b"\0" * 1000)}, "it holds more than the 1,000 bytes that it states"),
        ({"size": 0, "crc": 0}, "it holds more than the 0 bytes that it states"),
        ({"size": 30 * PIECE}, "it holds 3,145,728 of the 31,457,280 bytes that it states"),
    ],
)
def test_an_entry_that_does_not_hold_what_it_states(path, fields, problem, monkeypatch):
    """Also where the CRC is right for as many bytes as it states: zipfile itself reads these and no more."""
    monkeypatch.setattr(entries, "MOST_TIMES", 20_000)
    write(path, finished({"zeros": bytes(3 * PIECE)}), zipfile.ZIP_DEFLATED)
    patched(path, "zeros", **fields)
    assert damaged(path, "zeros") == f"{path}: zeros is damaged ({problem}): {AGAIN}"


def test_a_byte_of_an_entry(path):
    """Stored: the CRC tells. Deflated: what unpacks it, or the CRC."""
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        write(path, finished({"some": bytes(range(256)) * 4}), method)
        data = bytearray(path.read_bytes())
        data[data.index(b"some") + 20] ^= 0xFF
        path.write_bytes(data)
        assert damaged(path, "some").startswith(f"{path}: some is damaged (")


def test_deflated_bytes_with_something_behind_them_or_no_end(path):
    write(path, finished({"some": b"abc" * 100}), zipfile.ZIP_DEFLATED)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("some")
        start = info.header_offset + 30 + len("some")
    packed = whole[start : start + info.compress_size]
    for stored, problem in ((packed + b"!", "something stands behind its end"), (packed[:-2], "it has no end")):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in finished(FILES).items():
                archive.writestr(name, data)
            archive.writestr("some", stored)
        data = bytearray(patched(path, "some", method=8, size=300, crc=crc_of(b"abc" * 100)).read_bytes())
        struct.pack_into("<H", data, data.index(b"some") - 30 + 8, 8)
        path.write_bytes(data)
        assert damaged(path, "some") == f"{path}: some is damaged ({problem}): {AGAIN}"


def test_a_name_that_is_not_there(path):
    write(path, finished(FILES))
    with open_archive(path) as archive, pytest.raises(ArchiveError) as error:
        archive.read("nothing")
    assert str(error.value) == f"{path} holds no nothing: {AGAIN}"


def test_nothing_is_written_through_links(path, tmp_path):
    write(path, finished(FILES))
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for link, target in (("results", elsewhere), ("results/tiny", elsewhere), (PLAN, elsewhere / "a")):
        (folder / link).parent.mkdir(parents=True, exist_ok=True)
        elsewhere.mkdir(exist_ok=True)
        (folder / link).symlink_to(target)
        with open_archive(path) as archive, pytest.raises(ArchiveError) as error:
            archive.extract(folder, "results/tiny/plan")
        assert str(error.value) == (
            f"{path}: {PLAN} would be written through the link {folder / link}: unpack it into an empty folder"
        )
        assert list(elsewhere.iterdir()) == []
        (folder / link).unlink()


def test_nothing_is_written_over_folders_or_below_files(path, tmp_path):
    write(path, finished(FILES))
    (tmp_path / "one" / PLAN).mkdir(parents=True)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "results").write_text("kept")
    with open_archive(path) as archive:
        for folder, problem in (("one", f"one/{PLAN} is no file"), ("two", "two/results is no folder")):
            with pytest.raises(ArchiveError, match="cannot be written") as error:
                archive.extract(tmp_path / folder)
            assert problem in str(error.value)
    assert (tmp_path / "two" / "results").read_text() == "kept"
    assert list((tmp_path / "one").iterdir()) == [tmp_path / "one" / "results"]


DIGEST = "0" * 64
OMITTED = {"sha256": DIGEST, "bytes": 5, "made_by": "continuous"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"experiment": 3}, "field 'experiment' is no name of an experiment"),
        ({"experiment": "../x"}, "field 'experiment' is no name of an experiment"),
        ({"experiment": "controls"}, "field 'experiment' is no name of an experiment"),
        ({"comparison_digest": "F" * 64}, "field 'comparison_digest' is no SHA-256"),
        ({"as_expected": "yes"}, "field 'as_expected' must be true or false"),
        ({"version": None}, "field 'version' must be a text"),
        ({"source": []}, "field 'source' must be a mapping"),
        ({"omitted": []}, "field 'omitted' must be a mapping"),
        ({"omitted": {"../a": OMITTED}}, "field 'omitted': '../a' is no path of a file"),
        ({"omitted": {"a/": OMITTED}}, "field 'omitted': 'a/' is no path of a file"),
        ({"omitted": {PLAN: OMITTED}}, f"field 'omitted': {PLAN!r} is in the archive"),
        ({"omitted": {"a": {}}}, "field 'omitted': 'a' lacks sha256, bytes or made_by"),
        ({"omitted": {"a": {**OMITTED, "bytes": -1}}}, "field 'omitted': 'a' lacks sha256, bytes or made_by"),
        ({"omitted": {"a": {**OMITTED, "bytes": True}}}, "field 'omitted': 'a' lacks sha256, bytes or made_by"),
    ],
)
def test_an_archive_json_with_a_field_that_is_wrong(path, changes, problem):
    files = finished(FILES)
    write(path, files | {DOCUMENT: json.dumps(json.loads(files[DOCUMENT]) | changes).encode()})
    assert refused(path) == f"{path}: archive.json: {problem}: {AGAIN}"


def test_an_archive_json_that_is_none(path):
    for data, problem in (
        (b"{", "is not valid JSON (Expecting property name"),
        (b"\xff", "is not valid JSON ('utf-8' codec"),
        (b"[" * 10_000, "is not valid JSON (maximum recursion depth"),
        (b'{"a\\u001b\\n": 1, "a\\u001b\\n": 2}', r"is not valid JSON (the field a\x1b\n stands there twice): "),
        (b'{"format": NaN}', "is not valid JSON (NaN is not a finite number"),
        (b"[]", "holds no fields"),
        (b'{"format": 1, "version": "1", "experiment": "tiny"}', "lacks comparison_digest, as_expected, source: "),
    ):
        write(path, {**finished(FILES), DOCUMENT: data})
        assert refused(path).startswith(f"{path}: archive.json {problem}")


def test_an_archive_that_was_zipped_with_its_folder(path):
    write(path, {f"tiny/{name}": data for name, data in finished(FILES).items()})
    assert refused(path) == (
        f"{path} holds no archive.json: it is in its folder tiny: zip what is in that folder, without the folder"
    )


def test_formats(path):
    write(path, finished(FILES, format=2, version="3.0.0", source="another kind"))
    assert refused(path) == (
        f"{path} was made by a newer version of this project, in format 2; this version reads 1: install version 3.0.0"
    )
    write(path, finished(FILES, format=2, version="evil\x1b[0m"))
    assert refused(path).endswith("install version that it was made by")
    for number in (0, -1, "1", None, True, 1.0):
        write(path, finished(FILES, format=number))
        assert refused(path) == (f"{path}: archive.json states no format: name an archive that this project has made")


def test_any_bytes_end_in_a_sentence_or_in_findings(path):
    """Bytes flipped, put in and taken away: mostly refused, sometimes found out by digests, never another error."""
    made = {}
    for name, method in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        made[name] = write(path, finished(FILES), method).read_bytes()
    generator, ends = random.Random(20260101), {"refused": 0, "problems": 0}
    for turn in range(600):
        data = bytearray(made["stored" if turn % 2 else "deflated"])
        listed = data.index(b"PK\x01\x02")
        for _ in range(generator.randint(1, 4)):
            at = generator.choice([generator.randrange(len(data)), generator.randrange(listed, len(data))])
            change = generator.randrange(4)
            if change == 0:
                data[at] ^= 1 << generator.randrange(8)
            elif change == 1:
                data[at] = generator.choice([0, 0xFF])
            elif change == 2:
                data[at:at] = generator.randbytes(generator.randint(1, 3))
            else:
                del data[at : at + generator.randint(1, 3)]
            listed = min(listed, len(data) - 1)
        path.write_bytes(data)
        try:
            with open_archive(path) as archive:
                assert verify(archive).problems
            ends["problems"] += 1
        except ArchiveError:
            ends["refused"] += 1
    assert min(ends.values()) > 10


def test_the_sums_are_read_as_any_file(path):
    files = finished(FILES)
    write(path, files)
    with open_archive(path) as archive:
        assert archive.read(SUMS) == files[SUMS]
