"""Which names may stand in an archive: those of files that lie below the folder it is unpacked into, each once."""

import re
from collections.abc import Iterable

LONGEST_NAME, LONGEST_PART = 1024, 200  # bytes: file systems take 4096 and 255, a temporary name needs some
DEEPEST = 50  # folders, in which each file counts
DRIVE = re.compile(r"[A-Za-z]:")


def problem_of(name: str) -> str | None:
    """What is wrong with the name of an entry, as the end of a sentence; None where nothing is. That of a folder ends
    in "/".
    """
    parts = name.removesuffix("/").split("/")
    if not name:
        return "has no name"
    if not name.isprintable():  # also marks of direction, which show a name as another
        return "has a character in its name that cannot be shown"
    if name.startswith("/"):
        return "has an absolute path"
    if DRIVE.match(name):
        return "names a drive"
    if "\\" in name:
        return "has a backslash in its name"
    if ".." in parts:
        return "leads out of the archive's folder with '..'"
    if "" in parts or "." in parts:
        return "has a name that is not in its shortest form"
    if len(name.encode()) > LONGEST_NAME or max(len(part.encode()) for part in parts) > LONGEST_PART:
        return "has a name that is too long"
    if len(parts) > DEEPEST:
        return f"lies more than {DEEPEST - 1} folders deep"
    return None


def clash_in(names: Iterable[str]) -> str | None:
    """Of the entries' names, the first that is there twice, or that is a file's and a folder's."""
    seen: set[str] = set()
    files: set[str] = set()
    folders: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
        above = name.removesuffix("/").split("/")[:-1]
        folders |= {"/".join(above[:end]) for end in range(1, len(above) + 1)}
        (folders if name.endswith("/") else files).add(name.removesuffix("/"))
    return min(files & folders, default=None)
