"""When a rank fails or hangs, every rank ends and the others say which one it was, where, and what can be resumed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_tokens.checkpoint_files import verify
from ddp_tokens.files import digests, read_json_lines
from ddp_tokens.progress import place_file
from tests.distributed.faults import REACHED, train_on_full_disk, train_with
from tests.distributed.ranks import ends_of_ranks
from tests.distributed.test_launched_processes import LAUNCHERS
from tests.distributed.tiny import ACCUMULATION, STEPS, Tiny, prepared
from tests.helpers import PROJECT

TIMEOUT_S = 3
USER_ERROR = 2


def call_of(step: int, microbatch: int) -> int:
    return (step - 1) * ACCUMULATION + microbatch


def ends(tiny: Tiny, fault: str, rank: int, step: int, microbatch: int, *more: str):
    arguments = tiny.arguments("--continuous", "--timeout-s", str(TIMEOUT_S), *more)
    where = rank, call_of(step, microbatch), str(tiny.folder)
    found = ends_of_ranks(train_with, tiny.world_size, tiny.folder, arguments, fault, *where)
    assert_reached(tiny)
    return found


def assert_reached(tiny: Tiny) -> None:
    """The injected fault fired, and the run left nothing under its name."""
    assert (tiny.folder / "reached").read_text() == REACHED


def sentence_of(end) -> str:
    """What a rank said besides the lines that any run says."""
    said = [line for line in end["returned"]["said"].splitlines() if line.startswith("ddp_tokens.train")]
    assert len(said) == 1, end
    return re.sub(r"last sign of life \d+ s ago", "last sign of life N s ago", said[0])


@pytest.fixture
def interrupted(copy_of):
    """World size -> an experiment of which only the run up to the interruption is there."""

    def of(world_size: int) -> Tiny:
        tiny = copy_of(world_size)
        for folder in (tiny.at.run("continuous"), tiny.at.run("resume"), tiny.at.rank_logs("continuous")):
            shutil.rmtree(folder)
        return tiny

    return of


BETWEEN = "the last collective it entered is the all-reduce of the count, which came back; last sign of life N s ago"


def while_waiting(rank: int) -> str:
    return f"while rank {rank} was in the all-reduce of the gradients"


def test_a_rank_that_raises_says_what_and_the_others_say_who(interrupted):
    tiny = interrupted(3)
    found = ends(tiny, "raise_error", 1, 2, 1)
    assert [end["exit"] for end in found] == [0, 1, 0]
    assert "ArithmeticError: the workload went wrong\nthis was rank 1 in update 2, microbatch 1 (" in found[1]["error"]
    assert f"the newest whole checkpoint is {tiny.interrupted}\n" in found[1]["error"]
    for rank in (0, 2):
        assert found[rank]["returned"]["code"] == USER_ERROR
        who = "ddp_tokens.train" if rank == 0 else f"ddp_tokens.train, rank {rank}"
        assert sentence_of(found[rank]) == (
            f"{who}: rank 1 raised ArithmeticError: the workload went wrong in update 2, microbatch 1 ({BETWEEN}), "
            f"{while_waiting(rank)}; the newest whole checkpoint is {tiny.interrupted}"
        )
    assert not tiny.at.run("continuous").exists()


def test_a_rank_that_is_killed_is_named_by_the_others(tmp_path):
    tiny = prepared(tmp_path / "tiny", 3)
    found = ends(tiny, "die", 2, 2, 2)
    assert [end["exit"] for end in found] == [0, 0, -9]
    for rank in (0, 1):
        assert found[rank]["returned"]["code"] == USER_ERROR
        assert sentence_of(found[rank]).endswith(
            f": rank 2 was killed in update 2, microbatch 2 ({BETWEEN}), {while_waiting(rank)}; "
            "there is no whole checkpoint to resume from"
        )


def test_a_rank_that_sleeps_for_ever_is_named_and_ended(interrupted):
    tiny = interrupted(3)
    found = ends(tiny, "sleep_forever", 1, 3, 1)
    assert [end["exit"] for end in found] == [0, USER_ERROR, 0]
    for rank in (0, 2):
        assert found[rank]["returned"]["code"] == USER_ERROR
        assert sentence_of(found[rank]).endswith(
            f": rank 1 does not go on in update 3, microbatch 1 ({BETWEEN}), {while_waiting(rank)}; "
            f"the newest whole checkpoint is {tiny.interrupted}"
        )


def test_where_each_rank_was_stays_to_be_read_until_the_run_succeeds(interrupted):
    tiny = interrupted(2)
    ends(tiny, "raise_error", 1, 2, 1)
    logs = tiny.at.rank_logs("continuous")
    assert all(place_file(logs, rank).is_file() for rank in (0, 1))
    assert [end["code"] for end in tiny.train("--continuous")] == [0, 0]
    assert not any(place_file(logs, rank).exists() for rank in (0, 1))


def test_each_rank_logs_its_updates_with_its_share_and_its_seconds(interrupted):
    """After a start that failed in update 2, the log of the next start follows that of the first."""
    tiny = interrupted(2)
    ends(tiny, "raise_error", 1, 2, 1)
    assert [end["code"] for end in tiny.train("--continuous")] == [0, 0]
    logs = [read_json_lines(tiny.at.rank_logs("continuous") / f"rank-{rank}.jsonl") for rank in (0, 1)]
    history = read_json_lines(tiny.at.run("continuous") / "history.jsonl")
    for lines in logs:
        assert [line.get("step", "start") for line in lines] == ["start", 1, "start", *range(1, STEPS + 1)]
        assert [line["after_step"] for line in lines if "started" in line] == [0, 0]
        assert all(line[name] > 0 for line in lines if "step" in line for name in SECONDS)
    for record, *own in zip(history, *(lines[3:] for lines in logs), strict=True):
        assert {line["units"] for line in own} == {record["units"]}
        assert sum(line["rank_units"] for line in own) == record["units"]
        # The same two float64 numbers in another order of adding: at most one rounding.
        assert sum(line["loss_sum"] for line in own) == pytest.approx(record["loss_sum"], rel=1e-15)
    assert logs[0][3]["rank_units"] != logs[1][3]["rank_units"]


PARTS = ("data", "forward", "backward", "reducing_backward", "communication", "optimizer", "other")
SECONDS = tuple(f"{part}_s" for part in PARTS)


def runs_of(tiny: Tiny) -> dict[str, str]:
    """What the runs have delivered; not what an unfinished run could go on from, runs/.RUN.KEY."""
    runs = tiny.at.root / "runs"
    delivered = (path for path in runs.rglob("*") if not path.relative_to(runs).parts[0].startswith("."))
    return digests(path for path in delivered if path.is_file())


@pytest.mark.parametrize(
    ("rank", "name", "file", "others"),
    [
        (1, ".rank-1.json.", "rank-1.json", "rank 1 could not write {checkpoint}, and says why"),
        (0, ".model.safetensors.", "model.safetensors", "rank 0 could not write {checkpoint}, and says why"),
        (0, "step-0006.tmp/.manifest.json.", "manifest.json", "rank 0 could not complete {checkpoint}, and says why"),
    ],
)
def test_a_full_disk_under_a_checkpoint_leaves_nothing_of_it(interrupted, rank, name, file, others):
    tiny = interrupted(2)
    before = runs_of(tiny)
    arguments = tiny.arguments("--continuous", "--timeout-s", str(TIMEOUT_S))
    found = ends_of_ranks(train_on_full_disk, 2, tiny.folder, arguments, rank, name, str(tiny.folder))
    assert_reached(tiny)
    assert [end["exit"] for end in found] == [0, 0]
    assert [end["returned"]["code"] for end in found] == [USER_ERROR, USER_ERROR]
    checkpoint = tiny.at.checkpoint("continuous", STEPS)
    path = checkpoint.with_name(f".{checkpoint.name}.tmp") / file
    said = sentence_of(found[rank])
    assert f": {path}: No space left on device: free some space and start again; this was rank {rank} in " in said
    assert said.endswith(f"; the newest whole checkpoint is {tiny.interrupted}")
    assert sentence_of(found[1 - rank]).endswith(": " + others.format(checkpoint=checkpoint))
    assert runs_of(tiny) == before
    assert list(tiny.at.run("continuous").iterdir()) == []


def test_a_full_disk_under_a_file_of_the_run_stops_all(interrupted):
    tiny = interrupted(2)
    arguments = tiny.arguments("--continuous", "--timeout-s", str(TIMEOUT_S))
    found = ends_of_ranks(train_on_full_disk, 2, tiny.folder, arguments, 0, ".history.jsonl.", str(tiny.folder))
    assert_reached(tiny)
    assert [end["returned"]["code"] for end in found] == [USER_ERROR, USER_ERROR]
    path = tiny.at.run("continuous") / "history.jsonl"
    assert f": {path}: No space left on device: free some space and start again; " in sentence_of(found[0])
    assert ": rank 0 raised OSError: [Errno 28] No space left on device: " in sentence_of(found[1])
    assert sorted(item.name for item in tiny.at.run("continuous").iterdir()) == [f"step-{STEPS:04d}"]
    verify(tiny.at.checkpoint("continuous", STEPS))


@pytest.fixture
def small_disk(interrupted):
    """An experiment whose runs lie on a file system with 16 KiB left."""
    tiny = interrupted(2)
    runs = tiny.at.root / "runs"
    runs.rename(tiny.folder / "before")
    runs.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", runs], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    try:
        subprocess.run(["cp", "-r", f"{tiny.folder}/before/.", runs], check=True)
        left = os.statvfs(runs)
        (runs / "filler").write_bytes(bytes(left.f_bavail * left.f_frsize - 16 * 1024))
        yield tiny
    finally:
        subprocess.run(["umount", runs], check=True)


def test_a_disk_that_is_really_full(small_disk):
    tiny = small_disk
    before = runs_of(tiny)
    found = ends_of_ranks(train_as_it_is, 2, tiny.folder, tiny.arguments("--continuous"))
    assert [end["returned"]["code"] for end in found] == [USER_ERROR, USER_ERROR]
    said = [sentence_of(end) for end in found]
    assert any("No space left on device: free some space and start again" in sentence for sentence in said), said
    assert runs_of(tiny) == before
    assert list(tiny.at.run("continuous").glob("*")) == []
    verify(tiny.interrupted)


def train_as_it_is(world, arguments):
    return train_with(world, arguments, "", -1, 0, "")


def launched(tiny: Tiny, launcher: str, fault: str, step: int, microbatch: int) -> subprocess.CompletedProcess[str]:
    """Rank 1 has the fault."""
    given = [fault, "1", str(call_of(step, microbatch)), str(tiny.folder)]
    arguments = tiny.arguments("--continuous", "--timeout-s", str(TIMEOUT_S))
    done = subprocess.run(
        [sys.executable, "-m", *LAUNCHERS[launcher], "-m", "tests.distributed.faults", *given, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT / "src")])},
        cwd=tiny.folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert_reached(tiny)
    return done


def assert_nobody_is_left(folder: Path) -> None:
    pids = [int((folder / f"pid-{rank}").read_text()) for rank in (0, 1)]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("launcher", "fault", "what"),
    [
        ("fork", "sleep_forever", "does not go on"),
        ("fork", "die_when_awaited", "was killed"),
        ("spawn", "sleep_forever", "does not go on"),
        ("spawn", "die_when_awaited", "was killed"),
        ("torchrun", "sleep_through_sigterm", "does not go on"),
    ],
)
def test_under_a_launcher_the_rank_is_named_and_nobody_is_left(interrupted, launcher, fault, what):
    tiny = interrupted(2)
    done = launched(tiny, launcher, fault, 3, 1)
    assert done.returncode != 0
    assert f": rank 1 {what} in update 3, microbatch 1 (" in done.stderr, done.stderr
    assert f"; the newest whole checkpoint is {tiny.interrupted}\n" in done.stderr
    assert_nobody_is_left(tiny.folder)
