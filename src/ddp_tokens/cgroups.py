"""The limits that a container or a batch system has set for this process, by cgroups of version 1 and 2. No torch.

A limit of any group above counts as well. What lies above the part of the tree that a container sees cannot be read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
MOUNTS = Path("/proc/self/mountinfo")
# Version 1 writes "no limit" as the largest number of pages; no machine has an exbibyte.
UNLIMITED = 2**60


@dataclass(frozen=True)
class Limits:
    """`cores`: seconds of CPU per second. `memory`: bytes; `left`: what of them is not in use, caches aside. None where
    there is no limit. `known`: whether there were groups to read.
    """

    cores: float | None = None
    memory: int | None = None
    left: int | None = None
    known: bool = False


@dataclass(frozen=True)
class Names:
    """The files of one version of memory's cgroup. `cache`: in memory.stat, what the kernel can take back."""

    limit: str
    used: str
    cache: str


V1 = Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = Names("memory.max", "memory.current", "inactive_file")


def limits() -> Limits:
    try:
        folders = {controller: list(_folders(controller)) for controller in ("cpu", "memory")}
    except OSError:
        return Limits()
    cores = [found for folder in folders["cpu"] if (found := _cores(folder)) is not None]
    memory = [pair for folder in folders["memory"] for names in (V1, V2) if (pair := _memory(folder, names))]
    return Limits(
        cores=min(cores, default=None),
        memory=min((limit for limit, _ in memory), default=None),
        left=min((left for _, left in memory), default=None),
        known=any(folder.is_dir() for folder in folders["memory"]),
    )


def _folders(controller: str) -> Iterator[Path]:
    """The folders of this process's group and of those above it, as far as they are mounted here."""
    for line in GROUPS.read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for root, mounted in _mounts(controller if controllers else None):
            yield from _upwards(root, mounted, group)


def _mounts(controller: str | None) -> Iterator[tuple[str, Path]]:
    """Which group is mounted where; of version 2 where `controller` is None."""
    for line in MOUNTS.read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        root, mounted = before.split()[3:5]
        kind, _, options = after.split(" ", 2)  # what is mounted may be empty
        if kind == "cgroup2" if controller is None else kind == "cgroup" and controller in options.split(","):
            yield root, Path(mounted)


def _upwards(root: str, mounted: Path, group: str) -> Iterator[Path]:
    """Where a container mounts its own group only, the kernel may name the group by the host's path."""
    inside = group.removeprefix(root.rstrip("/")) if group.startswith(root) else ""
    folder = mounted / inside.lstrip("/")
    while folder.is_relative_to(mounted):
        yield folder
        folder = folder.parent


def _cores(folder: Path) -> float | None:
    quota, _, period = _text(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None  # "max" in version 2, -1 in version 1
    return int(quota) / int(period)


def _memory(folder: Path, names: Names) -> tuple[int, int] | None:
    """The limit and what is left of it."""
    limit, used = _text(folder / names.limit), _text(folder / names.used)
    if not (limit.isdecimal() and used.isdecimal()) or int(limit) >= UNLIMITED:
        return None
    counted = dict(line.split(maxsplit=1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
    return int(limit), max(0, int(limit) - int(used) + int(counted.get(names.cache, 0)))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
