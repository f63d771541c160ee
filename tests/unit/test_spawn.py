"""What the spawning launcher tells its ranks. The rest is in tests/distributed/test_launched_processes.py."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddp_tokens import spawn
from ddp_tokens.progress import LAUNCH_VARIABLES
from ddp_tokens.spawn import variables
from ddp_tokens.stopping import Stop
from ddp_tokens.watching import LAUNCHER, ORPHANED, starters_of_rank
from ddp_tokens.world import TORCHRUN_VARIABLES, World, world_from_environment


def test_ranks_find_what_torchrun_would_tell_them():
    environment = variables(4711, 3) | {"RANK": "2", "LOCAL_RANK": "2"}
    assert {*TORCHRUN_VARIABLES, *LAUNCH_VARIABLES} <= environment.keys()
    assert world_from_environment(environment, "cpu", 3) == World(rank=2, local_rank=2, size=3)
    assert environment["MASTER_PORT"] == "4711"
    assert starters_of_rank(environment) == [os.getpid()]


def test_each_launch_has_a_name_of_its_own():
    """Ranks of an earlier one left files behind, by which they must not be taken for ranks of this one."""
    assert variables(1, 2)["TORCHELASTIC_RUN_ID"] != variables(1, 2)["TORCHELASTIC_RUN_ID"]


ENTER = """
import os, sys
from ddp_tokens.spawn import _enter
from ddp_tokens.machine import this_machine
_enter(0, "late", [], {sys.argv[1]: f"{sys.argv[2] or os.getppid()}@{this_machine()}"})
"""


@pytest.mark.parametrize(("launcher", "code"), [("1", ORPHANED), ("", 7)])
def test_a_rank_whose_launcher_was_killed_before_it_could_say_so_ends(tmp_path, launcher, code):
    """The launcher is another process than the parent: it has ended, and somebody else has inherited the rank."""
    (tmp_path / "late.py").write_text("def main(arguments):\n    return 7\n")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", ENTER, LAUNCHER, launcher],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr


def fail_after(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)
    sys.exit(3)


def refuse_to_end(path: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    path.touch()
    while True:
        signal.pause()


def test_a_rank_that_does_not_follow_is_killed(tmp_path, monkeypatch):
    """Rank 1 fails; rank 0 is told to end and ignores it. Both are known, the first to fail first."""
    monkeypatch.setattr(spawn, "KILLED_AFTER_S", 0.2)
    monkeypatch.setattr(spawn, "LOOK_EVERY_S", 0.1)
    context, reader = multiprocessing.get_context("spawn"), socket.socketpair()[0]
    processes = [context.Process(target=does, args=(tmp_path / "ready",)) for does in (refuse_to_end, fail_after)]
    for process in processes:
        process.start()
    assert list(spawn._wait(processes, Stop(), reader).items()) == [(1, 3), (0, -signal.SIGKILL)]
