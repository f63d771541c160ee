"""A large corpus is the same mapping as a small one, with rows that are read when they are asked for."""

import gc
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from ddp_tokens.config import GeneratedCorpus
from ddp_tokens.corpora import locked_rows
from ddp_tokens.corpora.lock import read_corpus, write_corpus
from ddp_tokens.corpora.locked_rows import LockedRows
from ddp_tokens.corpora.objective import Objective, _add_exactly
from ddp_tokens.corpora.rows import UNSUPERVISED, Criterion, Row, supervised_in
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import json_line
from ddp_tokens.plan import counts_per_rank, microbatches_of, windows_to_compare
from tests.helpers import TINY_CORPUS

CORPUS = GeneratedCorpus(**TINY_CORPUS)
IDS = ("a", "b", 'a "quoted" id', '"}', "ä\u2028\U0001f600", "\ud800", "x" * 300, '", "id": "', "z", "y")


def made_rows():
    """Some with every field that a row can have, also where an id must be looked for behind a document."""
    rng = random.Random(3)
    for number, row_id in enumerate(IDS):
        length = rng.randint(2, 9)
        tokens = tuple(rng.randrange(50) for _ in range(length))
        labels = (*(rng.choice((UNSUPERVISED, 0, 1)) for _ in tokens[1:]), 1)
        row = Row(row_id, ("train", "test")[number % 2], tokens, labels)
        if number % 3 == 0:
            row = replace(row, weights=tuple(rng.random() for _ in labels), document=f'd{number % 2}", "id": "b')
        yield row


@pytest.fixture
def paths(tmp_path):
    return tmp_path / "rows.jsonl", tmp_path / "lock.json"


@pytest.fixture
def large(monkeypatch):
    """Every corpus counts as large."""
    monkeypatch.setattr(locked_rows, "IN_MEMORY", 0)


def both(monkeypatch, paths, unit=None):
    """The rows as they are in memory, and read when they are asked for."""
    small, _ = read_corpus(*paths, unit)
    with monkeypatch.context() as patch:
        patch.setattr(locked_rows, "IN_MEMORY", 0)
        large, _ = read_corpus(*paths, unit)
    assert isinstance(small, dict)
    assert isinstance(large, LockedRows)
    return small, large


def test_it_is_the_same_mapping(monkeypatch, paths):
    write_corpus(made_rows(), CORPUS, *paths)
    small, large = both(monkeypatch, paths)
    assert isinstance(large, Mapping)
    assert len(large) == len(small) == len(IDS)
    assert list(large) == list(small) == list(large.keys()) == list(IDS)
    assert list(large.values()) == list(small.values()) == list(made_rows())
    assert list(large.items()) == list(small.items())
    assert {row_id: large[row_id] for row_id in reversed(IDS)} == small
    assert large == small
    assert list(large.values()) == list(small.values())  # again, from the start


def test_what_is_not_there_is_no_row(monkeypatch, paths):
    write_corpus(made_rows(), CORPUS, *paths)
    _, large = both(monkeypatch, paths)
    assert "a" in large
    assert large["a"] is large["a"]
    for absent in ("", "A", "d0", "a ", None, 3):
        assert absent not in large
        with pytest.raises(KeyError):
            large[absent]
    assert large.get("A") is None


def test_ids_that_only_share_their_hash_are_told_apart(monkeypatch, paths):
    monkeypatch.setattr(locked_rows, "hash", lambda row_id: 7, raising=False)
    write_corpus(made_rows(), CORPUS, *paths)
    small, large = both(monkeypatch, paths)
    assert {row_id: large[row_id] for row_id in IDS} == small
    assert "absent" not in large


@pytest.mark.parametrize("unit", ["token", "sequence", "document", "sample"])
def test_rows_are_counted_by_the_objective_when_they_are_asked_for(monkeypatch, paths, unit):
    objective = Objective(unit, Criterion((1.0, 2.5, 1.0, 1.0), 0.1))
    rows = [replace(row, document=row.document or f"rest of {row.split}") for row in made_rows()]
    write_corpus(rows, CORPUS, *paths, objective=objective)
    small, large = both(monkeypatch, paths)
    assert [large[row_id] for row_id in IDS] == list(small.values()) == list(large.values())
    assert supervised_in(large.values()) == supervised_in(small.values())
    assert small["b"].criterion == objective.criterion
    assert (small["a"].units is None) == (unit == "token")


def test_another_unit_than_the_locked_one(monkeypatch, paths):
    write_corpus(made_rows(), CORPUS, *paths)
    small, large = both(monkeypatch, paths, "sample")
    assert list(large.values()) == list(small.values())
    assert {row.units for row in large.values()} == {1}


