"""Run a plain function on real gloo ranks: one process per rank, FileStore rendezvous, a time limit, no port.

Ranks are forked from a server process that has imported torch and computed nothing (multiprocessing's forkserver). That
is as quick as forking pytest itself, and the threads and locks of what other tests have computed are not copied.
"""

import faulthandler
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from ddp_tokens import distributed
from ddp_tokens.world import World

GROUP_TIMEOUT_S = 20
RANKS = multiprocessing.get_context("forkserver")
RANKS.set_forkserver_preload(["pytest", "torch._dynamo", "ddp_tokens.train", "ddp_tokens.gradients"])


class RankError(Exception):
    """Some rank failed; the text holds the traceback of each rank that did, the first to fail first."""


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    tmp_path: Path,
    *arguments: Any,
    timeout: float = 60,
    joined: bool = True,
) -> list[Any]:
    """Call `function(world, *arguments)` on every rank; return what each returned, by rank, after a trip through JSON.

    `function` stands at the top of a module. With `joined` it runs inside a process group; without, whatever it calls
    may join one, and finds torchrun's variables set. At the first rank that fails the others are killed, and RankError
    is raised with the traceback; TimeoutError, with every stack, when ranks have not ended in time.
    """
    folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=tmp_path))
    with _started(function, world_size, folder, joined, timeout, arguments) as processes:
        _wait_for_all(processes, folder, timeout)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world_size)]


def ends_of_ranks(
    function: Callable[..., Any], world_size: int, tmp_path: Path, *arguments: Any, timeout: float = 60
) -> list[dict[str, Any]]:
    """As run_ranks without `joined`, but no rank is ended because another has failed.

    By rank: `exit`, its exit code; `returned`, what the function returned, or None; `error`, its traceback, or None.
    """
    folder = Path(tempfile.mkdtemp(prefix="ranks-", dir=tmp_path))
    with _started(function, world_size, folder, False, timeout, arguments) as processes:
        deadline = time.monotonic() + timeout
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        running = [rank for rank, process in enumerate(processes) if process.exitcode is None]
        if running:
            raise TimeoutError(f"ranks {running} did not end within {timeout} s")
        return [_end_of(rank, process, folder) for rank, process in enumerate(processes)]


def _end_of(rank: int, process: BaseProcess, folder: Path) -> dict[str, Any]:
    returned, error = folder / f"rank-{rank}.json", folder / f"rank-{rank}.error"
    return {
        "exit": process.exitcode,
        "returned": json.loads(returned.read_text()) if returned.exists() else None,
        "error": error.read_text() if error.exists() else None,
    }


@contextmanager
def _started(
    function: Callable[..., Any], world_size: int, folder: Path, joined: bool, timeout: float, arguments: Sequence[Any]
) -> Iterator[list[BaseProcess]]:
    worlds = [World(rank, rank, world_size) for rank in range(world_size)]
    processes = [
        RANKS.Process(target=_run_rank, args=(function, world, folder, joined, timeout, arguments)) for world in worlds
    ]
    try:
        for process in processes:
            process.start()
        yield list(processes)
    finally:
        for process in processes:
            if process.pid is not None:
                process.kill()
                process.join()


def _wait_for_all(processes: Sequence[BaseProcess], folder: Path, timeout: float) -> None:
    __tracebackhide__ = True
    deadline = time.monotonic() + timeout
    running = {process.sentinel: rank for rank, process in enumerate(processes)}
    while running:
        ended = wait(list(running), max(0.0, deadline - time.monotonic()))
        if not ended:
            stacks = "".join(f"\nrank {rank}:\n{_text(folder / f'rank-{rank}.stack')}" for rank in running.values())
            raise TimeoutError(f"ranks {sorted(running.values())} did not end within {timeout} s{stacks}")
        failed = []
        for sentinel in ended:
            rank = running.pop(sentinel)
            processes[rank].join()
            if processes[rank].exitcode:
                failed.append(f"rank {rank} ended with exit code {processes[rank].exitcode}")
        if failed:
            errors = sorted(folder.glob("rank-*.error"), key=lambda path: path.stat().st_mtime_ns)
            raise RankError("\n".join([*failed, *(f"{path.stem}:\n{path.read_text()}" for path in errors)]))


def _run_rank(
    function: Callable[..., Any], world: World, folder: Path, joined: bool, timeout: float, arguments: Sequence[Any]
) -> None:
    """In the rank's own process."""
    try:
        with open(folder / f"rank-{world.rank}.stack", "w") as stack:
            faulthandler.dump_traceback_later(0.9 * timeout, file=stack)
            torch.set_num_threads(1)
            _meet_by_file(world, folder)
            with distributed.process_group("gloo", GROUP_TIMEOUT_S) if joined else nullcontext():
                result = function(world, *arguments)
            faulthandler.cancel_dump_traceback_later()
        (folder / f"rank-{world.rank}.json").write_text(json.dumps(result))
    except BaseException:
        (folder / f"rank-{world.rank}.error").write_text(traceback.format_exc())
        sys.exit(1)


def _meet_by_file(world: World, folder: Path) -> None:
    """From here on, a process group is joined through a file, a new one each time, instead of torchrun's port."""
    variables = {"RANK": world.rank, "LOCAL_RANK": world.local_rank, "WORLD_SIZE": world.size}
    os.environ.update({name: str(value) for name, value in variables.items()})
    os.environ.update(MASTER_ADDR="not used", MASTER_PORT="not used")
    join, numbers = distributed.init_distributed, itertools.count()

    def join_at_file(backend: str, timeout_s: int) -> tuple[int, int]:
        at = partial(join, backend, timeout_s, rank=world.rank, world_size=world.size)
        return at(init_method=f"file://{folder}/rendezvous-{next(numbers)}")

    distributed.init_distributed = join_at_file


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else "it never started"
