"""Rows of Parquet files, and of folders of files."""

import re

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make data")

import pyarrow
from pyarrow import parquet

from ddp_tokens.config import OwnRows
from ddp_tokens.corpora import arrow_rows, vocabulary
from ddp_tokens.corpora.lock import require_same_source, write_corpus
from ddp_tokens.corpora.own_rows import read
from ddp_tokens.corpora.own_sources import files_of
from ddp_tokens.errors import CorpusError
from ddp_tokens.files import read_json
from tests.helpers import record, write_lines
from tests.unit.corpora.arrow_data import FULL, PLAIN, TEXT, save_splits_to_disk, save_to_disk, table_of, write_parquet


def prepared(path, where):
    corpus = OwnRows(path=str(path))
    write_corpus(read(corpus), corpus, where / "rows.jsonl", where / "lock.json")
    return (where / "rows.jsonl").read_bytes(), read_json(where / "lock.json")


def without_prompt(rows):
    return [{name: value for name, value in row.items() if name != "prompt"} for row in rows]


def shards(folder, records):
    """Of both kinds, in the order of their names."""
    folder.mkdir()
    write_lines(folder / "00.jsonl", *records[:1])
    write_parquet(folder / "01.parquet", records[1:3])
    write_lines(folder / "02.jsonl", *records[3:])
    (folder / ".hidden").touch()
    (folder / "_SUCCESS").touch()
    return folder


FORMATS = {
    "parquet": lambda folder: write_parquet(folder / "rows.parquet", FULL),
    "datasets": lambda folder: save_to_disk(folder / "saved", FULL),
    "datasets in shards": lambda folder: save_to_disk(folder / "saved", FULL, shards=3),
    "datasets by split": lambda folder: save_splits_to_disk(folder / "saved", FULL),
    "folder": lambda folder: shards(folder / "rows", FULL),
    "other types": lambda folder: write_parquet(
        folder / "rows.parquet",
        FULL,
        id=pyarrow.large_string(),
        split=pyarrow.dictionary(pyarrow.int8(), TEXT),
        tokens=pyarrow.large_list(pyarrow.uint16()),
        labels=pyarrow.list_(pyarrow.int8()),
    ),
}


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_every_format_gives_the_same_rows(tmp_path, form):
    """Byte for byte, and the same lock, but for the digest of the source."""
    expected, lock = prepared(write_lines(tmp_path / "rows.jsonl", *FULL), tmp_path / "of-lines")
    rows, other_lock = prepared(form(tmp_path), tmp_path / "of-other")
    assert rows == expected
    assert expected.count(b"\n") == len(FULL)
    assert other_lock | {"source_sha256": None} == lock | {"source_sha256": None}
    assert other_lock["source_sha256"] != lock["source_sha256"]


def test_words_are_numbered_as_in_a_file_of_lines(tmp_path):
    lines = [record("a", tokens=("to", "be"), labels=(0, 0)), record("b", "test", ("be", "or"), (0, 0))]
    corpus = OwnRows(path=str(write_parquet(tmp_path / "x.parquet", lines, tokens=pyarrow.list_(TEXT))))
    assert vocabulary(corpus, seed=0) == ["to", "be", "or"]
    assert [row.tokens for row in read(corpus)] == [(0, 1), (1, 2)]


def test_rows_are_read_in_pieces_and_counted_through_all_of_them(tmp_path, monkeypatch):
    """Lists of a piece start anywhere in the memory of a column: 1 + 2 + 3 and so on tokens stand before."""
    monkeypatch.setattr(arrow_rows, "PIECE", 2)
    lines = [record(f"r{n}", tokens=range(n, 2 * n + 1), labels=range(n + 1)) for n in range(7)]
    lines[3] |= {"document": "d", "weights": [0.5] * 4}
    for number, path in enumerate(
        (write_parquet(tmp_path / "x.parquet", lines), save_to_disk(tmp_path / "saved", lines))
    ):
        read_back = list(read(OwnRows(path=str(path))))
        assert [list(row.tokens) for row in read_back] == [row["tokens"] for row in lines]
        assert [list(row.labels) for row in read_back] == [row["labels"] for row in lines]
        assert [row.weights for row in read_back] == [None, None, None, (0.5,) * 4, None, None, None]
        bad = [*lines, record("r3")]
        path = (
            write_parquet(tmp_path / "y.parquet", bad)
            if not number
            else save_to_disk(tmp_path / "bad", bad) / "data-00000-of-00001.arrow"
        )
        source = path if not number else path.parent
        with pytest.raises(CorpusError) as refusal:
            list(read(OwnRows(path=str(source))))
        assert str(refusal.value) == f"{path}, row 8: duplicate id 'r3'; every row needs its own"


