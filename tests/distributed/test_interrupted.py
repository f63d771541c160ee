"""A run that is stopped or killed anywhere goes on by the same command and ends with the same bytes."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddp_tokens import checkpoint, run_files
from ddp_tokens import train as train_module
from ddp_tokens.checkpoint_files import verify
from ddp_tokens.files import digests, read_json
from ddp_tokens.locks import lock_alone
from tests.distributed.ranks import RankError, run_ranks
from tests.distributed.tiny import INTERRUPT_AT, STEPS, Tiny, train_as_program


def outputs(tiny: Tiny) -> dict[str, str]:
    """Path below runs/ -> digest, of all that runs have left, hidden files too."""
    runs = tiny.at.root / "runs"
    found = digests(path for path in runs.rglob("*") if path.is_file())
    return {str(Path(path).relative_to(runs)): digest for path, digest in found.items()}


def kept(tiny: Tiny, run: str) -> list[str]:
    """Working checkpoints of a run."""
    return sorted(path.name for path in (tiny.at.root / "runs").glob(f".{run}.*/step-*"))


def signal_at(world: Any, arguments: list[str], updates: Sequence[int], rank: int, number: int) -> dict[str, Any]:
    """ddp_tokens.train as a command; `rank` sends itself a signal inside each of these updates."""
    train = train_module.train

    def signalled(*given: Any) -> Iterator[dict[str, Any]]:
        for record in train(*given):
            if record["step"] in updates and world.rank == rank:
                os.kill(os.getpid(), number)
            yield record

    train_module.train = signalled
    return train_as_program(world, arguments)


def stopped(tiny: Tiny, *more: str, after: int, number: int = signal.SIGTERM) -> list[dict[str, Any]]:
    """The last rank is asked to stop in update `after`; all do."""
    arguments, last = tiny.arguments(*more), tiny.world_size - 1
    ranks = run_ranks(signal_at, tiny.world_size, tiny.folder, arguments, [after], last, number, joined=False)
    assert [rank["code"] for rank in ranks] == [128 + number] * tiny.world_size, ranks
    return ranks


def continued(tiny: Tiny, *more: str, after: int | None) -> str:
    """The same command again, to the end; what rank 0 said."""
    ranks = tiny.train(*more)
    assert [rank["code"] for rank in ranks] == [0] * tiny.world_size, ranks
    said = ranks[0]["said"]
    assert ("continuing after update" in said) == (after is not None)
    assert after is None or f"continuing after update {after} of" in said
    return said


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def of_run(tiny: Tiny, run: str) -> list[str]:
    """The arguments of a run; its outputs are removed, as Snakemake does before a job."""
    shutil.rmtree(tiny.at.run(run))
    return {"interrupt": [], "continuous": ["--continuous"], "resume": ["--resume", str(tiny.interrupted)]}[run]


@pytest.mark.parametrize(
    ("world_size", "run", "after"),
    [
        (2, "interrupt", 1),
        (2, "continuous", 1),
        (2, "continuous", STEPS),
        (2, "resume", INTERRUPT_AT + 1),
        (3, "continuous", STEPS - 1),
        (3, "resume", INTERRUPT_AT + 2),
    ],
)
def test_a_run_stopped_by_sigterm_goes_on_and_ends_with_the_same_bytes(copy_of, world_size, run, after):
    """The start record too: it is of the first start, and the resumed run's says update 3."""
    tiny = copy_of(world_size)
    before = outputs(tiny)
    arguments = of_run(tiny, run)
    until = INTERRUPT_AT if run == "interrupt" else STEPS
    [said, *others] = [rank["said"] for rank in stopped(tiny, *arguments, after=after)]
    [folder] = (tiny.at.root / "runs").glob(f".{run}.*")
    assert said.endswith(
        f"ddp_tokens.train: stopped by SIGTERM after update {after} of {until}, kept in {folder}/step-{after:04d}: "
        "run the same command again to continue\n"
    )
    assert "stopped" not in "".join(others)
    assert verify(folder / f"step-{after:04d}")["step"] == after
    assert not tiny.at.run(run).exists()
    continued(tiny, *arguments, after=after)
    assert outputs(tiny) == before
    start = read_json(tiny.at.run(run) / "ranks" / "start-rank-1.json")
    assert start["step"] == (INTERRUPT_AT if run == "resume" else 0)


def test_stopped_twice_by_different_signals(copy_of):
    tiny = copy_of(2)
    before = outputs(tiny)
    arguments = of_run(tiny, "continuous")
    assert "SIGUSR1 after update 2 of" in stopped(tiny, *arguments, after=2, number=signal.SIGUSR1)[0]["said"]
    assert "SIGINT after update 5 of" in stopped(tiny, *arguments, after=5, number=signal.SIGINT)[0]["said"]
    assert kept(tiny, "continuous") == ["step-0002", "step-0005"]
    continued(tiny, *arguments, after=5)
    assert outputs(tiny) == before


def test_continuous_never_goes_on_from_the_interrupted_runs_state(copy_of):
    """Else the proof of the resume would compare a run with itself."""
    tiny = copy_of(2)
    before = outputs(tiny)
    arguments = of_run(tiny, "interrupt")
    stopped(tiny, *arguments, after=2)
    shutil.rmtree(tiny.at.run("continuous"))
    continued(tiny, "--continuous", after=None)
    assert kept(tiny, "interrupt") == ["step-0002"]
    continued(tiny, *arguments, after=2)
    assert outputs(tiny) == before


