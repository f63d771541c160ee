"""Each known mistake is put into the files of a right resume, and must be the only one named."""

import json

import pytest
import torch

from ddp_tokens.checkpoint import load
from ddp_tokens.checkpoint_files import make_manifest
from ddp_tokens.checks import resume_diagnosis as diagnosis
from ddp_tokens.checks.resume import check_resume
from ddp_tokens.checks.resume_diagnosis import Held
from ddp_tokens.checks.verdict import diagnosis_of
from ddp_tokens.determinism import seed_rank
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import read_json, sha256_of_json, write_json
from ddp_tokens.start import write_start
from ddp_tokens.world import World
from tests.unit.checks.conftest import IDENTITY
from tests.unit.training import new_state, start_of


def verdicts_on(runs):
    last = [runs / run / "step-0004" for run in ("continuous", "resume")]
    return {verdict.case: verdict for verdict in check_resume(runs / "interrupt" / "step-0002", *last)}


def failures(runs):
    return {case: verdict for case, verdict in verdicts_on(runs).items() if verdict.outcome == "fail"}


def resumed_state(runs):
    state = new_state(seed=99)
    load(runs / "interrupt" / "step-0002", state, IDENTITY, World())
    return state


def restart(runs, change):
    """Record the resumed run's start anew, after `change` to what was loaded; the verdict on it."""
    state = resumed_state(runs)
    change(state)
    write_start(runs / "resume" / "ranks", start_of(state), 0)
    failed = failures(runs)
    assert list(failed) == ["start_rank_0"]
    return failed["start_rank_0"]


def as_a_new_run_does(state):
    """What the runs of conftest.py do before their first update."""
    seed_rank(17, 0)
    torch.rand(3)


