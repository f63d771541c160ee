"""The rules as plain values; with the files of a resume they are in test_resume_ranks.py."""

import pytest
import torch

from ddp_tokens.checks import resume_diagnosis as diagnosis
from ddp_tokens.checks.resume_diagnosis import Held
from ddp_tokens.files import sha256_of_json


def records(*steps):
    return [{"step": step} for step in steps]


def held(generators=("p", "n", "t"), rank_history=(), **changes):
    """`generators`: digests of Python's, NumPy's and torch's."""
    digests = dict(zip(("python", "numpy", "torch_cpu"), generators, strict=True))
    histories = {"history": sha256_of_json([]), "rank_history": sha256_of_json(list(rank_history))}
    counts = {"history": 0, "rank_history": len(rank_history)}
    return Held(digests | histories | changes, {"torch_cpu": torch.zeros(16, dtype=torch.uint8).numpy()}, 1, counts)


def named(start, checkpoint, *others, of_rank=(), new_run=(), seeded=()):
    histories = {"history": [], "rank_history": list(of_rank)}
    return diagnosis.of_start(start, checkpoint, histories, others, dict(new_run), dict(seeded))[0]


OURS, OTHERS = held(("p0", "n0", "t0"), records(1, 2)), held(("p1", "n1", "t1"), records(3, 4))
HALF = {
    "everything of another rank": OTHERS,
    "its generators": held(("p1", "n1", "t1"), records(1, 2)),
    "its torch generator": held(("p0", "n0", "t1"), records(1, 2)),
    "its history": held(("p0", "n0", "t0"), records(3, 4)),
}


@pytest.mark.parametrize("what", HALF)
def test_what_is_of_another_rank_is_named(what):
    assert named(HALF[what], OURS, OTHERS, of_rank=records(1, 2)) == ("rank_files_swapped",)
    assert named(HALF[what], OURS, of_rank=records(1, 2)) == ()
    assert named(OURS, OURS, OTHERS, of_rank=records(1, 2)) == ()


def test_one_generator_of_another_rank_and_one_of_nobody_is_no_known_mistake():
    assert named(held(("p9", "n0", "t1"), records(1, 2)), OURS, OTHERS, of_rank=records(1, 2)) == ()


def test_a_generator_of_the_gpu_that_was_not_restored():
    """The CPU's was: equality of what differs decides."""
    ours, start = held(torch_cuda="restored"), held(torch_cuda="as of a new run")
    new_run = {"python": "p9", "numpy": "n9", "torch_cpu": "t9", "torch_cuda": "as of a new run"}
    assert named(start, ours, new_run=new_run) == ("generators_not_restored",)
    assert named(held(torch_cuda="somewhere else"), ours, new_run=new_run) == ()


def test_a_part_that_one_side_lacks_differs():
    assert diagnosis.differing(held(), held(torch_cuda="t")) == ["torch_cuda"]
    assert diagnosis.differing(held(torch_cuda="t"), held()) == ["torch_cuda"]


@pytest.mark.parametrize(
    ("start", "expected"),
    [(records(2, 3), True), (records(3), True), ([], True), (records(1, 2, 3), False), (records(1, 2), False)],
)
def test_a_history_lacks_its_first_records(start, expected):
    found = named(held(rank_history=start), held(rank_history=records(1, 2, 3)), of_rank=records(1, 2, 3))
    assert found == (("history_not_continued",) if expected else ())


def test_an_empty_history_at_the_end_says_nothing():
    assert diagnosis.of_history([], records(1, 2)) == ()
    assert diagnosis.of_history(records(2), records(1, 2)) == ("history_not_continued",)


def test_a_position_is_judged_as_far_as_there_are_rows():
    """Interrupted at 1: the next update's rows, and those from the beginning, are different rows."""
    theirs = {1: "a", 2: "b", 3: "c", 4: "d"}
    assert diagnosis.of_rows({2: "c", 3: "d", 4: "z"}, theirs, 1) == ("position_off_by_one",)
    assert diagnosis.of_rows({2: "a", 3: "b", 4: "c"}, theirs, 1) == ("position_reset",)
    assert diagnosis.of_rows({2: "c", 3: "b", 4: "z"}, theirs, 1) == ()
    assert diagnosis.of_rows({4: "z"}, theirs, 3) == ()  # no later update to compare with
    assert diagnosis.of_rows({}, theirs, 3) == ()
