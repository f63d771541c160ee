"""A resume that is let differ: other threads, or another number of ranks. It trains, and never calls itself exact."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_tokens.checkpoint_files import verify
from ddp_tokens.checks.checkpoints import check_checkpoints
from ddp_tokens.checks.resume import check_resume
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import wrap_for_ddp
from ddp_tokens.files import read_json, read_json_lines, sha256
from ddp_tokens.gradients import gradients_left_by, mean_of_means, token_mean
from ddp_tokens.identity import Allowed
from ddp_tokens.inputs import initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.plan import counts_per_rank, windows_to_compare
from ddp_tokens.reference import reference_gradient
from ddp_tokens.steps import view
from ddp_tokens.train import run_training
from ddp_tokens.workloads import token_labels
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.test_train_command import refused
from tests.distributed.tiny import INTERRUPT_AT, SETTINGS, STEPS, Tiny, prepared

# As in test_gradient_on_ranks.py: float64 sums of some hundred terms in two orders; a wrong formula is off by more.
ROUNDING, WRONG = 1e-12, 1e-3
CHANGES = [(2, 3), (3, 2), (4, 1)]


def flat(window: list[list[list[str]]]) -> list[str]:
    return [row for of_rank in window for microbatch in of_rank for row in microbatch]


def compare_windows(world: World, config: str, root: str) -> dict[str, Any]:
    """In float64: what these ranks leave of windows that were planned for others, against one process."""
    experiment, at = load_experiment(config, {"world_size": world.size}), Layout(Path(root))
    make_deterministic(1)
    before = read_json(at.plan)["plan"]
    given = read_prepared(experiment, at, repartitioned=True)
    cases = windows_to_compare(given.plan, given.rows)
    bare = initial_model(experiment, token_labels, given.shape, at.initial, "cpu", torch.float64)
    model = wrap_for_ddp(bare.eval())
    of_formula = {
        way.__name__: gradients_left_by(way, model, token_labels, given, cases, world)
        for way in (token_mean, mean_of_means)
    }
    found: dict[str, Any] = {"units": {}, "microbatches": {}}
    for case, index in cases.items():
        # One process, the window as it was planned at first: it knows nothing of how the rows were dealt.
        right = reference_gradient(bare, token_labels, [given.rows[row] for row in flat(before[index])])
        assert any(gradient.abs().max() > WRONG for gradient in right.values())
        for formula, left in of_formula.items():
            errors = [float((left[f"{case}/{name}"] - right[name]).abs().max()) for name in right]
            found[formula] = max(found.get(formula, 0.0), *errors)
        found["units"][case] = counts_per_rank(given.plan[index], given.rows)
        found["microbatches"][case] = [len(of_rank) for of_rank in given.plan[index]]
    return found


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_window_that_is_dealt_anew_leaves_the_gradient_of_one_process(trained, before, after):
    """The mean of means shows that the counts are unequal, where there are ranks to be unequal."""
    tiny = trained(before)
    ranks = run_ranks(compare_windows, after, tiny.folder, str(tiny.config), str(tiny.at.root))
    for rank in ranks:
        assert rank["token_mean"] < ROUNDING
        if after > 1:
            assert len(set(rank["units"]["most_unequal"])) > 1
            assert rank["mean_of_means"] > WRONG


def resumed_at(tiny: Tiny, world_size: int, *more: str) -> Tiny:
    """The same folder, plan and checkpoint, on other ranks."""
    other = Tiny(tiny.folder, world_size)
    flags = ("--world-size", str(world_size), "--allow-repartition", *more)
    ranks = other.train("--resume", str(tiny.interrupted), *flags)
    assert [rank["code"] for rank in ranks] == [0] * world_size, ranks
    told = f"warning: not an exact run, repartitioned since update {INTERRUPT_AT}: world_size {tiny.world_size} -> "
    assert f"{told}{world_size}\n" in ranks[0]["said"]
    return other


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_each_remaining_row_is_trained_on_once(copy_of, before, after):
    tiny = copy_of(before)
    resumed_at(tiny, after)
    end = tiny.at.checkpoint("resume", STEPS)
    assert verify(end)["world_size"] == after
    common = read_json(end / "common.json")
    change = {"step": INTERRUPT_AT, "world_size": {"from": before, "to": after}}
    assert common["identity"]["repartitioned"] == [change]
    # Each window is the one that the continuous run has: the same rows, once each, so the same units.
    plan = read_json(tiny.at.plan)["plan"]
    parts = [read_json(end / f"rank-{rank}.json") for rank in range(after)]
    for step in range(INTERRUPT_AT + 1, STEPS + 1):
        own = [part["history"][step - INTERRUPT_AT - 1] for part in parts]
        assert {record["step"] for record in own} == {step}
        assert flat([record["rows"] for record in own]) == flat(plan[step - 1])
        assert sum(record["units"] for record in own) == common["history"][step - 1]["units"]
    assert {len(part["history"]) for part in parts} == {STEPS - INTERRUPT_AT}
    continuous = read_json_lines(tiny.at.run("continuous") / "history.jsonl")
    assert [record["units"] for record in common["history"]] == [record["units"] for record in continuous]
    assert common["history"][:INTERRUPT_AT] == continuous[:INTERRUPT_AT]
    # Dropout draws differently: another path through the same windows.
    pairs = list(zip(common["history"], continuous, strict=True))[INTERRUPT_AT:]
    assert all(ours["loss"] != theirs["loss"] for ours, theirs in pairs)


def test_ranks_that_existed_keep_their_generators_and_a_new_one_has_its_own(copy_of):
    tiny = copy_of(2)
    resumed_at(tiny, 3)
    starts = [read_json(tiny.at.run("resume") / "ranks" / f"start-rank-{rank}.json")["held"] for rank in range(3)]
    for rank in range(2):
        written = sha256(tiny.interrupted / f"rank-{rank}.safetensors")
        assert sha256(tiny.at.run("resume") / "ranks" / f"start-rank-{rank}.safetensors") == written
    for generator in ("torch_cpu", "python", "numpy"):
        assert len({start[generator] for start in starts}) == 3
    assert len({start["model.safetensors"] for start in starts}) == 1


def test_such_a_run_is_never_called_exact(copy_of):
    tiny = copy_of(2)
    resumed_at(tiny, 3)
    verdicts = tiny.resume_verdicts()
    assert {case: verdict.outcome for case, verdict in verdicts.items()} == {"checkpoints_whole": "fail"}
    assert verdicts["checkpoints_whole"].first_difference == {
        "world_size": {"interrupted": 2, "continuous": 2, "resumed": 3}
    }


def train_part(world: World, config: str, results: str, run: str, until: int, path: str) -> None:
    """Train on from `path` to `until`, on the ranks that there are."""
    changes = {"world_size": world.size} | ({"interrupt_at": until} if run == "interrupt" else {})
    make_deterministic(1)
    allowed = Allowed(repartition=True)
    experiment = view(load_experiment(config, changes), run)
    run_training(experiment, Layout(Path(results) / "tiny"), world, run, Path(path), allowed=allowed)


def test_nor_when_it_comes_back_to_its_first_ranks(copy_of):
    """2 ranks to update 3, 3 ranks to 5, 2 ranks to 6: as many ranks at both ends, on another path."""
    tiny = copy_of(2)
    where = (str(tiny.config), str(tiny.folder / "results"))
    kept = tiny.interrupted.parent.rename(tiny.at.run("kept"))
    arguments = (*where, "interrupt", STEPS - 1, str(kept / tiny.interrupted.name))
    run_ranks(train_part, 3, tiny.folder, *arguments, joined=False)
    by_three = tiny.at.checkpoint("interrupt", STEPS - 1)
    run_ranks(train_part, 2, tiny.folder, *where, "resume", STEPS, str(by_three), joined=False)
    end = tiny.at.checkpoint("resume", STEPS)
    changes = [
        {"step": INTERRUPT_AT, "world_size": {"from": 2, "to": 3}},
        {"step": STEPS - 1, "world_size": {"from": 3, "to": 2}},
    ]
    assert read_json(end / "common.json")["identity"]["repartitioned"] == changes
    assert [record["step"] for record in read_json(end / "rank-1.json")["history"]] == [STEPS]
    assert {verdict.outcome for verdict in check_checkpoints([end, by_three])} == {"pass"}
    found = check_resume(kept / tiny.interrupted.name, tiny.at.checkpoint("continuous", STEPS), end)
    [identity] = [verdict for verdict in found if verdict.case == "identity"]
    assert (identity.outcome, identity.observed["differing"]) == ("fail", ["repartitioned"])


def test_the_same_repartition_gives_the_same_bytes(copy_of):
    tiny = copy_of(2)
    found = []
    for _ in range(2):
        resumed_at(tiny, 3)
        end = tiny.at.checkpoint("resume", STEPS)
        found.append({path.name: sha256(path) for path in end.iterdir()})
    assert found[0] == found[1]
    assert len(found[0]) == 4 + 2 * 3


def test_without_the_flag_another_number_of_ranks_is_refused(copy_of):
    """A plan that was made anew for the new ranks is another plan, also with the flag."""
    old = copy_of(2)
    three = ("--world-size", "3")
    for sentence in refused(old, "--resume", str(old.interrupted), *three, world_size=3):
        assert "plan.json was made for world_size 2, not 3" in sentence
    new = prepared(old.folder, 3)
    for sentence in refused(new, "--resume", str(old.interrupted)):
        assert "was written with world_size 2, this run has 3: start 2 ranks, or add --allow-repartition" in sentence
    for sentence in refused(new, "--resume", str(old.interrupted), "--allow-repartition"):
        assert "was written with plan.json " in sentence
        assert "prepare with the world_size that the first plan was made for" in sentence


def test_more_ranks_than_rows_leave_the_last_without(trained, tmp_path):
    """Windows of two rows: one rank, two microbatches of one row. On three, the last computes what does not count."""
    tiny = prepared(tmp_path / "tiny", 1, batch=1)
    tiny.train_all()
    resumed_at(tiny, 3)
    end = tiny.at.checkpoint("resume", STEPS)
    of_last = read_json(end / "rank-2.json")["history"]
    assert {record["units"] for record in of_last} == {0}
    assert {len(flat([record["rows"]])) for record in of_last} == {0}
    history, continuous = (read_json_lines(tiny.at.run(run) / "history.jsonl") for run in ("resume", "continuous"))
    assert [record["units"] for record in history] == [record["units"] for record in continuous]


def test_epochs_are_those_of_the_plan_on_any_number_of_ranks(tmp_path):
    """20 rows, two epochs. On two ranks 2 x 2 rows are a window, 5 an epoch, 10 updates; three ranks alone would make
    4 windows an epoch and 8 updates of them, so that the plan would not fit.
    """
    corpus = SETTINGS["corpus"] | {"train": 20}
    tiny = prepared(
        *(tmp_path / "tiny", 2), corpus=corpus, sharding="by_epoch", epochs=2, steps=None, accumulation=1, batch=2
    )
    assert len(read_json(tiny.at.plan)["plan"]) == 10
    assert [rank["code"] for rank in tiny.train()] == [0, 0]
    other = Tiny(tiny.folder, 3)
    ranks = other.train("--resume", str(tiny.interrupted), "--world-size", "3", "--allow-repartition")
    assert [rank["code"] for rank in ranks] == [0] * 3, ranks
    assert len(read_json_lines(tiny.at.run("resume") / "history.jsonl")) == 10


@pytest.mark.parametrize("flag", ["--allow-inexact", "--allow-repartition"])
def test_the_flags_go_with_a_resume(copy_of, flag):
    for sentence in refused(copy_of(2), flag):
        assert f"{flag} goes with --resume PATH" in sentence


def test_other_threads_train_with_the_flag_and_the_verdict_says_inexact(copy_of):
    tiny = copy_of(2)
    two_threads = ("--resume", str(tiny.interrupted), "--threads-per-rank", "2")
    for sentence in refused(tiny, *two_threads):
        assert "was written with threads_per_rank 1, this run has 2, which can change bits" in sentence
        assert "add --allow-inexact" in sentence
    first, second = tiny.train(*two_threads, "--allow-inexact")
    assert (first["code"], second["code"]) == (0, 0)
    assert f"warning: not an exact run, inexact since update {INTERRUPT_AT}: threads_per_rank 1 -> 2\n" in first["said"]
    change = {"step": INTERRUPT_AT, "threads_per_rank": {"from": 1, "to": 2}}
    assert read_json(tiny.at.checkpoint("resume", STEPS) / "common.json")["identity"]["inexact"] == [change]
    verdicts = tiny.resume_verdicts()
    assert (verdicts["identity"].outcome, verdicts["identity"].expected) == ("inconclusive", "inconclusive")
    assert verdicts["identity"].observed["inexact"] == [change]
    # What was restored is exact all the same.
    assert {verdicts[f"start_rank_{rank}"].outcome for rank in range(2)} == {"pass"}


def test_the_flags_change_nothing_where_nothing_differs(copy_of):
    tiny = copy_of(2)
    before = sha256(tiny.at.checkpoint("resume", STEPS) / "manifest.json")
    ranks = tiny.train("--resume", str(tiny.interrupted), "--allow-inexact", "--allow-repartition")
    assert [rank["code"] for rank in ranks] == [0, 0]
    assert sha256(tiny.at.checkpoint("resume", STEPS) / "manifest.json") == before
