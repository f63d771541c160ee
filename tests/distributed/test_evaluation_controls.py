"""The evaluation check on real ranks: it lets the right evaluation pass and names each known mistake."""

from typing import Any

import pytest

from ddp_tokens.checks.evaluation import check_evaluation
from ddp_tokens.controls.evaluations import WAYS
from ddp_tokens.corpora.rows import Row, supervised_in
from ddp_tokens.files import write_json
from ddp_tokens.workloads import token_labels
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.test_evaluation_on_ranks import BATCH, sequences
from tests.distributed.test_windows_without_units import small_model

NUMBER = 20


def score(world: World, name: str, rows: list[Row]) -> dict[str, Any]:
    return WAYS[name](small_model(), token_labels, rows, BATCH, world)


def verdicts_on(folder, scores, rows):
    none = {"rows": 0, "supervised": 0}
    held = {"rows": len(rows), "supervised": supervised_in(rows)}
    write_json(folder / "evaluation.json", {"test": scores})
    write_json(folder / "lock.json", {"counts": {"train": none, "validation": none, "test": held}})
    verdicts = check_evaluation(folder / "evaluation.json", folder / "lock.json")
    return {verdict.case.removeprefix("test."): verdict for verdict in verdicts}


# Name -> the verdict that must refuse it, as what; none refuses the right one.
REFUSED = {
    "evaluate": (None, None),
    "mean_of_batch_means": ("mean", "mean_of_batch_means"),
    "padded_sampler": ("rows", "padded_duplicates"),
}


@pytest.mark.parametrize("name", WAYS)
def test_20_rows_on_3_ranks(tmp_path, name):
    """Known failures evaluation-mean-of-batches and padded-sampler-counts-twice: 20 is no multiple of 3, the next is
    21; lengths are 1 to 8, so that no two batches need hold the same number of units."""
    refusing, diagnosis = REFUSED[name]
    rows = sequences(NUMBER)
    ranks = run_ranks(score, 3, tmp_path, name, rows)
    assert ranks[0] == ranks[1] == ranks[2]
    assert ranks[0]["rows"] == (21 if name == "padded_sampler" else 20)
    units = [batch["units"] for batch in ranks[0]["batches"]]
    assert len(set(units)) > 1, "with equal units both means are the same"
    verdicts = verdicts_on(tmp_path, ranks[0], rows)
    assert set(verdicts) == {"rows", "mean"}
    for case, verdict in verdicts.items():
        refused = case == refusing
        assert (verdict.expected, verdict.outcome) == ("pass", "fail" if refused else "pass")
        assert verdict.diagnosis == ((diagnosis,) if refused else ())
    assert verdicts["mean"].observed["power"] > 1e6


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_right_evaluation_passes_on_any_number_of_ranks(tmp_path, world_size):
    """21 rows, in batches of 4 for each rank: batch r, r + W, ... of whose shares are in the order of ranks."""
    rows = sequences(21)
    [scores, *others] = run_ranks(score, world_size, tmp_path, "evaluate", rows)
    assert all(other == scores for other in others)
    shares = [rows[rank::world_size] for rank in range(world_size)]
    expected = [
        (rank, len(share[start : start + BATCH]), supervised_in(share[start : start + BATCH]))
        for rank, share in enumerate(shares)
        for start in range(0, len(share), BATCH)
    ]
    assert [(batch["rank"], batch["rows"], batch["units"]) for batch in scores["batches"]] == expected
    assert {verdict.outcome for verdict in verdicts_on(tmp_path, scores, rows).values()} == {"pass"}


def test_one_rank_makes_no_padding_and_the_check_says_so(tmp_path):
    """The guard of the diagnosis: the mistake needs ranks; with one, the same sampler repeats nothing."""
    rows = sequences(NUMBER)
    [scores] = run_ranks(score, 1, tmp_path, "padded_sampler", rows)
    verdict = verdicts_on(tmp_path, scores, rows)["rows"]
    assert (verdict.outcome, verdict.diagnosis) == ("pass", ())
