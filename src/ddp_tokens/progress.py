"""Where each rank is, told by itself in a small file that any process may read at any time. No torch.

logs/ranks/RUN/rank-R.now.json    a JSON object, padded and overwritten in place; gone once the rank has done its work
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddp_tokens.files import naming
from ddp_tokens.machine import this_machine
from ddp_tokens.world import World

SIZE = 4096  # bytes of the file; overwriting in place needs no space, so a full disk does not silence a rank
LONGEST_TEXT = 300  # characters of what a rank raised; escaped, each takes at most 12 bytes
PROCESSES = Path("/proc")
# What the seconds of an update are counted as; what is in none of these is the rest.
COMMUNICATION, REDUCING_BACKWARD = "communication", "reducing_backward"
DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"
# What a collective is called in a profile, where it is part of more than itself; by kind.
MARKED = {REDUCING_BACKWARD: BACKWARD, FORWARD: FORWARD}
LAUNCH_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Place:
    """`launch`: the same for all ranks that were started together. `born`: start of the process, in the kernel's ticks.
    `address`: where it listens, see `reach`; None where all ranks are on one host.

    `since`: time.time() of the last change. `collective`: the last that was entered, the `entered`-th; `inside`: it has
    not come back. `raised`: what ended the rank; `blames`: the rank whose failure that was.
    """

    rank: int
    launch: str
    machine: str
    pid: int
    born: str
    since: float
    step: int | None = None
    microbatch: int | None = None
    collective: str | None = None
    inside: bool = False
    entered: int = 0
    raised: str | None = None
    blames: int | None = None
    address: str | None = None


class Progress:
    """What training tells about where it is. This one tells nobody: for processes that nobody waits for."""

    def begins_update(self, step: int) -> None:
        pass

    def begins_microbatch(self, number: int) -> None:
        """`number` counts from 1 in each window."""

    @contextmanager
    def entered(self, collective: str, kind: str = COMMUNICATION) -> Iterator[None]:
        """The block is a collective, or holds one; `kind` is what its seconds are counted as."""
        yield

    @contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """The block waits for no other rank; `kind` is what its seconds are counted as."""
        yield

    def failed(self, raised: str, blames: int | None = None) -> None:
        """What ends this rank, before it leaves the process group: the others look as soon as it is gone."""


UNWATCHED = Progress()


class WrittenProgress(Progress):
    """`seconds`: of the update so far, by kind; `since_update`: when it began, perf_counter(). `marked`: a context for
    each block, by name, so that a profiler can show it.
    """

    def __init__(self, folder: Path, rank: int, launch: str, address: str | None = None) -> None:
        pid = os.getpid()
        born = _state_and_birth(pid)[1]
        self.place = Place(rank, launch, this_machine(), pid, born, time.time(), address=address)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.since_update = time.perf_counter()
        self.marked: Callable[[str], AbstractContextManager[object]] = nullcontext
        self.path = place_file(folder, rank)
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        with naming(self.path):
            self._now()

    def begins_update(self, step: int) -> None:
        self.seconds.clear()
        self.since_update = time.perf_counter()
        self._now(step=step, microbatch=None)

    def begins_microbatch(self, number: int) -> None:
        self._now(microbatch=number)

    @contextmanager
    def entered(self, collective: str, kind: str = COMMUNICATION) -> Iterator[None]:
        start = time.perf_counter()
        self._now(collective=collective, inside=True, entered=self.place.entered + 1)
        with self.marked(MARKED.get(kind, collective)):
            yield
        self._now(inside=False)
        self.seconds[kind] += time.perf_counter() - start

    @contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        start = time.perf_counter()
        with self.marked(kind):
            yield
        self.seconds[kind] += time.perf_counter() - start

    def failed(self, raised: str, blames: int | None = None) -> None:
        self._now(raised=" ".join(raised.split())[:LONGEST_TEXT], blames=blames, since=self.place.since)

    def close(self, remove: bool) -> None:
        os.close(self._descriptor)
        if remove:
            self.path.unlink(missing_ok=True)

    def _now(self, **changes: Any) -> None:
        self.place = replace(self.place, **{"since": time.time()} | changes)
        os.pwrite(self._descriptor, json.dumps(vars(self.place)).encode().ljust(SIZE), 0)


def launch_name(environment: Mapping[str, str]) -> str:
    return " ".join(environment.get(name, "-") for name in LAUNCH_VARIABLES)


def place_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.now.json"


def read_places(folder: Path, world: World, launch: str) -> dict[int, Place]:
    """By rank, the others that are here. What an earlier launch left does not count, nor what is half written."""
    found = {}
    for rank in range(world.size):
        try:
            place = Place(**json.loads(place_file(folder, rank).read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if rank != world.rank and place.launch == launch:
            found[rank] = place
    return found


def is_gone(place: Place) -> bool:
    """Has its process ended? Only the kernel of this machine is asked."""
    if place.machine != this_machine() or not place.born:
        return False
    state, born = _state_and_birth(place.pid)
    return state in ("", "Z", "X") or born != place.born


def _state_and_birth(pid: int) -> tuple[str, str]:
    """As the kernel tells them, or empty texts."""
    try:
        fields = (PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]
