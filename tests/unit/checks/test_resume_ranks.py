"""What one rank started from, consumed and ended with: each difference is put into the files of a right resume."""

import numpy
import pytest
import torch
from safetensors.numpy import save_file

from ddp_tokens.checkpoint import load
from ddp_tokens.checks.resume_ranks import same_rows, same_start
from ddp_tokens.checks.verdict import diagnosis_of
from ddp_tokens.determinism import seed_rank
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, read_json, write_json
from ddp_tokens.start import write_start
from ddp_tokens.start_files import generator_digests, held_digests
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


def paths_below(runs, *names):
    return digests(runs / name for name in names)


def test_a_right_rank_passes_in_three_verdicts(runs):
    verdicts = verdicts_of(runs)
    start, rows, end = (verdicts[case] for case in ("start_rank_0", "rows_rank_0", "rank_0"))
    for verdict in (start, rows, end):
        assert (verdict.expected, verdict.outcome, verdict.first_difference, verdict.diagnosis) == (
            "pass",
            "pass",
            None,
            (),
        )
    assert start.observed == {"parts": 8, "differing": []}
    assert rows.observed == {"updates": 2, "differing": 0}
    assert end.observed == {"windows": 4}
    assert start.criterion == (
        "before its first update after the resume, this rank holds what the interrupted checkpoint holds: parameters, "
        "optimizer state, histories and generators, bit for bit"
    )
    assert "in every update after the resume" in rows.criterion
    assert "generator states and the rows" in end.criterion


def test_each_verdict_says_what_it_compared(runs):
    verdicts = verdicts_of(runs)
    assert verdicts["start_rank_0"].evidence == paths_below(
        runs,
        *(
            f"interrupt/step-0002/{name}"
            for name in ("common.json", "manifest.json", "rank-0.json", "rank-0.safetensors")
        ),
        *(f"resume/ranks/start-rank-0.{kind}" for kind in ("json", "safetensors")),
    )
    of_rank = [f"{run}/step-0004/rank-0.json" for run in ("continuous", "resume")]
    assert verdicts["rows_rank_0"].evidence == paths_below(runs, *of_rank)
    tensors = [f"{run}/step-0004/rank-0.safetensors" for run in ("continuous", "resume")]
    assert verdicts["rank_0"].evidence == paths_below(runs, *of_rank, *tensors)


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


def test_a_resume_without_an_update_after_it_proves_nothing(runs):
    last = checkpoint(runs, "continuous")
    verdict = same_rows(0, last, checkpoint(runs, "resume"), last)
    assert (verdict.outcome, verdict.observed) == ("fail", {"updates": 0, "differing": 0})
    assert (verdict.first_difference, verdict.diagnosis) == (None, ())


def test_rows_that_are_the_same_in_every_update_pass_and_name_nothing(runs):
    """They are also those of the update after, and of the one that many before."""

    def same_in_all(part):
        for record in part["history"]:
            record["rows"] = [["one"]]

    for run in ("continuous", "resume"):
        edit_json(checkpoint(runs, run), "rank-0.json", same_in_all)
    verdict = verdicts_of(runs)["rows_rank_0"]
    assert (verdict.outcome, verdict.observed["updates"], verdict.diagnosis) == ("pass", 2, ())


def test_updates_are_told_by_number_whatever_their_order(runs):
    """The first one that differs is named: 3, though 4 is recorded before it."""

    def swap(part):
        part["history"][2:] = [record | {"rows": [["another"]]} for record in reversed(part["history"][2:])]

    edit_json(checkpoint(runs, "resume"), "rank-0.json", swap)
    verdict = failures(runs)["rows_rank_0"]
    assert (verdict.first_difference["step"], verdict.observed) == (3, {"updates": 2, "differing": 2})
    assert verdict.first_difference["resumed"] == [["another"]]
    wanted = read_json(checkpoint(runs, "continuous") / "rank-0.json")["history"][2]
    assert (verdict.first_difference["continuous"], wanted["step"]) == (wanted["rows"], 3)


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


