import pytest

from ddp_tokens.checks.meanings import MEANINGS
from ddp_tokens.checks.window import CRITERION, check_window, judge
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import sha256, write_json


def trace(reductions, rank=0, world_size=2, gradients=None, moved=None, at_end=False, microbatches=None):
    """One entry per forward: the buckets reduced after it."""
    number = len(reductions)
    gradients = [index > 0 for index in range(number)] if gradients is None else gradients
    moved = [False] * number if moved is None else moved
    forwards = [
        {"reductions": buckets, "gradients": present, "moved": has_moved}
        for buckets, present, has_moved in zip(reductions, gradients, moved, strict=True)
    ]
    about = {"rank": rank, "world_size": world_size, "microbatches": microbatches or number}
    return about | {"forwards": forwards, "moved": at_end}


def verdict_on(*args, **kwargs):
    return judge("case", [trace(*args, rank=rank, **kwargs) for rank in (0, 1)], 2, {})


RIGHT = [[], [], [0, 1]]


def test_one_reduction_per_bucket_after_the_last_microbatch_passes():
    verdict = verdict_on(RIGHT)
    assert (verdict.outcome, verdict.first_difference, verdict.diagnosis) == ("pass", None, ())
    reductions = [[0, 0, 2], [0, 0, 2]]
    assert verdict.observed == {"microbatches": [3, 3], "reductions": reductions, "error": 0, "tolerance": 0}
    assert verdict.criterion == CRITERION


def test_one_microbatch_reduces_at_once():
    assert verdict_on([[0]]).outcome == "pass"


def test_buckets_may_come_in_any_order():
    assert verdict_on([[], [1, 0]]).outcome == "pass"


