"""125 windows per epoch, interrupted after 200: the resume goes on in epoch 1 at window 75, with its rows and noise.

Images, BatchNorm, augmentation, the schedule per epoch; batches by worker processes in some runs and not in others.
"""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

from ddp_tokens import train as train_module
from ddp_tokens.checks.resume import check_resume
from ddp_tokens.corpora.rows import Row
from ddp_tokens.epochs import place_in_epoch
from ddp_tokens.errors import CorpusError
from ddp_tokens.files import read_json, read_json_lines, sha256
from tests.distributed.ranks import RankError, ends_of_ranks, run_ranks
from tests.distributed.tiny import Tiny, prepared, train_as_program

ROWS, WINDOWS, STEPS, INTERRUPT_AT, SEED = 249, 125, 250, 200, 42
SETTINGS = {
    "seed": SEED,
    "corpus": {"kind": "images", "train": ROWS, "validation": 0, "test": 3, "size": 8},
    "workload": "images",
    "model": {"kind": "resnet", "stages": [4], "blocks": 1},
    "optimizer": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0001},
    "schedule": {"kind": "cosine"},
    "sharding": "by_epoch",
    "augmentation": "shift_and_flip",
    "steps": STEPS,
    "interrupt_at": INTERRUPT_AT,
    "save_every": 1,
    "batch": 1,
    "accumulation": 1,
}


def small(folder: Path, **changes: Any) -> Tiny:
    return prepared(folder / "tiny", 2, **SETTINGS | changes)


def trained(tiny: Tiny, *more: str) -> list[dict[str, Any]]:
    ranks = tiny.train(*more)
    assert [rank["code"] for rank in ranks] == [0, 0], ranks
    return ranks


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Interrupted with 2 workers, resumed with none; one more resume has 1. The continuous run had 2."""
    tiny = small(tmp_path_factory.mktemp("inside"))
    trained(tiny, "--workers", "2")
    trained(tiny, "--continuous", "--workers", "2")
    return tiny


def resumed(tiny: Tiny, workers: int) -> Path:
    interrupted = tiny.at.checkpoint("interrupt", INTERRUPT_AT)
    trained(tiny, "--resume", str(interrupted), "--workers", str(workers))
    return tiny.at.checkpoint("resume", STEPS)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_resume_inside_an_epoch_is_the_continuous_run_whoever_makes_the_batches(done, workers):
    ends = resumed(done, workers), done.at.checkpoint("continuous", STEPS)
    verdicts = check_resume(done.at.checkpoint("interrupt", INTERRUPT_AT), *reversed(ends))
    assert {v.case: v.first_difference for v in verdicts if v.outcome != "pass"} == {}
    names = sorted(path.name for path in ends[1].iterdir())
    assert {name: sha256(ends[0] / name) for name in names} == {name: sha256(ends[1] / name) for name in names}
    assert [verdict.outcome for verdict in done.replica_verdicts()] == ["pass"] * 3
    moved = next(verdict for verdict in verdicts if verdict.case == "weights_moved")
    assert moved.observed["max_abs_difference"] > 1e-3


def test_its_first_window_is_window_75_of_epoch_1_and_holds_what_the_sampler_deals(done):
    """Update 201: 125 updates are epoch 0, and 75 of epoch 1 are done. 249 rows are 125 and 124, so that rank 1 has
    nothing in the last window of an epoch.
    """
    resumed(done, 0)
    assert place_in_epoch(INTERRUPT_AT + 1, WINDOWS) == (1, 75)
    plan = read_json(done.at.plan)["plan"]
    training = [row["id"] for row in read_json_lines(done.at.rows) if row["split"] == "train"]
    for rank in range(2):
        sampler = DistributedSampler(range(ROWS), 2, rank, seed=SEED)
        sampler.set_epoch(1)
        dealt = [training[index] for index in sampler]
        own = {record["step"]: record["rows"] for record in history_of_rank(done, "resume", rank)}
        assert plan[INTERRUPT_AT][rank] == own[INTERRUPT_AT + 1] == [[dealt[75]]]
        until = ROWS // 2
        assert [own[INTERRUPT_AT + 1 + place] for place in range(until - 75)] == [[[row]] for row in dealt[75:until]]
    assert plan[124][1] == plan[249][1] == [[]]
    assert len(plan) == STEPS


def history_of_rank(tiny: Tiny, run: str, rank: int) -> list[dict[str, Any]]:
    return read_json_lines(tiny.at.run(run) / "ranks" / f"rank-{rank}.jsonl")


def test_what_is_compared_is_worth_it(done, tmp_path):
    """Guards: noise matters, the rate fell at the epoch's end, and both epochs saw the same images in another order."""
    history = read_json_lines(done.at.run("continuous") / "history.jsonl")
    assert [record["units"] for record in history] == ([2] * 124 + [1]) * 2
    rates = [record["lr"] for record in history]
    assert set(rates[:125]) == {0.05}
    assert rates[125:] == pytest.approx([0.025] * 125)
    other = small(tmp_path, augmentation="none")
    trained(other, "--continuous")
    unchanged = read_json_lines(other.at.run("continuous") / "history.jsonl")
    assert sha256(other.at.plan) == sha256(done.at.plan)
    assert all(a["loss"] != b["loss"] for a, b in zip(history, unchanged, strict=True))