def test_windows_are_counted_and_dealt_as_from_memory(monkeypatch, paths):
    write_corpus(made_rows(), CORPUS, *paths)
    small, large = both(monkeypatch, paths)
    plan = [[[[IDS[0], IDS[2]], [IDS[4]]], [[IDS[6]], []]], [[[IDS[8]], [IDS[0]]], [[IDS[2]], [IDS[4]]]]]
    assert windows_to_compare(plan, large) == windows_to_compare(plan, small)
    assert counts_per_rank(plan[0], large) == counts_per_rank(plan[0], small)
    assert microbatches_of(plan[0], 1, large) == microbatches_of(plan[0], 1, small)


def test_few_rows_are_kept_and_the_one_asked_for_last_longest(monkeypatch, paths):
    write_corpus(made_rows(), CORPUS, *paths)
    _, large = both(monkeypatch, paths)
    lines = {row.id: len(json_line(row.record())) for row in made_rows()}
    monkeypatch.setattr(locked_rows, "KEPT", lines["b"] + lines["z"] + lines["y"])
    kept = large["z"]
    large["b"], large["z"], large["y"]
    assert large["z"] is kept
    assert large["x" * 300] is not None  # larger than the others together: they go, and it stays
    assert list(large._kept) == ["x" * 300]
    assert large["z"] is not kept
    assert large["z"] == kept
    assert sum(size for _, size in large._kept.values()) == large._bytes <= locked_rows.KEPT
    assert list(large.values()) == list(made_rows())
    assert large._bytes <= locked_rows.KEPT


@pytest.mark.usefixtures("large")
def test_forked_processes_read_the_same_file(paths):
    """A position that they shared would be moved under the other's feet."""
    rows = [Row(f"r{n}", "train", (n,) * 30, (0,) * 30) for n in range(400)]
    write_corpus([*rows, Row("t", "test", (1,), (1,))], CORPUS, *paths)
    read, _ = read_corpus(*paths)
    child = os.fork()
    order = random.Random(child == 0).sample(rows, 400)
    right = all(read[row.id] == row for row in order for _ in range(3)) and list(read.values())[:-1] == rows
    if child == 0:
        os._exit(not right)
    assert right
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.usefixtures("large")
def test_a_corpus_that_is_prepared_again_is_not_mixed_with_the_one_that_was_read(paths):
    write_corpus(made_rows(), CORPUS, *paths)
    read, _ = read_corpus(*paths)
    write_corpus([Row("other", "train", (1,), (1,)), Row("t", "test", (1,), (1,))], CORPUS, *paths)
    assert list(read.values()) == list(made_rows())


@pytest.mark.usefixtures("large")
def test_the_file_is_closed_when_the_rows_are_gone(paths):
    write_corpus(made_rows(), CORPUS, *paths)
    open_before = len(os.listdir("/proc/self/fd"))
    read, _ = read_corpus(*paths, "sample")
    assert read["a"].units == 1
    assert len(os.listdir("/proc/self/fd")) == open_before + 1
    del read
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_line_that_is_no_json_is_named_when_its_row_is_asked_for(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a", "split": "test"}\n{"id": "b", "tokens": NaN}\n')
    rows = LockedRows(path, Row.from_record)
    assert list(rows) == ["a", "b"]
    with pytest.raises(EvidenceError, match=r"rows\.jsonl, row 'b': not valid JSON \(NaN is not a finite number\)"):
        rows["b"]
    with pytest.raises(EvidenceError, match=r"rows\.jsonl, line 2: not valid JSON"):
        list(rows.values())


def test_an_id_is_found_wherever_it_stands_in_a_line(tmp_path):
    """As in a file that was written by another program, and locked."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"split": "train", "id": "a", "tokens": [], "labels": []}\n{ "id" : "b", "split": "test"}\n')
    assert [(row.id, row.split) for row in LockedRows(path, Row.from_record).values()] == [
        ("a", "train"),
        ("b", "test"),
    ]
    assert list(LockedRows(path, Row.from_record)) == ["a", "b"]


def test_sums_are_exact_whatever_the_order():
    """Where floats added one by one lose every 1 to 1e100."""
    rng = random.Random(1)
    values = [rng.choice((1.0, 1e100, 0.1, 1e-30)) * rng.random() for _ in range(500)]
    sums: list[float] = []
    for value in values:
        _add_exactly(sums, value)
    assert sum(map(Fraction, sums)) == sum(map(Fraction, values))
    assert len(sums) < 20
    assert Fraction(sum(values)) != sum(map(Fraction, values))
