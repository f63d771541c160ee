"""Start the ranks of one host by torch.multiprocessing, each as a new process, without torch's elastic agent.

    python -m ddp_tokens.spawn --nproc-per-node=2 -m ddp_tokens.train --config config/minimum.yaml

The fallback for machines where the agent or its rendezvous does not work, or forking does not. Command line, variables,
signals and exit codes are those of ddp_tokens.launch. Each rank imports torch by itself, as under torchrun. The ranks
meet at a store that this process holds open, on a port that the kernel has chosen.
"""

import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from ddp_tokens.launch import name_killed_ranks, parsed, run_rank
from ddp_tokens.stopping import SIGNALLED, Stop, end_on_signals, stop_on_signals
from ddp_tokens.watching import LAUNCHER, ORPHANED, sign_as, signed_here

PROGRAM = "ddp_tokens.spawn"
HOST = "127.0.0.1"  # a number: on the machines that this is for, names may not resolve
LOOK_EVERY_S = 1.0
# Torch's agent waits as long for ranks that it has told to end.
KILLED_AFTER_S = 30.0


def main(arguments: Sequence[str]) -> int:
    own = parsed(PROGRAM, arguments, __doc__)
    return launch(own.module, own.arguments, own.nproc_per_node)


def launch(module: str, arguments: Sequence[str], ranks: int) -> int:
    """Run `module`.main(arguments) in `ranks` processes; return the exit code of the first that failed, or 0."""
    from torch.distributed import TCPStore
    from torch.multiprocessing import start_processes

    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)  # there for as long as this function runs
    given = (module, list(arguments), variables(store.port, ranks))
    stop = Stop()
    with stop_on_signals(stop), _woken_by_signals() as woken:
        context = start_processes(_enter, given, ranks, join=False, start_method="spawn")
        failed = _wait(context.processes, stop, woken)
    name_killed_ranks(PROGRAM, failed, told=stop.signal)
    if stop.signal and failed:
        return SIGNALLED + stop.signal
    return max(1, next(iter(failed.values()))) if failed else 0


def variables(port: int, ranks: int) -> dict[str, str]:
    """What torchrun's agent sets for all ranks alike, and the number of this process."""
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": HOST,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": str(uuid.uuid4()),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # else rank 0 would open a store of its own at this port
    }
    sign_as(LAUNCHER, common)
    return common


def _enter(rank: int, module: str, arguments: Sequence[str], common: dict[str, str]) -> None:
    os.environ.update(common | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    end_on_signals()
    # Torch has asked the kernel to end this rank with the launcher, too late where that is gone already.
    if [os.getppid()] != signed_here(LAUNCHER, common):
        os._exit(ORPHANED)
    run_rank(module, arguments)


@contextmanager
def _woken_by_signals() -> Iterator[socket.socket]:
    """A socket that can be read once a signal has come: who waits for it goes on at once."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(before)


def _wait(processes: Sequence[BaseProcess], stop: Stop, woken: socket.socket) -> dict[int, int]:
    """By rank, the exit codes that are not 0, in the order in which the ranks ended.

    At the first of them the others are told to end; a signal to this process is passed on to all. Who does not follow
    is killed.
    """
    running = {process.sentinel: rank for rank, process in enumerate(processes)}
    failed: dict[int, int] = {}
    killed_at = inf
    while running:
        for ready in wait([*running, woken], LOOK_EVERY_S):
            if not isinstance(ready, int):
                woken.recv(1)
                continue
            rank = running.pop(ready)
            processes[rank].join()
            if code := processes[rank].exitcode:
                failed[rank] = code
        left = [processes[rank] for rank in running.values()]
        if killed_at == inf and (stop.signal or failed):
            _tell(left, stop.signal or signal.SIGTERM)
            killed_at = time.monotonic() + KILLED_AFTER_S
        if time.monotonic() > killed_at:
            _tell(left, signal.SIGKILL)
    return failed


def _tell(processes: Sequence[BaseProcess], number: int) -> None:
    """None of them has been joined, so each number is still that of its process."""
    for process in processes:
        assert process.pid is not None
        os.kill(process.pid, number)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
