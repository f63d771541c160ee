"""Folders that `save_to_disk` of the package datasets writes, read without it."""

import json

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make data")

from ddp_tokens.config import OwnRows
from ddp_tokens.corpora import arrow_rows
from ddp_tokens.corpora.own_rows import read
from ddp_tokens.corpora.own_sources import digest_of, files_of, stamps
from ddp_tokens.errors import CorpusError
from tests.helpers import record
from tests.unit.corpora.arrow_data import FULL, PLAIN, save_splits_to_disk, save_to_disk, table_of, write_stream


def rows_of(folder):
    return list(read(OwnRows(path=str(folder))))


def refusal_of(folder):
    with pytest.raises(CorpusError) as refusal:
        rows_of(folder)
    return str(refusal.value)


def test_a_dataset_is_read_in_the_order_of_its_state(tmp_path):
    folder = save_to_disk(tmp_path / "saved", FULL, shards=2)
    assert [row.id for row in rows_of(folder)] == [row["id"] for row in FULL]
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"].reverse()
    (folder / "state.json").write_text(json.dumps(state))
    assert [row.id for row in rows_of(folder)] == ["ä", "c", "a", "b"]


def test_the_folder_of_a_row_says_its_split(tmp_path):
    folder = save_splits_to_disk(tmp_path / "saved", FULL)
    assert [(row.id, row.split) for row in rows_of(folder)] == [(row["id"], row["split"]) for row in FULL]


def test_a_split_beside_the_folder_must_be_the_same(tmp_path):
    folder = tmp_path / "saved"
    save_to_disk(folder / "train", [record("a")])
    save_to_disk(folder / "test", [record("b", "test"), record("c", "train")])
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    assert refusal_of(folder) == (
        f"{folder}/test/data-00000-of-00001.arrow, row 2: split 'train' in the folder of split 'test'"
    )


def test_a_folder_of_another_split_is_named(tmp_path):
    folder = save_splits_to_disk(tmp_path / "saved", [record("a"), record("b", "dev")])
    assert refusal_of(folder).endswith("row 1: split 'dev' is not one of train, validation, test (id 'b')")


def test_without_folders_a_row_must_say_its_split(tmp_path):
    lines = [{name: value for name, value in row.items() if name != "split"} for row in PLAIN]
    folder = save_to_disk(tmp_path / "saved", lines)
    assert refusal_of(folder) == f"{folder}/data-00000-of-00001.arrow, row 1: field 'split' is missing (id 'a')"


STATES = {
    "no JSON": ("{", "state.json is not valid JSON ("),
    "no object": ("[]", "state.json holds no JSON object: save the dataset again"),
    "no files": ("{}", "state.json does not list the dataset's .arrow files: save the dataset again"),
    "files are no list": ('{"_data_files": 3}', "state.json does not list the dataset's .arrow files"),
    "no names": ('{"_data_files": [3]}', "state.json does not list the dataset's .arrow files"),
    "outside": ('{"_data_files": [{"filename": "../x.arrow"}]}', "state.json does not list the dataset's .arrow files"),
    "no stream": ('{"_data_files": [{"filename": "x.jsonl"}]}', "state.json does not list the dataset's .arrow files"),
    "none": ('{"_data_files": []}', "saved holds no row"),
    "gone": ('{"_data_files": [{"filename": "x.arrow"}]}', "x.arrow cannot be read as an Arrow stream: No such file"),
    "selection": ('{"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]}', "`flatten_indices()`"),
}


@pytest.mark.parametrize(("state", "problem"), STATES.values(), ids=STATES)
def test_a_state_that_is_damaged_is_named(tmp_path, state, problem):
    folder = save_to_disk(tmp_path / "saved", PLAIN)
    (folder / "state.json").write_text(state)
    assert problem in refusal_of(folder)


@pytest.mark.parametrize("splits", ["{}", '{"splits": "train"}', '{"splits": [".."]}', '{"splits": ["a/b"]}'])
def test_a_list_of_splits_that_is_damaged_is_named(tmp_path, splits):
    folder = save_splits_to_disk(tmp_path / "saved", PLAIN)
    (folder / "dataset_dict.json").write_text(splits)
    assert refusal_of(folder).endswith(
        "dataset_dict.json does not list the folders of the dataset's splits: save the dataset again"
    )


def test_a_split_that_is_gone_is_named(tmp_path):
    folder = save_splits_to_disk(tmp_path / "saved", PLAIN)
    (folder / "test" / "state.json").unlink()
    assert (
        refusal_of(folder)
        == f"{folder}/test/state.json cannot be read: No such file or directory; save the dataset again"
    )


@pytest.mark.parametrize("cut", [0, 4, 300, -200], ids=["empty", "four bytes", "in the schema", "in the rows"])
def test_a_stream_that_is_cut_off_is_refused(tmp_path, cut):
    folder = save_to_disk(tmp_path / "saved", [record(f"r{n}", tokens=[n] * 20, labels=[0] * 20) for n in range(20)])
    file = folder / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:cut])
    assert refusal_of(folder).startswith(f"{file} ")


def test_lists_that_lead_out_of_their_memory_are_refused(tmp_path):
    """The ends of the lists of tokens, 2 and 4 and so on, are the first 32-bit numbers of a piece of the file: one of
    them is made 2^30. Reading it without a look would end the process.
    """
    folder = save_to_disk(tmp_path / "saved", [record(f"r{n}") for n in range(50)])
    file = folder / "data-00000-of-00001.arrow"
    data = file.read_bytes()
    ends = b"".join(end.to_bytes(4, "little") for end in range(0, 102, 2))
    assert data.count(ends) >= 1
    wrong = ends[:-4] + (2**30).to_bytes(4, "little")
    file.write_bytes(data.replace(ends, wrong))
    assert refusal_of(folder).startswith(f"{file} cannot be read as an Arrow stream: ")


def test_one_large_batch_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_rows, "PIECE", 3)
    lines = [record(f"r{n}", tokens=(n, n + 1)) for n in range(10)]
    folder = save_to_disk(tmp_path / "saved", lines)
    write_stream(folder / "data-00000-of-00001.arrow", table_of(lines), rows_per_batch=10)
    assert [row.tokens for row in rows_of(folder)] == [(n, n + 1) for n in range(10)]


def test_what_is_read_is_what_is_locked(tmp_path):
    """The files of rows and those that name them; not what datasets keeps beside them, as the cache of a map."""
    one = save_to_disk(tmp_path / "one", PLAIN, shards=2)
    several = save_splits_to_disk(tmp_path / "several", PLAIN)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow", "state.json"]
    assert list(files_of(one)) == names
    assert list(files_of(several)) == [
        "dataset_dict.json",
        "test/data-00000-of-00001.arrow",
        "test/state.json",
        "train/data-00000-of-00001.arrow",
        "train/state.json",
    ]
    before = digest_of(files_of(one))
    (one / "cache-1234.arrow").write_bytes(b"x")
    assert digest_of(files_of(one)) == before
    assert [name for name, *_ in stamps(one)] == names
    (one / "state.json").write_text((one / "state.json").read_text() + "\n")
    assert digest_of(files_of(one)) != before
