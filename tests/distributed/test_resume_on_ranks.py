"""Training through the real code path: a resumed run is the continuous one bit for bit, and the check would notice."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_tokens import checkpoint
from ddp_tokens.checkpoint_files import verify
from ddp_tokens.checks.verdict import Verdict, diagnosis_of
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.files import read_json, read_json_lines, sha256
from ddp_tokens.layout import Layout
from ddp_tokens.train import run_training
from ddp_tokens.world import World
from tests.distributed.ranks import RankError, run_ranks
from tests.distributed.tiny import ACCUMULATION, INTERRUPT_AT, SETTINGS, STEPS, Tiny, prepared, train_as_program

RUNS = {"interrupt": INTERRUPT_AT, "continuous": STEPS, "resume": STEPS}


def outcomes(tiny: Tiny) -> dict[str, str]:
    return {case: verdict.outcome for case, verdict in tiny.resume_verdicts().items()}


def history_of_rank(tiny: Tiny, run: str, rank: int) -> list[dict[str, Any]]:
    return read_json_lines(tiny.at.run(run) / "ranks" / f"rank-{rank}.jsonl")


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_resumed_run_is_the_continuous_one(trained, world_size):
    """Dropout is on, momentum is 0.9: generators and optimizer state both matter (the tests below remove each)."""
    assert SETTINGS["model"]["dropout"] > 0
    assert SETTINGS["optimizer"]["momentum"] > 0
    tiny = trained(world_size)
    verdicts = tiny.resume_verdicts()
    ranks = {f"{what}{rank}" for what in ("start_rank_", "rows_rank_", "rank_") for rank in range(world_size)}
    common = {"checkpoints_whole", "identity", "weights_moved", "parameters", "optimizer_state", "history"}
    assert verdicts.keys() == common | ranks
    assert {case: verdict.first_difference for case, verdict in verdicts.items() if not verdict.as_expected} == {}
    assert verdicts["weights_moved"].observed["max_abs_difference"] > 1e-3
    assert verdicts["parameters"].observed["values"] > 500
    # Not only the checks say so: both checkpoints are the same bytes, file by file.
    resumed, continuous = (tiny.at.checkpoint(run, STEPS) for run in ("resume", "continuous"))
    names = sorted(path.name for path in continuous.iterdir())
    assert len(names) == 4 + 2 * world_size
    assert {name: sha256(resumed / name) for name in names} == {name: sha256(continuous / name) for name in names}


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_histories_go_from_the_first_update_to_the_last(trained, world_size):
    """Sums and counts over ranks come from the ranks' own. 1e-14: up to three float64 terms, in another order."""
    tiny = trained(world_size)
    for run, last in RUNS.items():
        history = read_json_lines(tiny.at.run(run) / "history.jsonl")
        of_ranks = [history_of_rank(tiny, run, rank) for rank in range(world_size)]
        for records in (history, *of_ranks):
            assert [record["step"] for record in records] == list(range(1, last + 1))
        for record, *own in zip(history, *of_ranks, strict=True):
            assert record["units"] == sum(rank["units"] for rank in own)
            assert record["loss_sum"] == pytest.approx(sum(rank["loss_sum"] for rank in own), rel=1e-14)
            assert record["loss"] == record["loss_sum"] / record["units"]
        assert any(len({rank[step]["units"] for rank in of_ranks}) == world_size for step in range(last))
        assert len({record["loss_sum"] for record in history}) == last
        assert not (tiny.at.run(run) / f"step-{last - 1:04d}").exists()


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_hold_the_same_weights_and_have_seen_different_rows(trained, world_size):
    tiny = trained(world_size)
    plan = read_json(tiny.at.plan)["plan"]
    for run, verdict in zip(RUNS, tiny.replica_verdicts(), strict=True):
        assert verdict.outcome == "pass", verdict.first_difference
        assert verdict.observed["ranks"] == world_size
        of_ranks = [history_of_rank(tiny, run, rank) for rank in range(world_size)]
        for step, *own in zip(range(RUNS[run]), *of_ranks, strict=True):
            assert [rank["rows"] for rank in own] == plan[step]
            rows = [row for rank in own for microbatch in rank["rows"] for row in microbatch]
            assert len(set(rows)) == len(rows) == world_size * ACCUMULATION * SETTINGS["batch"]


def test_ranks_drop_out_differently(trained):
    """Equal generators would make the ranks' noise the same: each rank's is seeded for itself."""
    generators = [sha256(trained(2).interrupted / f"rank-{rank}.safetensors") for rank in range(2)]
    assert len(set(generators)) == 2


def resume_with_fault(world: World, arguments: list[str], fault: str) -> dict[str, Any]:
    """Resume with one thing wrong; `fired` counts how often the wrong code ran."""
    fired = []
    load_optimizer, restore_generators = checkpoint._load_optimizer, checkpoint.restore_generators

    def forget(*_: Any) -> None:
        fired.append(fault)

    def draw_afterwards(*state: Any) -> None:
        restore_generators(*state)
        torch.rand(1)
        fired.append(fault)

    def zero_momentum(state: Any, scalars: Any, tensors: dict[str, torch.Tensor]) -> None:
        load_optimizer(state, scalars, {name: torch.zeros_like(tensor) for name, tensor in tensors.items()})
        fired.append(fault)

    def nothing_wrong(*state: Any) -> None:
        restore_generators(*state)
        fired.append(fault)

    attribute, wrong = {
        "none": ("restore_generators", nothing_wrong),
        "generators not restored": ("restore_generators", forget),
        "generators restored too early": ("restore_generators", draw_afterwards),
        "momentum lost": ("_load_optimizer", forget),
        "momentum zeroed": ("_load_optimizer", zero_momentum),
    }[fault]
    setattr(checkpoint, attribute, wrong)
    return train_as_program(world, arguments) | {"fired": len(fired)}