def stopped_at(world: Any, arguments: list[str], step: int) -> dict[str, Any]:
    """Rank 1 sends SIGTERM to itself and SIGUSR1 to its workers in this update, as what signals a whole group would do;
    workers are counted then and afterwards.
    """
    train, workers = train_module.train, []

    def signalled(*given: Any) -> Any:
        for record in train(*given):
            if record["step"] == step:
                workers.append(sorted(children_of(os.getpid())))
                for process in [os.getpid(), *workers[0]] * (world.rank == 1):
                    os.kill(process, signal.SIGUSR1 if process != os.getpid() else signal.SIGTERM)
            yield record

    train_module.train = signalled
    said = train_as_program(world, arguments)
    return said | {"workers": len(workers[0]), "left": len(children_of(os.getpid()))}


def children_of(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_a_run_with_workers_is_stopped_inside_an_epoch_and_goes_on(done):
    """And no worker is left: neither after the stop, nor at the end."""
    before = sha256(done.at.checkpoint("continuous", STEPS) / "manifest.json")
    arguments = done.arguments("--continuous", "--workers", "2")
    ranks = run_ranks(stopped_at, 2, done.folder, arguments, 140, joined=False)
    assert [rank["code"] for rank in ranks] == [128 + signal.SIGTERM] * 2, ranks
    assert "stopped by SIGTERM after update 140 of 250" in ranks[0]["said"]
    assert [(rank["workers"], rank["left"]) for rank in ranks] == [(2, 0)] * 2
    ranks = trained(done, "--continuous", "--workers", "1")
    assert "continuing after update 140 of 250" in ranks[0]["said"]
    assert sha256(done.at.checkpoint("continuous", STEPS) / "manifest.json") == before


def train_with_a_broken_image(world: Any, arguments: list[str], broken: str) -> dict[str, Any]:
    """The image of this row cannot be read; on which rank it is, the plan says."""
    image = Row.image

    def refuse(row: Row) -> Any:
        if row.id == broken:
            raise CorpusError(f"the image of row '{row.id}' cannot be read: restore the file, or prepare again")
        return image(row)

    Row.image = refuse
    return train_as_program(world, arguments) | {"left": len(children_of(os.getpid()))}


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_cannot_be_read_ends_the_run_with_one_sentence(done, workers):
    """On the rank that has it; the other says which rank failed. No traceback of a worker, and no worker left."""
    broken = read_json(done.at.plan)["plan"][30][1][0][0]
    arguments = done.arguments("--continuous", "--workers", str(workers))
    ends = ends_of_ranks(train_with_a_broken_image, 2, done.folder, arguments, broken)
    ranks = [end["returned"] for end in ends]
    assert None not in ranks, ends
    assert [(rank["code"], rank["left"]) for rank in ranks] == [(2, 0)] * 2, ranks
    sentence = f"the image of row '{broken}' cannot be read: restore the file, or prepare again\n"
    assert ranks[1]["said"].endswith(f"ddp_tokens.train, rank 1: {sentence}")
    assert "rank 1" in ranks[0]["said"]
    assert not any("Traceback" in rank["said"] for rank in ranks)


def die_with_workers(world: Any, arguments: list[str], folder: str) -> None:
    """Rank 1 is killed in update 3, and leaves the numbers of its workers."""
    train = train_module.train

    def dying(*given: Any) -> Any:
        for record in train(*given):
            if record["step"] == 3 and world.rank == 1:
                Path(folder, "workers").write_text(" ".join(map(str, children_of(os.getpid()))))
                os.kill(os.getpid(), signal.SIGKILL)
            yield record

    train_module.train = dying
    train_as_program(world, arguments)


def test_workers_do_not_outlive_a_rank_that_is_killed(done):
    arguments = done.arguments("--continuous", "--workers", "2")
    with pytest.raises(RankError, match="rank 1 ended with exit code -9"):
        run_ranks(die_with_workers, 2, done.folder, arguments, str(done.folder), joined=False)
    workers = [int(pid) for pid in (done.folder / "workers").read_text().split()]
    assert len(workers) == 2
    ended = [os.pidfd_open(pid) for pid in workers if Path(f"/proc/{pid}").exists()]
    for process in ended:
        wait_for(process)
        os.close(process)


def wait_for(process: int) -> None:
    """Without a limit of its own: the test's is the suite's."""
    import select

    select.select([process], [], [], 60)
    assert select.select([process], [], [], 0)[0], "a worker is still there"
