"""What one rank started from, consumed and ended with: each difference is put into the files of a right resume."""

import pytest
import torch

from ddp_tokens.checkpoint import load
from ddp_tokens.checks.verdict import diagnosis_of
from ddp_tokens.determinism import seed_rank
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import read_json, write_json
from ddp_tokens.start import write_start
from ddp_tokens.world import World
from tests.unit.checks.conftest import IDENTITY
from tests.unit.checks.resumes import (
    checkpoint,
    edit_json,
    edit_tensors,
    failures,
    flip_one_bit,
    nudge,
    only_failure,
    verdicts_of,
)
from tests.unit.training import new_state, start_of


def resumed_state(runs):
    state = new_state(seed=99)
    load(checkpoint(runs, "interrupt"), state, IDENTITY, World())
    return state


def restart(runs, change):
    """Record the resumed run's start anew, after `change` to what was loaded; the verdict on it."""
    state = resumed_state(runs)
    change(state)
    write_start(runs / "resume" / "ranks", start_of(state), 0)
    return only_failure(runs, "start_rank_0")


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
        verdicts_of(runs)


@pytest.mark.parametrize("file", ["start-rank-0.json", "start-rank-0.safetensors"])
def test_a_missing_start_is_named(runs, file):
    (runs / "resume" / "ranks" / file).unlink()
    with pytest.raises(EvidenceError, match=f"{file} does not exist"):
        verdicts_of(runs)


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
    edit_json(checkpoint(runs, "resume"), "rank-0.json", change)
    failed = failures(runs)
    assert list(failed) == ["rows_rank_0", "rank_0"]
    assert diagnosis_of(failed.values()) == failed["rows_rank_0"].diagnosis == ((name,) if name else ())
    difference = failed["rows_rank_0"].first_difference
    assert (difference["rank"], difference["step"]) == (0, step)
    assert difference["resumed"] != difference["continuous"]


def test_rows_before_the_resume_are_not_this_verdicts(runs):
    edit_json(checkpoint(runs, "resume"), "rank-0.json", lambda part: part["history"][0]["rows"][0].reverse())
    assert list(failures(runs)) == ["rank_0"]


def test_an_update_that_was_not_made(runs):
    edit_json(checkpoint(runs, "resume"), "rank-0.json", lambda part: part["history"].pop())
    failed = failures(runs)["rows_rank_0"]
    assert (failed.first_difference["step"], failed.first_difference["resumed"], failed.diagnosis) == (4, None, ())


def test_the_torch_generator(runs):
    edit_tensors(checkpoint(runs, "resume"), "rank-0.safetensors", lambda tensors: flip_one_bit(tensors, "torch_cpu"))
    difference = only_failure(runs, "rank_0").first_difference
    assert (difference["rank"], difference["parameter"]) == (0, "torch_cpu")


DIFFERENT_STATES = {
    "python": lambda state: state["python"][0].__setitem__(0, 0),
    "numpy": lambda state: state["numpy"].__setitem__(2, 1),
    "history": lambda state: nudge(state["history"][3]),
}


@pytest.mark.parametrize("field", DIFFERENT_STATES)
def test_other_generators_and_records_at_the_end(runs, field):
    edit_json(checkpoint(runs, "resume"), "rank-0.json", DIFFERENT_STATES[field])
    assert only_failure(runs, "rank_0").first_difference == {"rank": 0, "state": field}