def test_a_prompt_is_applied_to_rows_of_a_table(tmp_path):
    lines = [record("a", tokens=(4, 5, 6)) | {"prompt": 2}, record("b", tokens=(1, 2))]
    tables = table_of([{k: v for k, v in row.items() if k != "labels"} for row in lines], prompt=pyarrow.int32())
    parquet.write_table(tables, tmp_path / "x.parquet")
    rows = list(read(OwnRows(path=str(tmp_path / "x.parquet"), labels="next_token")))
    assert [row.labels for row in rows] == [(-100, 6, -100), (2, -100)]


INTEGER = pyarrow.int64()
BAD_TABLES = {
    "missing column": ([{"id": "a", "split": "train", "tokens": [1]}], {}, "row 1: field 'labels' is missing (id 'a')"),
    "unknown column": (
        [record("a") | {"mask": 1}],
        {"mask": INTEGER},
        "row 1: unknown field 'mask' (id 'a')",
    ),
    "null": ([record("a"), record("b") | {"tokens": None}], {}, "row 2: field 'tokens' is null (id 'b')"),
    "null in a list": ([record("a"), record("b", labels=(None, 1))], {}, "row 2, id 'b': label None is outside the"),
    "null as id": ([record("a"), record(None)], {}, "row 2: the field id must be a non-empty string, not None"),
    "null as split": ([record("a"), record("b", split=None)], {}, "row 2: field 'split' is null (id 'b')"),
    "numbers as ids": ([record(7)], {"id": INTEGER}, "row 1: the field id must be a non-empty string, not 7"),
    "number as tokens": (
        [record("a") | {"tokens": 3}],
        {"tokens": INTEGER},
        "row 1, id 'a': tokens must be a list, not 3",
    ),
    "fractions as tokens": (
        [record("a", tokens=(0.5, 1.0))],
        {"tokens": pyarrow.list_(pyarrow.float32())},
        "row 1, id 'a': token 0.5 is not an integer from 0 to",
    ),
    "fractions as labels": (
        [record("a", labels=(0.0, 1.0))],
        {"labels": pyarrow.list_(pyarrow.float64())},
        "row 1, id 'a': label 0.0 is outside the classes",
    ),
    "truths as labels": (
        [record("a", labels=(True, False))],
        {"labels": pyarrow.list_(pyarrow.bool_())},
        "row 1, id 'a': label True is outside the classes",
    ),
    "NaN as weight": (
        [record("a"), record("b") | {"weights": [1.0, float("nan")]}],
        {},
        "row 2, id 'b': weight nan at position 1 is not a number from 0 to 1e+15",
    ),
    "negative weight": ([record("a") | {"weights": [-1.0, 1]}], {}, "row 1, id 'a': weight -1.0 at position 0"),
}


@pytest.mark.parametrize(("lines", "types", "problem"), BAD_TABLES.values(), ids=BAD_TABLES.keys())
def test_a_bad_row_of_a_table_is_refused_by_file_row_and_field(tmp_path, lines, types, problem):
    path = write_parquet(tmp_path / "mine.parquet", lines, **types)
    with pytest.raises(CorpusError) as refusal:
        list(read(OwnRows(path=str(path))))
    assert str(refusal.value).startswith(f"{path}, {problem}")


def test_a_table_without_rows_is_refused(tmp_path):
    path = tmp_path / "mine.parquet"
    parquet.write_table(table_of(PLAIN).slice(0, 0), path)
    with pytest.raises(CorpusError, match=r"mine\.parquet holds no row"):
        list(read(OwnRows(path=str(path))))


