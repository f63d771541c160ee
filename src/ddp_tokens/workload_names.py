"""How an experiment names its kind of work: a file of this project, or the user's own. Nothing is imported here.

token_labels              src/ddp_tokens/workloads/token_labels.py
path/to/mine.py:MyWork    a class, or an object, of a file; relative paths start at the current folder
path/to/mine.py           a file with the functions
package.module:MyWork     the same of a module that Python finds, the current folder included
"""

import ast
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from ddp_tokens.sources import PACKAGE, SOURCE_ROOT, module_path, source_files

BUILT_INS = f"{PACKAGE}.workloads"
_IDENTIFIER = r"[A-Za-z_]\w*"
_BUILT_IN = re.compile(r"[a-z_][a-z0-9_]*")
_OWN = re.compile(
    rf"((?P<path>[^:\0\n]+\.py)|(?P<module>{_IDENTIFIER}(\.{_IDENTIFIER})*))(:(?P<attribute>{_IDENTIFIER}))?"
)
INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


@dataclass(frozen=True)
class Place:
    """Where a kind of work is. Of a built-in one only `name` is set, of the user's own one of `path` and `module`."""

    name: str
    path: str | None = None
    module: str | None = None
    attribute: str | None = None

    @property
    def is_own(self) -> bool:
        return self.path is not None or self.module is not None

    @property
    def file(self) -> Path | None:
        """None where there is none."""
        if self.path is not None:
            return Path(self.path).resolve() if Path(self.path).is_file() else None
        return module_file(self.module) if self.module else module_path(f"{BUILT_INS}.{self.name}")


def place_of(name: str) -> Place:
    """Raises ValueError for what cannot be a name."""
    if _BUILT_IN.fullmatch(name):
        return Place(name)
    found = _OWN.fullmatch(name)
    if found is None:
        raise ValueError(
            "a built-in kind of work (such as token_labels), a file with your own (path/to/mine.py:MyWork), or a "
            "module (package.module:MyWork) is needed"
        )
    return Place(name, **{part: found[part] for part in ("path", "module", "attribute")})


def _required(name: str) -> str:
    place_of(name)
    return name


WorkloadName = Annotated[str, AfterValidator(_required)]


def is_own(name: str) -> bool:
    return place_of(name).is_own


def module_file(module: str) -> Path | None:
    """The source of a module that `import` would find, without importing the packages above it."""
    where: list[str] | None = [*sys.path, str(Path.cwd())]
    origin = None
    for end in [index for index, letter in enumerate(module) if letter == "."] + [len(module)]:
        specs = (finder.find_spec(module[:end], where) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, specs), None) if where is not None else None
        if spec is None:
            return None
        where = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        origin = spec.origin
    return Path(origin).resolve() if origin and origin.endswith(".py") else None


def problem_of(name: str) -> str | None:
    """Why the user's own work cannot be loaded, as far as that is seen without importing it."""
    place = place_of(name)
    if not place.is_own:
        return None
    if place.file is None:
        if place.path is not None:
            return f"workload '{name}' has no file {Path(place.path).absolute()}: write it, or mend the path"
        return f"workload '{name}': Python finds no module {place.module}, here or where it is installed: mend the name"
    for path in own_files(place):
        try:
            _tree(path)
        except (SyntaxError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            return f"workload '{name}': {path}{line} is no valid Python ({getattr(error, 'msg', error)}): mend it"
    return None


def own_files(place: Place) -> list[Path]:
    """The user's file, and the files beside it that it imports, directly or not, sorted. None of a built-in kind."""
    entry = place.file
    if entry is None or not place.is_own:
        return []
    folder, package = _root(place, entry)
    found: set[Path] = set()
    waiting = [entry]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(_imported_from(path, folder, package))
    return sorted(found)


def files_of(name: str) -> dict[str, Path]:
    """By name, every file that a kind of work is made of: below the project as seen from there, elsewhere as seen from
    the user's file, so that a copy in another place has the same names.
    """
    place = place_of(name)
    own = own_files(place)
    entries = own or [path for path in [place.file] if path]
    paths = {*own, *(path for entry in entries if _is_valid(entry) for path in source_files(entry))}
    return {_named(path, place): path for path in sorted(paths)}


def _named(path: Path, place: Place) -> str:
    project = SOURCE_ROOT.parent
    if path.is_relative_to(project) or place.file is None:
        return str(path.relative_to(project))
    folder, _ = _root(place, place.file)
    return os.path.relpath(path, folder)


def _root(place: Place, entry: Path) -> tuple[Path, str | None]:
    """The folder from which the user's modules are imported; of installed ones, the only package that is the user's."""
    if place.module is None:
        return entry.parent, None
    package = place.module.partition(".")[0]
    above = place.module.count(".") + (entry.name == "__init__.py")
    folder = entry.parents[above]
    installed = {Path(sysconfig.get_path(name)).resolve() for name in INSTALLED}
    return folder, package if folder in installed else None


def _imported_from(path: Path, folder: Path, package: str | None) -> Iterator[Path]:
    if not _is_valid(path):
        return
    for base, name in _imports(path, folder):
        parts = name.split(".")
        if base == folder and package is not None and parts[0] != package:
            continue
        for end in range(1, len(parts) + 1):
            module = base.joinpath(*parts[:end])
            candidates = (module.with_suffix(".py"), module / "__init__.py")
            yield from (candidate.resolve() for candidate in candidates if candidate.is_file())


def _imports(path: Path, folder: Path) -> Iterator[tuple[Path, str]]:
    """What a file imports: the folder from which, and the dotted name."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from ((folder, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if node.level else folder
            before = f"{node.module}." if node.module else ""
            yield from ((base, f"{before}{alias.name}") for alias in node.names)


def _is_valid(path: Path) -> bool:
    try:
        _tree(path)
    except (SyntaxError, ValueError):
        return False
    return True


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), filename=str(path))
