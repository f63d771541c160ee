"""The rules as plain values; with the files of a resume they are in test_resume_ranks.py."""

import pytest
import torch

from ddp_tokens.checks import resume_diagnosis as diagnosis
from ddp_tokens.checks.resume_diagnosis import Held
from ddp_tokens.files import sha256_of_json


def records(*steps):
    return [{"step": step} for step in steps]


STATE = torch.zeros(16, dtype=torch.uint8).numpy()


def held(generators=("p", "n", "t"), rank_history=(), state=STATE, tensors=1, **changes):
    """`generators`: digests of Python's, NumPy's and torch's. `state`: torch's, whole. `tensors`: the optimizer's."""
    digests = dict(zip(("python", "numpy", "torch_cpu"), generators, strict=True))
    histories = {"history": sha256_of_json([]), "rank_history": sha256_of_json(list(rank_history))}
    counts = {"history": 0, "rank_history": len(rank_history)}
    return Held(digests | histories | changes, {"torch_cpu": state}, tensors, counts)


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


def test_what_differs_comes_in_the_order_of_the_checkpoint_and_then_of_the_start():
    checkpoint = Held({"weights": "1", "same": "2", "moments": "3"}, {}, 0, {})
    start = Held({"more": "4", "moments": "9", "same": "2", "weights": "9"}, {}, 0, {})
    assert diagnosis.differing(start, checkpoint) == ["weights", "moments", "more"]
    assert diagnosis.differing(start, start) == []


def test_a_part_that_one_side_lacks_differs():
    assert diagnosis.differing(held(), held(torch_cuda="t")) == ["torch_cuda"]
    assert diagnosis.differing(held(torch_cuda="t"), held()) == ["torch_cuda"]


@pytest.mark.parametrize(
    ("before", "after", "digest", "expected"),
    [
        (3, 0, "of nothing", ("optimizer_state_lost",)),
        (1, 0, "of nothing", ("optimizer_state_lost",)),
        (3, 1, "of others", ()),
        (0, 0, "of others", ()),
        (3, 0, "of three", ()),  # equal digests: nothing was lost, whatever was counted
    ],
)
def test_an_optimizers_state_is_lost_when_nothing_is_left_of_it(before, after, digest, expected):
    part = "optimizer.safetensors"
    assert named(held(tensors=after, **{part: digest}), held(tensors=before, **{part: "of three"})) == expected


@pytest.mark.parametrize(("extra", "name"), [("schedule", "schedule_lost"), ("scaler", "scaler_lost")])
@pytest.mark.parametrize(
    ("start", "checkpoint", "new_run", "lost"),
    [
        ("new", "moved", "new", True),
        (None, "moved", "new", True),
        (None, "moved", None, True),
        ("moved", "moved", "new", False),
        ("new", "new", "new", False),  # nothing had moved, so nothing could be lost
        ("another", "moved", "new", False),
        ("new", None, "new", False),  # the checkpoint holds none
    ],
)
def test_an_extra_is_lost_when_it_is_gone_or_as_of_a_new_run(extra, name, start, checkpoint, new_run, lost):
    def holding(state):
        return {} if state is None else {f"extras.{extra}": state}

    assert named(held(**holding(start)), held(**holding(checkpoint)), new_run=holding(new_run)) == (name,) * lost


NEW = {"python": "p9", "numpy": "n9", "torch_cpu": "t9"}


@pytest.mark.parametrize("generators", [("p9", "n9", "t9"), ("p", "n", "t9"), ("p9", "n", "t")], ids=str)
def test_generators_of_a_new_run_or_as_seeded_are_named(generators):
    assert named(held(generators), held(), new_run=NEW) == ("generators_not_restored",)
    assert named(held(generators), held(), seeded=NEW) == ("only_seed_restored",)
    assert named(held(generators), held(), new_run=NEW, seeded=NEW) == ("generators_not_restored", "only_seed_restored")
    assert named(held(generators), held()) == ()


def test_generators_of_which_one_is_of_no_new_run_are_not_named():
    for generators in (("p9", "n9", "other"), ("other", "n9", "t9")):
        assert named(held(generators), held(), new_run=NEW, seeded=NEW) == ()
    assert named(held(("p9", "n9", "t9")), held(), new_run={"python": "p9", "numpy": "n9"}) == ()