WRONG = {
    "every microbatch reduces": (
        {"reductions": [[0], [0], [0]]},
        "microbatch 0 of 3 is reduced",
        ("reduced_in_every_microbatch",),
    ),
    "a forward too many arms the reducer": (
        {"reductions": [[], [0], [], [0]], "microbatches": 3, "gradients": [False, False, True, True]},
        "4 forward passes for 3 microbatches",
        ("reducer_armed_early",),
    ),
    "a forward too many and nothing more": (
        {"reductions": [[], [], [], [0]], "microbatches": 3, "gradients": [False, False, True, True]},
        "4 forward passes for 3 microbatches",
        (),
    ),
    "a forward too many arms the reducer for the microbatch before the last": (
        {"reductions": [[], [], [0], [0]], "microbatches": 3, "gradients": [False, False, True, True]},
        "4 forward passes for 3 microbatches",
        ("reducer_armed_early",),
    ),
    "a microbatch too few": ({"reductions": [[], [0]], "microbatches": 3}, "2 forward passes for 3 microbatches", ()),
    "nothing is reduced": ({"reductions": [[], [], []]}, "the last microbatch reduces buckets []", ("never_reduced",)),
    "a bucket is reduced twice": ({"reductions": [[], [0, 0]]}, "the last microbatch reduces buckets [0, 0]", ()),
    "a bucket is left out": ({"reductions": [[], [0, 2]]}, "the last microbatch reduces buckets [0, 2]", ()),
    "a bucket of the only microbatch is left out": (
        {"reductions": [[0, 2]]},
        "the last microbatch reduces buckets [0, 2]",
        (),
    ),
    "one microbatch reduces early": ({"reductions": [[], [0], [0]]}, "microbatch 1 of 3 is reduced", ()),
    "gradients are cleared inside": (
        {"reductions": RIGHT, "gradients": [False, False, True]},
        "gradients are not cleared once, before the first microbatch",
        ("gradients_cleared_inside",),
    ),
    "gradients are not cleared before": (
        {"reductions": RIGHT, "gradients": [True, True, True]},
        "gradients are not cleared once, before the first microbatch",
        (),
    ),
    "weights move inside": (
        {"reductions": RIGHT, "moved": [False, True, True], "at_end": True},
        "a weight moves inside the window",
        ("weights_updated_inside",),
    ),
    "weights move after the last microbatch": (
        {"reductions": RIGHT, "at_end": True},
        "a weight moves inside the window",
        ("weights_updated_inside",),
    ),
    "weights move and every microbatch reduces": (
        {"reductions": [[0], [0]], "moved": [False, True], "at_end": True},
        "microbatch 0 of 2 is reduced",
        ("weights_updated_inside",),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_and_named(name):
    changes, problem, diagnosis = WRONG[name]
    verdict = verdict_on(**changes)
    assert verdict.outcome == "fail"
    assert verdict.first_difference == {"rank": 0, "problem": problem}
    assert verdict.diagnosis == diagnosis
    assert set(diagnosis) <= set(MEANINGS)


@pytest.mark.parametrize(
    ("reductions", "error"),
    # Of two ranks alike: reductions beside one per bucket.
    [([[0], [0], [0]], 2 * 2), ([[], [], []], 2 * 1), ([[], [0, 1, 0]], 2 * 1), (RIGHT, 0)],
)
def test_the_error_counts_reductions_too_many_or_too_few(reductions, error):
    assert verdict_on(reductions).observed["error"] == error


def test_the_first_rank_with_a_problem_is_named():
    verdict = judge("case", [trace(RIGHT, 0), trace([[], [0], [0]], 1)], 2, {})
    assert verdict.first_difference == {"rank": 1, "problem": "microbatch 1 of 3 is reduced"}


def test_a_rank_without_a_trace_is_no_pass():
    verdict = judge("case", [trace(RIGHT, 0), trace(RIGHT, 2)], 3, {})
    assert (verdict.outcome, verdict.first_difference) == ("fail", {"rank": 1, "problem": "no trace"})


def test_one_rank_needs_no_other():
    assert judge("case", [trace(RIGHT, 0)], 1, {}).outcome == "pass"
    verdict = judge("case", [trace(RIGHT, 0)], 2, {})
    assert (verdict.outcome, verdict.first_difference) == ("fail", {"rank": 1, "problem": "no trace"})


def test_ranks_may_have_different_numbers_of_microbatches():
    assert judge("case", [trace([[], [0]], 0), trace([*RIGHT[:2], [0]], 1)], 2, {}).outcome == "pass"


def test_traces_are_read_from_a_folder(tmp_path):
    for rank in (0, 1):
        write_json(tmp_path / f"rank-{rank}.json", trace(RIGHT, rank))
    [verdict] = check_window(tmp_path, 2)
    assert (verdict.case, verdict.expected, verdict.outcome) == ("one_window", "pass", "pass")
    paths = [tmp_path / f"rank-{rank}.json" for rank in (0, 1)]
    assert verdict.evidence == {str(path): sha256(path) for path in paths}


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(EvidenceError, match=f"{tmp_path} holds no rank-R.json: run gradients again"):
        check_window(tmp_path, 2)


@pytest.mark.parametrize(
    "change", [{"moved": None}, {"forwards": None}, {"forwards": [{"moved": False}]}, {"forwards": 3}]
)
def test_what_is_no_record_of_a_window_is_named(tmp_path, change):
    record = {name: value for name, value in (trace(RIGHT) | change).items() if value is not None}
    write_json(tmp_path / "rank-0.json", record)
    with pytest.raises(EvidenceError, match=r"rank-0\.json is no record of a window: run gradients again"):
        check_window(tmp_path, 1)


def test_the_experiment_says_how_many_ranks_there_are(tmp_path):
    """Not the traces: one of two ranks, which says that it was alone, is no pass."""
    write_json(tmp_path / "rank-0.json", trace(RIGHT, world_size=1))
    [verdict] = check_window(tmp_path, 2)
    assert verdict.first_difference == {"rank": 1, "problem": "no trace"}
