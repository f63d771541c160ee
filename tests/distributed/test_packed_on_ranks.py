"""Packed rows with prompts and weights, in a folder of files, on two real ranks: parity, and an exact resume."""

import random
from pathlib import Path

import pytest

from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.corpora.rows import UNSUPERVISED
from ddp_tokens.files import read_json
from ddp_tokens.normalization import TOKEN_MEAN
from tests.distributed.test_gradients_command import parity, with_gradients
from tests.distributed.tiny import Tiny, prepared
from tests.helpers import write_lines

VOCABULARY, LONGEST = 6, 5
SPLITS = (("train", 48), ("validation", 5), ("test", 9))


def folder_of_rows(folder: Path) -> Path:
    """One file per split. Rows of 1 to 4 sequences, most of which have a prompt; each third row is not packed."""
    rng = random.Random(5)
    folder.mkdir(parents=True)
    for split, number in SPLITS:
        rows = []
        for index in range(number):
            lengths = [rng.randint(2, LONGEST) for _ in range(1 if index % 3 == 0 else 1 + index % 4)]
            prompts = [rng.randint(0, length - 1) for length in lengths]
            tokens = [rng.randrange(VOCABULARY) for _ in range(sum(lengths))]
            row = {"id": f"{split}-{index}", "split": split, "tokens": tokens}
            row["weights"] = [rng.choice((0.25, 0.5, 1, 2)) for _ in tokens]
            if index % 3:
                starts = [sum(lengths[:place]) for place in range(len(lengths))]
                row |= {"starts": starts, "prompt": prompts}
            else:
                row["prompt"] = prompts[0]
            rows.append(row)
        write_lines(folder / f"{split}.jsonl", *rows)
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Tiny:
    folder = tmp_path_factory.mktemp("packed") / "tiny"
    corpus = {"path": str(folder_of_rows(folder / "rows")), "labels": "next_token"}
    made = prepared(folder, 2, workload="causal_lm", corpus=corpus)
    made.train_all()
    return with_gradients(made)


def test_the_corpus_is_packed_and_masked(tiny):
    """A sequence ends before the next starts, without a label; the model has as many positions as its longest."""
    rows, lock = read_corpus(tiny.at.rows, tiny.at.lock)
    assert lock["shape"] == {"vocabulary": VOCABULARY, "classes": VOCABULARY, "positions": LONGEST}
    assert max(len(row.tokens) for row in rows.values()) > 2 * LONGEST
    packed = [row for row in rows.values() if row.starts and len(row.starts) > 1]
    assert len(packed) > 20
    assert {row.labels[start - 1] for row in packed for start in row.starts[1:]} == {UNSUPERVISED}
    sequences = sum(len(row.starts or (0,)) for row in rows.values())
    supervised = sum(of["supervised"] for of in lock["counts"].values())
    tokens = sum(of["tokens"] for of in lock["counts"].values())
    assert 0 < supervised < tokens - sequences  # prompts took some more


def test_the_gradient_is_the_references_in_both_dtypes_and_a_mean_of_means_is_not(tiny):
    verdicts = parity(tiny)
    assert len(verdicts) == 8
    assert [verdict.first_difference for verdict in verdicts if not verdict.as_expected] == []
    for verdict in verdicts:
        assert verdict.outcome == ("pass" if verdict.case.startswith(TOKEN_MEAN) else "fail")


def test_a_resumed_run_is_the_continuous_one(tiny):
    assert {case: of.first_difference for case, of in tiny.resume_verdicts().items() if of.outcome != "pass"} == {}
    assert [verdict.outcome for verdict in tiny.replica_verdicts()] == ["pass"] * 3


def test_no_window_is_without_a_packed_row(tiny):
    """Otherwise the tests above would prove nothing about them."""
    rows, _ = read_corpus(tiny.at.rows, tiny.at.lock)
    for window in read_json(tiny.at.plan)["plan"]:
        ids = [row_id for of_rank in window for microbatch in of_rank for row_id in microbatch]
        assert any(rows[row_id].starts for row_id in ids)