def test_a_generator_that_nobody_held_is_not_one_of_a_new_run():
    """The checkpoint is of a GPU, the start and the new run are not."""
    of_gpu = held(torch_cuda="t")
    assert named(held(), of_gpu, new_run={"python": "p9"}, seeded={}) == ()
    assert diagnosis.differing(held(), of_gpu) == ["torch_cuda"]


def states(draw):
    """torch's state before and after `draw`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(17)
        before = torch.get_rng_state().numpy()
        draw()
        return before, torch.get_rng_state().numpy()


def of_drawn(draw, generators=("p", "n", "t1"), new_run=(), seeded=(), others=()):
    before, after = states(draw)
    start, histories = held(generators, state=after), {"history": [], "rank_history": []}
    return diagnosis.of_start(start, held(state=before), histories, others, dict(new_run), dict(seeded))


def test_numbers_drawn_after_restoring_are_counted():
    """Five float32 take five words."""
    found = of_drawn(lambda: torch.rand(5))
    assert found == (("drawn_from_after_restoring",), {"words_drawn_after_restoring": 5})


def test_a_draw_is_named_only_where_nothing_else_explains_the_generator():
    at_t1 = {"torch_cpu": "t1"}
    assert of_drawn(lambda: torch.rand(5), new_run=at_t1) == (("generators_not_restored",), {})
    assert of_drawn(lambda: torch.rand(5), seeded=at_t1) == (("only_seed_restored",), {})
    assert of_drawn(lambda: torch.rand(5), others=[held(("p", "n", "t1"))]) == (("rank_files_swapped",), {})


def test_a_draw_is_named_only_where_torchs_generator_alone_moved():
    assert of_drawn(lambda: torch.rand(5), ("p1", "n", "t1")) == ((), {})
    assert of_drawn(lambda: torch.rand(5), ("p", "n", "t")) == ((), {})


@pytest.mark.parametrize("draw", [lambda: None, lambda: torch.manual_seed(18)], ids=["nothing", "another seed"])
def test_a_state_that_no_draw_leads_to_is_not_named(draw):
    assert of_drawn(draw) == ((), {})


def test_another_corpus_is_told_by_its_digest():
    assert diagnosis.of_identity(["batch", "rows.jsonl"]) == ("another_corpus",)
    assert diagnosis.of_identity(["batch", "plan.json"]) == diagnosis.of_identity([]) == ()


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


@pytest.mark.parametrize("ours", [records(1, 2), records(1), records(0, 1, 2)], ids=["equal", "ends early", "longer"])
def test_a_history_that_lacks_no_first_record_is_not_named(ours):
    assert diagnosis.of_history(ours, records(1, 2)) == ()


def test_a_position_is_judged_as_far_as_there_are_rows():
    """Interrupted at 1: the next update's rows, and those from the beginning, are different rows."""
    theirs = {1: "a", 2: "b", 3: "c", 4: "d"}
    assert diagnosis.of_rows({2: "c", 3: "d", 4: "z"}, theirs, 1) == ("position_off_by_one",)
    assert diagnosis.of_rows({2: "a", 3: "b", 4: "c"}, theirs, 1) == ("position_reset",)
    assert diagnosis.of_rows({2: "c", 3: "b", 4: "z"}, theirs, 1) == ()
    assert diagnosis.of_rows({4: "z"}, theirs, 3) == ()  # no later update to compare with
    assert diagnosis.of_rows({}, theirs, 3) == ()


def test_weights_that_differ_by_rounding_alone_were_summed_in_another_order():
    """Up to 1e-4 of the largest weight, and only where nothing else explains it."""
    by_rounding = ("summed_in_another_order",)
    assert diagnosis.of_parameters(1e-9, 1.0, causes_excluded=True) == by_rounding
    assert diagnosis.of_parameters(1e-4, 1.0, causes_excluded=True) == by_rounding
    assert diagnosis.of_parameters(1.5e-4, 2.0, causes_excluded=True) == by_rounding
    assert diagnosis.of_parameters(1.01e-4, 1.0, causes_excluded=True) == ()
    assert diagnosis.of_parameters(0.0, 1.0, causes_excluded=True) == ()
    assert diagnosis.of_parameters(1e-9, 1.0, causes_excluded=False) == ()