@pytest.mark.parametrize("run", ["resume", "continuous"])
def test_a_state_that_only_one_side_holds(runs, run):
    edit_json(checkpoint(runs, run), "rank-0.json", lambda part: part.update({"another": 1}))
    assert only_failure(runs, "rank_0").first_difference == {"rank": 0, "state": "another"}


def test_of_tensors_and_states_a_tensor_is_named_first(runs):
    last = checkpoint(runs, "resume")
    edit_json(last, "rank-0.json", DIFFERENT_STATES["numpy"])
    assert only_failure(runs, "rank_0").first_difference == {"rank": 0, "state": "numpy"}
    edit_json(last, "rank-0.json", DIFFERENT_STATES["history"])
    assert only_failure(runs, "rank_0").first_difference == {"rank": 0, "state": "history"}
    edit_tensors(last, "rank-0.safetensors", lambda tensors: flip_one_bit(tensors, "torch_cpu"))
    assert only_failure(runs, "rank_0").first_difference["parameter"] == "torch_cpu"


# Two ranks need no training: of their generators only the digests are compared.


def torch_state(*values):
    return {"torch_cpu": numpy.array(values, numpy.uint8)}


def rank_part(rank):
    return {"python": [rank], "numpy": [rank], "history": [{"step": 1, "rows": [rank]}]}


COMMON = {"optimizer": {"lr": 0.5}, "history": [{"step": 1}], "extras": {}}


def write_two_ranks(folder):
    """A checkpoint of two ranks, whose generators are 0 and 1; a new run's are 10 and 11."""
    write_json(
        folder / "manifest.json", {"step": 1, "sha256": {"model.safetensors": "m", "optimizer.safetensors": "o"}}
    )
    write_json(folder / "common.json", COMMON)
    save_file(torch_state(0), folder / "optimizer.safetensors")
    for rank in (0, 1):
        write_json(folder / f"rank-{rank}.json", rank_part(rank))
        save_file(torch_state(rank), folder / f"rank-{rank}.safetensors")


def write_start_of(folder, rank, generators, history):
    """`generators`, `history`: the number of the rank whose own they are."""
    part = rank_part(generators) | {"history": rank_part(history)["history"]}
    held = held_digests("m", "o", COMMON, part, generator_digests(part, torch_state(generators)))
    document = {"held": held, "generators_when_seeded": {}, "tensors": {"optimizer.safetensors": 1}}
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    write_json(folder / "ranks" / f"start-rank-{rank}.json", document | {"records": {"history": 1, "rank_history": 1}})
    save_file(torch_state(generators), folder / "ranks" / f"start-rank-{rank}.safetensors")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("starts_as", ["itself", "the other", "a new run", "the other's new run"])
def test_what_a_rank_of_two_starts_from(tmp_path, rank, starts_as):
    write_two_ranks(tmp_path / "interrupt" / "step-0001")
    other = 1 - rank
    generators, history, named, first = {
        "itself": (rank, rank, (), None),
        "the other": (other, other, ("rank_files_swapped",), "rank_history"),
        "a new run": (10 + rank, rank, ("generators_not_restored",), "python"),
        "the other's new run": (10 + other, rank, (), "python"),
    }[starts_as]
    write_start_of(tmp_path / "resume", rank, generators, history)
    for each in (0, 1):
        write_start_of(tmp_path / "continuous", each, 10 + each, each)
    runs = (
        tmp_path / "interrupt" / "step-0001",
        tmp_path / "resume" / "step-0002",
        tmp_path / "continuous" / "step-0002",
    )
    verdict = same_start(rank, 2, *runs)
    assert (verdict.case, verdict.outcome) == (f"start_rank_{rank}", "fail" if first else "pass")
    assert verdict.first_difference == ({"rank": rank, "state": first} if first else None)
    assert verdict.diagnosis == named