def resumed_with_fault(tiny: Tiny, fault: str) -> dict[str, Verdict]:
    arguments = tiny.arguments("--resume", str(tiny.interrupted))
    ranks = run_ranks(resume_with_fault, tiny.world_size, tiny.folder, arguments, fault, joined=False)
    assert [(rank["code"], rank["fired"]) for rank in ranks] == [(0, 1)] * tiny.world_size
    return tiny.resume_verdicts()


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("fault", "diagnosis"),
    [
        ("generators not restored", ("generators_not_restored",)),
        ("generators restored too early", ("drawn_from_after_restoring",)),
        ("momentum lost", ("optimizer_state_lost",)),
        ("momentum zeroed", ()),
    ],
)
def test_the_check_notices_what_a_resume_forgets(copy_of, world_size, fault, diagnosis):
    """Known failure rng-restored-too-early among them: weights still move and the rows are right, the path differs."""
    verdicts = resumed_with_fault(copy_of(world_size), fault)
    failed = {case for case, verdict in verdicts.items() if verdict.outcome == "fail"}
    of_ranks = [{f"start_rank_{rank}", f"rank_{rank}"} for rank in range(world_size)]
    assert failed == {"parameters", "optimizer_state", "history"}.union(*of_ranks)
    assert diagnosis_of(verdicts.values()) == diagnosis


def test_the_same_patch_without_a_fault_passes(copy_of):
    assert {verdict.outcome for verdict in resumed_with_fault(copy_of(2), "none").values()} == {"pass"}


def test_training_twice_gives_the_same_files(copy_of):
    tiny = copy_of(2)
    before = {path: sha256(path) for path in tiny.at.run("continuous").rglob("*") if path.is_file()}
    assert [rank["code"] for rank in tiny.train("--continuous")] == [0, 0]
    assert {path: sha256(path) for path in tiny.at.run("continuous").rglob("*") if path.is_file()} == before
    assert len(before) == 8 + 1 + 2 * 4


def resume_in_parts(world: World, config: str, results: str) -> None:
    """Interrupt after the first update, in the middle, and before the last; each part in a group of its own."""
    at = Layout(Path(results) / "tiny")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    path = None
    for until in (1, 3, 5):
        experiment = load_experiment(config, {"interrupt_at": until})
        run_training(experiment, at, world, "interrupt", path)
        path = at.checkpoint("interrupt", until)
    run_training(load_experiment(config), at, world, "resume", path)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_second_resume_continues_the_history_and_the_path(copy_of, world_size):
    """Known failure second-resume: counters go on, 6 updates in all and not 2."""
    tiny = copy_of(world_size)
    weights = sha256(tiny.at.checkpoint("resume", STEPS) / "model.safetensors")
    (tiny.at.checkpoint("resume", STEPS) / "model.safetensors").unlink()
    where = (str(tiny.config), str(tiny.folder / "results"))
    run_ranks(resume_in_parts, world_size, tiny.folder, *where, joined=False)
    assert [path.name for path in tiny.at.run("interrupt").glob("step-*")] == ["step-0005"]
    assert sha256(tiny.at.checkpoint("resume", STEPS) / "model.safetensors") == weights
    for rank in range(world_size):
        assert history_of_rank(tiny, "resume", rank) == history_of_rank(tiny, "continuous", rank)
        assert len(history_of_rank(tiny, "resume", rank)) == STEPS


def die_while_saving(world: World, arguments: list[str], fired: str) -> None:
    """Rank 0 is killed when its own part of the checkpoint is written and the common part is not."""

    def die(*_: Any) -> None:
        Path(fired).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint._write_common_part = die
    train_as_program(world, arguments)


def killed_while_saving(tiny: Tiny) -> None:
    fired = tiny.folder / "fired"
    with pytest.raises(RankError):
        run_ranks(die_while_saving, tiny.world_size, tiny.folder, tiny.arguments(), str(fired), joined=False)
    assert fired.exists()


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_killed_while_saving_leaves_no_half_checkpoint_and_can_be_repeated(copy_of, world_size):
    tiny = copy_of(world_size)
    digest = sha256(tiny.interrupted / "manifest.json")
    killed_while_saving(tiny)
    for path in tiny.at.run("interrupt").glob("step-*"):
        verify(path)
    assert [rank["code"] for rank in tiny.train()] == [0] * world_size
    assert sha256(tiny.interrupted / "manifest.json") == digest
    assert [path.name for path in tiny.at.run("interrupt").iterdir() if path.name.startswith(".")] == []


def test_a_run_killed_while_saving_leaves_the_earlier_checkpoint(copy_of):
    """Known failure killed-while-writing."""
    tiny = copy_of(2)
    killed_while_saving(tiny)
    assert verify(tiny.interrupted)["step"] == INTERRUPT_AT


def test_fewer_ranks_in_the_same_folder_leave_nothing_of_the_earlier_run(copy_of):
    tiny = prepared(copy_of(3).folder, 2)
    tiny.train_all()
    assert [verdict.observed["ranks"] for verdict in tiny.replica_verdicts()] == [2] * 3
    assert [verdict.outcome for verdict in tiny.replica_verdicts()] == ["pass"] * 3
