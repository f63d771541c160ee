"""A process that ends with those that started it, also when they are killed and can tell nobody."""

import os
import select
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence

SNAKEMAKE = "DDP_TOKENS_SNAKEMAKE_PID"
LAUNCHER = "DDP_TOKENS_LAUNCHER_PID"
GRACE_S = 8.0
ORPHANED = 129  # as for SIGHUP


def sign_as(name: str, environment: MutableMapping[str, str]) -> None:
    """Tell the processes that this one starts its number."""
    environment[name] = str(os.getpid())


def snakemake_of(environment: Mapping[str, str]) -> list[int]:
    """Number of the Snakemake process that started this job; none where a step is run by hand."""
    return [int(environment[SNAKEMAKE])] if SNAKEMAKE in environment else []


def starters_of_rank(environment: Mapping[str, str]) -> list[int]:
    """Launcher and Snakemake. torchrun does not give its number: it is the parent."""
    return [int(environment.get(LAUNCHER, os.getppid())), *snakemake_of(environment)]


def end_with(processes: Sequence[int], first: Callable[[], object] | None = None, grace_s: float = GRACE_S) -> None:
    """Watch `processes` in a thread. When one has ended, call `first`, and end this process `grace_s` seconds later if
    it is still there; without `first`, at once.
    """
    watched = select.poll()
    ended = []
    for process in processes:
        try:
            watched.register(os.pidfd_open(process), select.POLLIN)
        except ProcessLookupError:
            ended.append(process)

    def wait() -> None:
        if not ended:
            watched.poll()
        if first is not None:
            first()
            time.sleep(grace_s)
        os._exit(ORPHANED)

    if processes:
        threading.Thread(target=wait, name="watching", daemon=True).start()
