"""Epochs as torch's DistributedSampler deals them, on real ranks: short and uneven windows count as all others do."""

from typing import Any

import pytest

from ddp_tokens.checks.verdict import INCONCLUSIVE, PASS
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.corpora.rows import Row, supervised
from ddp_tokens.files import read_json, read_json_lines
from ddp_tokens.plan import windows_to_compare
from tests.distributed.test_gradients_command import parity, with_gradients
from tests.distributed.tiny import SETTINGS, STEPS, Tiny, prepared

TOKENS = {"sharding": "by_epoch"}
IMAGES = {
    "sharding": "by_epoch",
    "workload": "images",
    "model": {"kind": "resnet", "stages": [4], "blocks": 1, "norm": "group", "groups": 2},
    "optimizer": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0001},
    "schedule": {"kind": "cosine"},
}


def corpus(of_images: bool, train: int) -> dict[str, Any]:
    of_tokens = {**SETTINGS["corpus"], "train": train}
    return {"kind": "images", "train": train, "validation": 0, "test": 3, "size": 8} if of_images else of_tokens


def dealt(folder: Any, of_images: bool, train: int, **more: Any) -> Tiny:
    settings = (IMAGES if of_images else TOKENS) | {"corpus": corpus(of_images, train)}
    return prepared(folder / "tiny", 2, **settings | more)


def rows_of(tiny: Tiny) -> dict[str, Row]:
    return read_corpus(tiny.at.rows, tiny.at.lock)[0]


def sizes(window: list[list[list[str]]]) -> list[list[int]]:
    return [[len(microbatch) for microbatch in of_rank] for of_rank in window]


@pytest.mark.parametrize("of_images", [False, True], ids=["tokens", "images"])
@pytest.mark.parametrize(
    ("train", "seed", "last"),
    [(11, 17, [[2], [1]]), (9, 2, [[1], [0]])],
    ids=["uneven", "a rank without rows"],
)
def test_the_gradient_of_a_short_last_window_is_that_of_the_objective(tmp_path, of_images, train, seed, last):
    """2 x 2 rows per rank and window: 11 rows are 6 and 5, 9 rows are 5 and 4."""
    tiny = with_gradients(dealt(tmp_path, of_images, train, seed=seed))
    units_of = {row_id: supervised(row) for row_id, row in rows_of(tiny).items()}
    plan = read_json(tiny.at.plan)["plan"]
    compared = windows_to_compare(plan, rows_of(tiny))["most_unequal"]
    assert sizes(plan[compared]) == last, "the short one is compared"
    verdicts = {verdict.case: verdict for verdict in parity(tiny)}
    assert len(verdicts) == 8
    assert {case: verdict.outcome for case, verdict in verdicts.items() if not verdict.as_expected} == {}
    units = [sum(units_of[i] for microbatch in of_rank for i in microbatch) for of_rank in plan[compared]]
    assert units[0] != units[1]
    for dtype in ("float64", "native"):
        verdict = verdicts[f"token_mean.{dtype}.most_unequal"]
        assert verdict.outcome == PASS
        assert verdict.observed["units_per_rank"] == units
        assert verdict.observed["values"] > 300
        assert verdicts[f"mean_of_means.{dtype}.most_unequal"].outcome == "fail"


@pytest.mark.parametrize("of_images", [False, True], ids=["tokens", "images"])
def test_with_drop_last_the_gradient_is_that_of_the_objective_too(tmp_path, of_images):
    """Of images every rank has as many then, so that a mean of means is no mistake that could be seen, and the verdict
    says so; the distance to the reference is judged all the same.
    """
    tiny = with_gradients(dealt(tmp_path, of_images, 11, drop_last=True))
    assert all(sizes(window) == [[2, 2], [2, 2]] for window in read_json(tiny.at.plan)["plan"])
    for verdict in parity(tiny):
        assert verdict.as_expected, verdict.case
        if verdict.case.startswith("token_mean"):
            assert verdict.outcome == (INCONCLUSIVE if of_images else PASS)
            assert verdict.first_difference is None
            assert verdict.observed["values"] > 300


@pytest.mark.parametrize(
    ("of_images", "train", "drop_last", "last"),
    [
        (False, 9, False, [[1], [0]]),
        (False, 9, True, [[2, 2], [2, 2]]),
        (True, 9, False, [[1], [0]]),
        (True, 13, False, [[2, 1], [2]]),
    ],
)
def test_a_resume_is_exact_over_short_windows_and_ranks_without_rows(tmp_path, of_images, train, drop_last, last):
    """9 rows in windows of 2 x 2 per rank: two windows per epoch, or one; 6 updates, interrupted after 3. With images
    DDP broadcasts BatchNorm's buffers in the forward: also where ranks have unequal numbers of microbatches.
    """
    batch_norm = {"model": IMAGES["model"] | {"norm": "batch"}} if of_images else {}
    tiny = dealt(tmp_path, of_images, train, drop_last=drop_last, **batch_norm)
    tiny.train_all()
    assert {case: v.first_difference for case, v in tiny.resume_verdicts().items() if not v.as_expected} == {}
    assert [verdict.outcome for verdict in tiny.replica_verdicts()] == [PASS] * 3
    units_of = {row_id: supervised(row) for row_id, row in rows_of(tiny).items()}
    plan = read_json(tiny.at.plan)["plan"]
    assert sizes(plan[1]) == last
    history = read_json_lines(tiny.at.run("continuous") / "history.jsonl")
    assert [record["units"] for record in history] == [
        sum(units_of[row_id] for of_rank in window for microbatch in of_rank for row_id in microbatch)
        for window in plan
    ]
    own = read_json_lines(tiny.at.run("continuous") / "ranks" / "rank-1.jsonl")
    assert len(own) == STEPS
    empty = [record for record in own if record["rows"] == [[]]]
    assert [record["step"] for record in empty] == ([2, 4, 6] if last == [[1], [0]] else [])
    assert all((record["units"], record["loss_sum"]) == (0, 0.0) for record in empty)
