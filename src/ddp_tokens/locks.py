"""Locks that end with the process that holds them, however it ends. A program that it starts does not inherit them.

All raise LaunchError where the file system has no locks.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from ddp_tokens.errors import LaunchError
from ddp_tokens.machine import name_of, this_machine

RETRY_S = 0.1


def lock_alone(path: Path, wait_s: float = 0.0) -> IO[str] | None:
    """The open file, locked against every other process while it stays open; None when others hold it for `wait_s`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    while True:
        stream = open(path, "a+")  # noqa: SIM115  (open is what holds the lock)
        if _locked(stream, fcntl.LOCK_EX):
            # The former holder may have removed the file between the two lines above: then others cannot see this one.
            if path.exists() and os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                stream.truncate(0)
                _sign(stream)
                return stream
            stream.close()
            continue
        stream.close()
        if time.monotonic() >= deadline:
            return None
        time.sleep(RETRY_S)


def share(held: IO[str]) -> bool:
    """Let others in that share; False when another process has taken the lock for itself in between."""
    return _locked(held, fcntl.LOCK_SH)


def lock_shared(path: Path) -> IO[str] | None:
    """The open file, locked against `lock_alone` while it stays open; None when another process holds it alone."""
    stream = open(path, "a+")  # noqa: SIM115
    if _locked(stream, fcntl.LOCK_SH):
        _sign(stream)
        return stream
    stream.close()
    return None


def is_held(path: Path) -> bool:
    """Whether another process holds it, alone or shared. Makes no file and writes nothing."""
    try:
        stream = open(path, "r+" if os.access(path, os.W_OK) else "r")  # noqa: SIM115
    except FileNotFoundError:
        return False
    with stream:
        return not _locked(stream, fcntl.LOCK_EX)


def holders(path: Path) -> str:
    """Those that have signed the lock file, for a sentence: "process 12", "processes 12, 13 on host a". Of this machine
    only those that live.
    """
    signed = [line.partition("@")[::2] for line in path.read_text().split()]
    here = [number for number, machine in signed if machine == this_machine() and Path("/proc", number).exists()]
    elsewhere = [f"{number} on host {name_of(machine)}" for number, machine in signed if machine != this_machine()]
    named = [*here, *elsewhere]
    return f"process{'es' if len(named) > 1 else ''} {', '.join(named) or 'of another host'}"


def _sign(stream: IO[str]) -> None:
    stream.write(f"{os.getpid()}@{this_machine()}\n")
    stream.flush()


def _locked(stream: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise LaunchError(
            f"{stream.name}: {error.strerror}; its file system has no locks (flock), which keep two runs apart: use "
            "another, or mount it so"
        ) from error
    return True
