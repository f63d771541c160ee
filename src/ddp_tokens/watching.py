"""A process that ends with those that started it, also when they are killed and can tell nobody."""

import os
import select
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence

from ddp_tokens.machine import this_machine

SNAKEMAKE = "DDP_TOKENS_SNAKEMAKE_PID"
LAUNCHER = "DDP_TOKENS_LAUNCHER_PID"
GRACE_S = 8.0
ORPHANED = 129  # as for SIGHUP


def sign_as(name: str, environment: MutableMapping[str, str]) -> None:
    """Tell the processes that this one starts its number, and on which machine that is one."""
    environment[name] = f"{os.getpid()}@{this_machine()}"


def signed_here(name: str, environment: Mapping[str, str]) -> list[int]:
    """The number that `sign_as` has left, where it was on this machine: jobs may have been sent to another."""
    number, _, machine = environment.get(name, "").partition("@")
    return [int(number)] if machine == this_machine() else []


def snakemake_of(environment: Mapping[str, str]) -> list[int]:
    """Number of the Snakemake process that started this job; none where a step is run by hand, or on another host."""
    return signed_here(SNAKEMAKE, environment)


def starters_of_rank(environment: Mapping[str, str]) -> list[int]:
    """Launcher and Snakemake. torchrun does not give its number: it is the parent."""
    return [*(signed_here(LAUNCHER, environment) or [os.getppid()]), *snakemake_of(environment)]


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
