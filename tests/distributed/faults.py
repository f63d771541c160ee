"""Ranks of ddp_tokens.train that go wrong at one place, alone or under a launcher.

python -m ddp_tokens.launch --nproc-per-node=2 -m tests.distributed.faults FAULT RANK CALL FOLDER TRAIN'S ARGUMENTS
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ddp_tokens import train
from ddp_tokens.layout import Layout
from ddp_tokens.options import run_as_program
from ddp_tokens.progress import place_file
from ddp_tokens.workloads import token_labels
from ddp_tokens.world import World
from tests.distributed.tiny import train_as_program

REACHED = "the fault was reached"


def raise_error(folder: Path) -> None:
    raise ArithmeticError("the workload went wrong")


def die(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_when_awaited(folder: Path) -> None:
    """Not before rank 0 waits for this rank's gradients: it then notices by itself, whatever the launcher does."""
    waits = place_file(Layout(folder / "results" / "tiny").rank_logs("continuous"), 0)
    while '"collective": "all-reduce of the gradients", "inside": true' not in waits.read_text():
        time.sleep(0.01)
    die(folder)


def sleep_forever(folder: Path) -> None:
    while True:
        time.sleep(3600)


def sleep_through_sigterm(folder: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep_forever(folder)


FAULTS: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (raise_error, die, die_when_awaited, sleep_forever, sleep_through_sigterm)
}


def inject(fault: str, call: int, folder: Path) -> None:
    """From now on, the workload's `call`-th loss of this process (from 1, one per microbatch) has the fault."""
    loss_sum, calls = token_labels.loss_sum, iter(range(1, sys.maxsize))

    def faulty(outputs: Any, batch: Any) -> Any:
        if next(calls) == call:
            (folder / "reached").write_text(REACHED)
            FAULTS[fault](folder)
        return loss_sum(outputs, batch)

    token_labels.loss_sum = faulty


def train_with(
    world: World, arguments: Sequence[str], fault: str, faulty_rank: int, call: int, folder: str
) -> dict[str, Any]:
    if world.rank == faulty_rank:
        inject(fault, call, Path(folder))
    return train_as_program(world, arguments)


def train_on_full_disk(world: World, arguments: Sequence[str], full_for: int, name: str, folder: str) -> dict[str, Any]:
    """On rank `full_for`, the disk turns out to be full when a file whose name holds `name` is synced."""
    sync = os.fsync

    def faulty(descriptor: int) -> None:
        if name in os.readlink(f"/proc/self/fd/{descriptor}"):
            (Path(folder) / "reached").write_text(REACHED)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    if world.rank == full_for:
        os.fsync = faulty
    return train_as_program(world, arguments)


def main(arguments: Sequence[str]) -> int:
    fault, faulty_rank, call, folder, *rest = arguments
    rank = int(os.environ["RANK"])
    (Path(folder) / f"pid-{rank}").write_text(str(os.getpid()))
    if rank == int(faulty_rank):
        inject(fault, int(call), Path(folder))
    return train.main(rest)


if __name__ == "__main__":
    raise SystemExit(run_as_program(train.PROGRAM, main, sys.argv[1:]))
