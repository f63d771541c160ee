import errno
import json
import os

import pytest

from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import (
    _each_once,
    digests,
    json_line,
    read_json,
    read_json_lines,
    replacing,
    sha256,
    to_json,
    write_json,
    write_json_lines,
    write_json_list,
    write_text,
)


def write_then_fail(path):
    with replacing(path) as stream:
        stream.write(b"half of it")
        stream.flush()
        assert len(list(path.parent.glob(".*.tmp"))) == 1  # what must not stay was there
        raise RuntimeError("the disk caught fire")


def test_nothing_is_left_when_the_block_raises(tmp_path):
    with pytest.raises(RuntimeError, match="fire"):
        write_then_fail(tmp_path / "new.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_file_that_was_meant_and_leaves_nothing(tmp_path, monkeypatch):
    """A write or a sync knows no name by itself."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write_text(tmp_path / "new.txt", "all of it")
    assert raised.value.filename == str(tmp_path / "new.txt")
    assert list(tmp_path.iterdir()) == []


def test_an_error_that_names_its_file_keeps_it(tmp_path):
    with pytest.raises(FileNotFoundError) as raised, replacing(tmp_path / "new.txt"):
        (tmp_path / "other.txt").read_bytes()
    assert raised.value.filename == str(tmp_path / "other.txt")


def test_the_old_content_stays_when_the_block_raises(tmp_path):
    path = tmp_path / "old.txt"
    write_text(path, "all of it")
    with pytest.raises(RuntimeError, match="fire"):
        write_then_fail(path)
    assert path.read_text() == "all of it"
    assert list(tmp_path.iterdir()) == [path]


def test_the_name_appears_only_at_the_end(tmp_path):
    path = tmp_path / "made" / "on the way" / "new.txt"
    with replacing(path) as stream:
        stream.write(b"all of it")
        assert not path.exists()
    assert path.read_bytes() == b"all of it"
    assert list(path.parent.iterdir()) == [path]


def test_json_does_not_depend_on_the_order_of_keys():
    assert to_json({"b": 1, "a": {"d": 2, "c": 3}}) == to_json({"a": {"c": 3, "d": 2}, "b": 1})
    assert list(json.loads(to_json({"b": 1, "a": 2}, sort_keys=False))) == ["b", "a"]
    assert json_line({"b": 1, "a": 2}) == '{"a": 2, "b": 1}\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("write", [to_json, json_line])
def test_json_has_no_nan_and_no_infinity(write, value):
    with pytest.raises(ValueError, match="Out of range float"):
        write({"loss": value})


def test_floats_survive_json_bit_for_bit(tmp_path):
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0]
    write_json(tmp_path / "floats.json", values)
    assert [value.hex() for value in read_json(tmp_path / "floats.json")] == [value.hex() for value in values]


def test_lines_come_back(tmp_path):
    records = [{"step": 1, "text": "line\nbreak \u2028 \u00e9"}, {"step": 2}]
    write_json_lines(tmp_path / "history.jsonl", records)
    assert read_json_lines(tmp_path / "history.jsonl") == records


@pytest.mark.parametrize("read", [read_json, read_json_lines])
def test_a_missing_file_is_named(tmp_path, read):
    with pytest.raises(EvidenceError, match=r"gone\.json does not exist; run the step that makes it"):
        read(tmp_path / "gone.json")


@pytest.mark.parametrize("content", [b"", b'{"a": ', b"\xff\xfe"], ids=["empty", "truncated", "not text"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(EvidenceError, match=r"bad\.json is not valid JSON .*; delete it and make it again"):
        read_json(tmp_path / "bad.json")


def test_a_damaged_line_is_named_with_its_number(tmp_path):
    (tmp_path / "history.jsonl").write_text('{"step": 1}\n{"step": \n')
    with pytest.raises(EvidenceError, match=r"history\.jsonl, line 2: not valid JSON"):
        read_json_lines(tmp_path / "history.jsonl")


def test_digests_are_sha256_by_path(tmp_path):
    for name, content in (("b", "abc"), ("a", "")):
        (tmp_path / name).write_text(content)
    # The published digest of "abc" (FIPS 180-2), and that of nothing.
    of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256(tmp_path / "b") == of_abc
    found = digests([tmp_path / "b", tmp_path / "a"])
    assert list(found) == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert found[str(tmp_path / "b")] == of_abc
    assert json.loads(to_json(found)) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"a": NaN}', "NaN is not a finite number"),
        ("[-Infinity]", "-Infinity is not a finite number"),
        ('{"a": [1e999]}', "1e999 is not a finite number"),
        ('{"a": {"b": 1, "c": 2, "b": 1}}', "the field b stands there twice"),
        ('{"a": 1, "b": 2, "c": 3, "b": 4, "a": 5}', "the field b stands there twice"),
        ("[" * 10**5, "recursion"),
    ],
)
def test_json_that_to_json_never_writes_is_refused(tmp_path, text, problem):
    (tmp_path / "some.json").write_text(text)
    with pytest.raises(EvidenceError, match=rf"some\.json is not valid JSON .*{problem}"):
        read_json(tmp_path / "some.json")
    (tmp_path / "some.jsonl").write_text(text + "\n")
    with pytest.raises(EvidenceError, match=rf"some\.jsonl, line 1: not valid JSON .*{problem}"):
        read_json_lines(tmp_path / "some.jsonl")


NESTED = ([], [[["a"], []], [["line\nbreak, \u2028 and \ud800"]]], {"b": 1, "a": [1, 2]}, "text", 1.5)


@pytest.mark.parametrize("items", [(), NESTED[:1], NESTED])
def test_a_list_is_written_item_by_item_as_it_would_be_at_once(tmp_path, items):
    before = {"first": {"b": ["]", "[]"], "a": 2}, "empty": []}
    write_json_list(tmp_path / "list.json", before, "plan", iter(items))
    write_json(tmp_path / "whole.json", before | {"plan": list(items)})
    assert (tmp_path / "list.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_an_item_that_cannot_be_made_leaves_no_list(tmp_path):
    def items():
        yield "a"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_json_list(tmp_path / "list.json", {}, "plan", items())
    assert list(tmp_path.iterdir()) == []


def test_looking_for_a_field_that_stands_there_twice_hashes_each_once_or_twice():
    """Not for each again all those before it: another program may have written very many."""

    class Name(str):
        hashed = 0

        def __hash__(self):
            Name.hashed += 1
            return super().__hash__()

    names = [Name(number) for number in range(1000)]
    with pytest.raises(ValueError, match="the field 999 stands there twice"):
        _each_once([(name, None) for name in [*names, names[-1]]])
    assert 1001 <= Name.hashed <= 4 * 1001
