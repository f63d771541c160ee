"""Walk what is to be deleted, and delete it or only count it.

Folders are opened by their descriptors, one inside the other, never through a symbolic link: also one that another
process puts in a folder's place meanwhile leads nowhere.
"""

import os
import re
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LINK = "is a symbolic link"
REPOSITORY = "is a git repository of its own"
BARE_REPOSITORY = {"HEAD", "objects", "refs"}
MOUNTS = Path("/proc/self/mountinfo")
BLOCK = 512  # bytes, in which st_blocks counts


@dataclass(frozen=True)
class Row:
    """What goes, in one line: a file, or a folder with all that is in it. `in_part`: not all of it can be deleted."""

    path: str
    bytes: int
    files: int
    in_part: bool = False


class Fate(IntEnum):
    """Of a file or folder. A folder has the highest of what is in it."""

    GONE = 0  # or would be, where nothing is deleted
    KEPT = 1
    FAILED = 2


@dataclass
class Sweep:
    """`why_kept`: of a path, why it stays; None where it goes, "" where that needs no telling. `last`: files that are
    deleted after all others of their folder, and not counted.

    What it finds is in `rows`, `left` and `failed`, the latter two (path, why).
    """

    root: Path
    why_kept: Callable[[str], str | None]
    last: Collection[str] = ()
    delete: bool = False
    rows: list[Row] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def take(self, path: str) -> None:
        """A file or folder below the root, which may have gone. What keeps a folder keeps all in it."""
        *above, name = path.split("/")
        for depth in range(1, len(above) + 1):
            outer_path = "/".join(above[:depth])
            if reason := self.why_kept(outer_path):
                self.left.append((outer_path, reason))
                return
        folder = os.open(self.root, FOLDER)
        try:
            for depth, each in enumerate(above, start=1):
                outer, folder = folder, os.open(each, FOLDER, dir_fd=folder)
                os.close(outer)
                if is_repository(os.listdir(folder)):
                    self.left.append(("/".join(above[:depth]), REPOSITORY))
                    return
            self.rows += self._entry(folder, name, path)[1]
        except FileNotFoundError:
            pass
        except OSError as error:
            self.failed.append((path, str(error.strerror)))
        finally:
            os.close(folder)

    def _entry(self, folder: int, name: str, path: str) -> tuple[Fate, list[Row]]:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            reason = LINK if stat.S_ISLNK(status.st_mode) else self.why_kept(path)
            if reason is not None:
                self.left += [(path, reason)] if reason else []
                return Fate.KEPT, []
            if stat.S_ISDIR(status.st_mode):
                return self._folder(folder, name, path)
            if self.delete:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:  # another process was faster
            return Fate.GONE, []
        except OSError as error:
            self.failed.append((path, str(error.strerror)))
            return Fate.FAILED, []
        return Fate.GONE, [] if path in self.last else [Row(path, self._bytes(status), 1)]

    def _folder(self, outer: int, name: str, path: str) -> tuple[Fate, list[Row]]:
        folder = os.open(name, FOLDER, dir_fd=outer)
        try:
            names = sorted(os.listdir(folder), key=lambda each: (f"{path}/{each}" in self.last, each))
            if is_repository(names):
                self.left.append((path, REPOSITORY))
                return Fate.KEPT, []
            inside = [self._entry(folder, each, f"{path}/{each}") for each in names]
        finally:
            os.close(folder)
        rows = [row for _, found in inside for row in found]
        fate = max((fate for fate, _ in inside), default=Fate.GONE)
        if fate == Fate.GONE and self.delete:
            fate = self._remove_empty(outer, name, path)
        if fate == Fate.FAILED:
            return fate, [combined(path, rows, in_part=True)] if rows else []
        return fate, rows if fate == Fate.KEPT else [combined(path, rows)]

    def _remove_empty(self, outer: int, name: str, path: str) -> Fate:
        try:
            os.rmdir(name, dir_fd=outer)
        except OSError as error:
            self.failed.append((path, str(error.strerror)))
            return Fate.FAILED
        return Fate.GONE

    def _bytes(self, status: os.stat_result) -> int:
        """What the file takes, but for the rest of its last block. A file with several names counts once."""
        if status.st_nlink > 1:
            inode = (status.st_dev, status.st_ino)
            if inode in self._seen:
                return 0
            self._seen.add(inode)
        return min(status.st_size, status.st_blocks * BLOCK)


def combined(path: str, rows: Collection[Row], in_part: bool = False) -> Row:
    return Row(path, sum(row.bytes for row in rows), sum(row.files for row in rows), in_part)


def is_repository(names: Collection[str]) -> bool:
    """A folder with these entries: one that is worked in, or a bare one."""
    return ".git" in names or BARE_REPOSITORY.issubset(names)


def mount_points(root: Path) -> frozenset[str]:
    """Below `root`, from there on: where another folder or file system is seen. None where none is told."""
    lines = MOUNTS.read_text(errors="surrogateescape").splitlines() if MOUNTS.is_file() else []
    paths = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in lines]
    start = f"{root.resolve()}/"
    return frozenset(path.removeprefix(start) for path in paths if path.startswith(start))