def test_a_column_twice_is_refused(tmp_path):
    path = tmp_path / "mine.parquet"
    table = table_of(PLAIN)
    parquet.write_table(table.append_column("id", table["split"]), path)
    with pytest.raises(CorpusError) as refusal:
        list(read(OwnRows(path=str(path))))
    assert str(refusal.value) == f"{path} has two columns 'id': take one away"


@pytest.mark.parametrize("data", [b"", b"no table at all", None], ids=["empty", "text", "cut off"])
def test_a_file_that_is_no_parquet_is_refused(tmp_path, data):
    path = write_parquet(tmp_path / "mine.parquet", FULL)
    path.write_bytes(path.read_bytes()[:200] if data is None else data)
    with pytest.raises(CorpusError, match=rf"^{re.escape(str(path))} cannot be read as a Parquet file: [^\n]+$"):
        list(read(OwnRows(path=str(path))))


def test_a_damaged_page_is_refused(tmp_path):
    """Whatever is read of it, no row is made of what cannot be read."""
    path = write_parquet(tmp_path / "mine.parquet", [record(f"r{n}", tokens=[n % 7] * 50) for n in range(200)])
    data = bytearray(path.read_bytes())
    data[40:80] = b"\xff" * 40
    path.write_bytes(data)
    with pytest.raises(CorpusError, match=r"mine\.parquet"):
        list(read(OwnRows(path=str(path))))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CorpusError, match=r"gone\.parquet cannot be read as a Parquet file: No such file"):
        list(read(OwnRows(path=str(tmp_path / "gone.parquet"))))


def test_without_pyarrow_it_is_said_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_rows, "pyarrow", None)
    path = write_parquet(tmp_path / "mine.parquet", PLAIN)
    with pytest.raises(CorpusError) as refusal:
        list(read(OwnRows(path=str(path))))
    assert str(refusal.value) == f"{path} needs the package pyarrow, which is not installed: `make data` installs it"
    lines = write_lines(tmp_path / "mine.jsonl", *PLAIN)
    assert len(list(read(OwnRows(path=str(lines))))) == 2


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (None, "is an empty folder: it must hold .jsonl or .parquet files, or what `save_to_disk`"),
        ("rows.csv", "holds rows.csv, which is no .jsonl or .parquet file: take it away, or name the file of rows"),
        ("more.jsonl/", "holds more.jsonl, which is no .jsonl or .parquet file"),
    ],
)
def test_a_folder_that_holds_something_else_is_refused(tmp_path, name, problem):
    folder = tmp_path / "rows"
    folder.mkdir()
    if name:
        write_lines(folder / "a.jsonl", record("a"))
        (folder / name).mkdir() if name.endswith("/") else (folder / name).touch()
    with pytest.raises(CorpusError) as refusal:
        list(read(OwnRows(path=str(folder))))
    assert str(refusal.value).startswith(f"{folder} {problem}")


def test_an_id_may_stand_in_one_file_of_a_folder_only(tmp_path):
    folder = shards(tmp_path / "rows", [*FULL, record("a")])
    with pytest.raises(CorpusError, match=r"02\.jsonl, line 2: duplicate id 'a'; every row needs its own"):
        list(read(OwnRows(path=str(folder))))


@pytest.mark.parametrize("change", ["altered", "new", "gone", "renamed"])
def test_a_folder_that_changed_is_refused(tmp_path, change):
    folder = shards(tmp_path / "rows", FULL)
    corpus = OwnRows(path=str(folder))
    _, lock = prepared(folder, tmp_path / "made")
    require_same_source(corpus, lock, "lock.json")
    (folder / ".more").touch()
    require_same_source(corpus, lock, "lock.json")
    assert sorted(files_of(folder)) == ["00.jsonl", "01.parquet", "02.jsonl"]
    match change:
        case "altered":
            write_lines(folder / "02.jsonl", record("c", "test", (1, 0), (1, 1)))
        case "new":
            write_lines(folder / "03.jsonl", record("z"))
        case "gone":
            (folder / "02.jsonl").unlink()
        case "renamed":
            (folder / "02.jsonl").rename(folder / "03.jsonl")
    with pytest.raises(CorpusError, match=r"rows has changed since prepare \(its SHA-256 .*\): prepare again"):
        require_same_source(corpus, lock, "lock.json")