def test_another_setting_starts_anew_and_removes_what_was_left(copy_of):
    tiny = copy_of(2)
    arguments = of_run(tiny, "continuous")
    stopped(tiny, *arguments, "--optimizer.lr", "0.01", after=2)
    assert kept(tiny, "continuous") == ["step-0002"]
    continued(tiny, *arguments, after=None)
    assert not list((tiny.at.root / "runs").glob(".*"))


@pytest.mark.parametrize(("keep", "left"), [(1, [5]), (3, [2, 4, 5])])
def test_the_last_few_working_checkpoints_are_kept(copy_of, keep, left):
    tiny = copy_of(2)
    stopped(tiny, "--continuous", "--checkpoint-every", "2", "--keep", str(keep), after=5)
    assert kept(tiny, "continuous") == [f"step-{step:04d}" for step in left]


def test_without_working_checkpoints_nothing_but_a_stop_writes_one(copy_of):
    tiny = copy_of(2)
    stopped(tiny, "--continuous", "--checkpoint-every", "0", "--keep", "9", after=5)
    assert kept(tiny, "continuous") == ["step-0005"]


def test_a_damaged_working_checkpoint_is_named_and_the_one_before_is_used(copy_of):
    tiny = copy_of(2)
    before = outputs(tiny)
    arguments = [*of_run(tiny, "continuous"), "--checkpoint-every", "2"]
    stopped(tiny, *arguments, after=5)
    [newest] = (tiny.at.root / "runs").glob(".continuous.*/step-0005")
    flip_a_bit(newest / "model.safetensors")
    said = continued(tiny, *arguments, after=4)
    assert f"warning: a working checkpoint is skipped: {newest}/model.safetensors was altered" in said
    assert outputs(tiny) == before


def test_a_damaged_start_record_makes_the_run_start_anew(copy_of):
    tiny = copy_of(2)
    before = outputs(tiny)
    arguments = of_run(tiny, "continuous")
    stopped(tiny, *arguments, after=5)
    [start] = (tiny.at.root / "runs").glob(".continuous.*/start")
    flip_a_bit(start / "start-rank-1.safetensors")
    assert f"warning: {start} is damaged, so the run starts anew" in continued(tiny, *arguments, after=None)
    assert outputs(tiny) == before


def die_at(world: Any, arguments: list[str], instant: str, fired: str) -> None:
    """Rank 1 is killed the second time that it comes to `instant`."""
    calls = []

    def dying(function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            calls.append(instant)
            if world.rank == 1 and len(calls) == 2:
                Path(fired).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **named)

        return call

    if instant == "forward":
        from ddp_tokens.workloads import token_labels

        token_labels.forward = dying(token_labels.forward)
    elif instant == "between all-reduces":
        from ddp_tokens import objectives

        objectives.sums_of_window = dying(objectives.sums_of_window)
    elif instant == "writing a working checkpoint":
        checkpoint._write_rank_part = dying(checkpoint._write_rank_part)
    else:
        run_files.write_start = dying(dying(run_files.write_start))
    train_as_program(world, arguments)


INSTANTS = {"forward": None, "between all-reduces": 1, "writing a working checkpoint": 1, "writing the outputs": 5}


@pytest.mark.parametrize("instant", INSTANTS)
def test_a_rank_killed_at_a_given_instant(copy_of, instant):
    """Two forward passes make an update, so the second forward pass belongs to the first update."""
    tiny = copy_of(2)
    before = outputs(tiny)
    arguments = [*of_run(tiny, "continuous"), "--checkpoint-every", "1"]
    fired = tiny.folder / "fired"
    with pytest.raises(RankError, match="rank 1 ended with exit code -9"):
        run_ranks(die_at, 2, tiny.folder, tiny.arguments(*arguments), instant, str(fired), joined=False)
    assert fired.exists()
    continued(tiny, *arguments, after=INSTANTS[instant])
    assert outputs(tiny) == before


def test_a_run_that_another_process_writes_is_refused_by_name(copy_of):
    tiny = copy_of(2)
    before = outputs(tiny)
    with lock_alone(tiny.at.run_lock("continuous")):
        for rank in tiny.train("--continuous", "--timeout-s", "2"):
            assert rank["code"] == 2
            assert f"{tiny.at.run('continuous')} is being written by process {os.getpid()}: wait until" in rank["said"]
        assert [name for name in outputs(tiny) if name not in before] == [".continuous.lock"]
    continued(tiny, "--continuous", after=None)
    assert outputs(tiny) == before


def test_ranks_of_an_earlier_start_are_waited_for(copy_of):
    """Rank 1 of it is enough: it may be writing still when rank 0 has ended."""
    tiny = copy_of(2)
    held = lock_alone(tiny.at.run_lock("continuous"))
    asked = time.monotonic()
    threading.Timer(3.0, held.close).start()
    continued(tiny, "--continuous", after=None)
    assert time.monotonic() - asked > 3.0  # it did wait: the lock was there