STARTS = {
    "generators_not_restored": (as_a_new_run_does, "torch_cpu"),
    "only_seed_restored": (lambda state: seed_rank(17, 0), "torch_cpu"),
    "drawn_from_after_restoring": (lambda state: torch.rand(5), "torch_cpu"),
    "optimizer_state_lost": (lambda state: state.optimizer.state.clear(), "optimizer.safetensors"),
    "history_not_continued": (lambda state: (state.history.clear(), state.rank_history.clear()), "history"),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_wrong_start_is_named(runs, name):
    change, part = STARTS[name]
    failed = restart(runs, change)
    assert failed.diagnosis == (name,)
    assert failed.first_difference == {"rank": 0, "state": part}


def test_an_unchanged_start_passes(runs):
    write_start(runs / "resume" / "ranks", start_of(resumed_state(runs)), 0)
    assert failures(runs) == {}


def test_the_words_that_were_drawn_are_counted(runs):
    """A float32 takes one 32-bit word, a float64 two."""
    failed = restart(runs, lambda state: (torch.rand(5), torch.rand(2, dtype=torch.float64)))
    assert failed.observed["words_drawn_after_restoring"] == 9


def zero_momentum(state):
    for entries in state.optimizer.state.values():
        entries["momentum_buffer"].zero_()


def other_weights(state):
    with torch.no_grad():
        next(state.model.parameters()).add_(1)


def other_learning_rate(state):
    state.optimizer.param_groups[0]["lr"] = 0.5


def seed_of_another_run(state):
    torch.manual_seed(3)


def other_records(state):
    state.history[0] = state.history[0] | {"units": 0}


UNKNOWN = {
    "optimizer.safetensors": zero_momentum,
    "model.safetensors": other_weights,
    "optimizer_scalars": other_learning_rate,
    "torch_cpu": seed_of_another_run,
    "history": other_records,
}


@pytest.mark.parametrize("part", UNKNOWN)
def test_a_start_that_no_known_mistake_explains_fails_without_a_name(runs, part):
    failed = restart(runs, UNKNOWN[part])
    assert failed.diagnosis == ()
    assert failed.observed["differing"] == [part]


def test_two_mistakes_are_both_named(runs):
    failed = restart(runs, lambda state: (state.optimizer.state.clear(), seed_rank(17, 0)))
    assert failed.diagnosis == ("optimizer_state_lost", "only_seed_restored")


def test_where_building_a_model_draws_nothing_two_mistakes_are_one(runs):
    """Then a new run's generators stand where the seed put them: both names, since nothing tells them apart."""
    path = runs / "continuous" / "ranks" / "start-rank-0.json"
    document = read_json(path)
    write_json(path, document | {"held": document["held"] | document["generators_when_seeded"]})
    failed = restart(runs, lambda state: seed_rank(17, 0))
    assert failed.diagnosis == ("generators_not_restored", "only_seed_restored")


def test_a_start_of_two_runs_is_no_evidence(runs):
    seed_rank(3, 0)
    write_start(runs / "elsewhere", start_of(new_state()), 0)
    (runs / "elsewhere" / "start-rank-0.safetensors").replace(runs / "resume" / "ranks" / "start-rank-0.safetensors")
    with pytest.raises(
        EvidenceError, match=r"start-rank-0\.safetensors does not belong to start-rank-0\.json beside it"
    ):
        verdicts_on(runs)


@pytest.mark.parametrize("file", ["start-rank-0.json", "start-rank-0.safetensors"])
def test_a_missing_start_is_named(runs, file):
    (runs / "resume" / "ranks" / file).unlink()
    with pytest.raises(EvidenceError, match=f"{file} does not exist"):
        verdicts_on(runs)


def edit(directory, file, change):
    """Change a file of a checkpoint; the manifest then fits again."""
    document = json.loads((directory / file).read_text())
    change(document)
    write_json(directory / file, document)
    write_json(directory / "manifest.json", make_manifest(directory, int(directory.name[-4:]), 1))


IDENTITIES = {
    "rows.jsonl": ("another digest", ("another_corpus",)),
    "seed": (18, ()),
    "torch": ("9.9", ()),
}


@pytest.mark.parametrize("run", ["interrupt/step-0002", "resume/step-0004", "continuous/step-0004"])
@pytest.mark.parametrize("field", IDENTITIES)
def test_a_run_of_another_identity(runs, run, field):
    """In whichever run: also a field that the others do not have."""
    value, named = IDENTITIES[field]
    edit(runs / run, "common.json", lambda common: common["identity"].update({field: value}))
    failed = failures(runs)
    assert list(failed) == ["identity"]
    assert failed["identity"].diagnosis == named
    difference = failed["identity"].first_difference
    assert difference["fields"] == [field]
    assert [values for values in difference.values() if values == {field: value}] == [{field: value}]


def take_rows_of(shift):
    """Update s after the resume takes the rows of update s + shift of the same run."""

    def change(rank_part):
        rows = {record["step"]: record["rows"] for record in rank_part["history"]}
        for record in rank_part["history"][2:]:
            record["rows"] = rows.get(record["step"] + shift, rows[1])

    return change


def reverse_rows(rank_part):
    rank_part["history"][3]["rows"][0].reverse()


ROWS = {
    "position_off_by_one": (take_rows_of(1), 3),
    "position_reset": (take_rows_of(-2), 3),
    None: (reverse_rows, 4),
}


@pytest.mark.parametrize("name", ROWS)
def test_other_rows_after_the_resume(runs, name):
    change, step = ROWS[name]
    edit(runs / "resume" / "step-0004", "rank-0.json", change)
    failed = failures(runs)
    assert list(failed) == ["rows_rank_0", "rank_0"]
    assert diagnosis_of(failed.values()) == failed["rows_rank_0"].diagnosis == ((name,) if name else ())
    difference = failed["rows_rank_0"].first_difference
    assert (difference["rank"], difference["step"]) == (0, step)
    assert difference["resumed"] != difference["continuous"]


def test_rows_before_the_resume_are_not_this_verdicts(runs):
    edit(runs / "resume" / "step-0004", "rank-0.json", lambda part: part["history"][0]["rows"][0].reverse())
    assert list(failures(runs)) == ["rank_0"]


def test_an_update_that_was_not_made(runs):
    edit(runs / "resume" / "step-0004", "rank-0.json", lambda part: part["history"].pop())
    failed = failures(runs)["rows_rank_0"]
    assert (failed.first_difference["step"], failed.first_difference["resumed"], failed.diagnosis) == (4, None, ())


# The rules as plain values, where files of two ranks, or of a GPU, would be needed.


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
