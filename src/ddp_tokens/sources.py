"""Which project files a Python file really uses, read from its import statements without importing anything."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = "ddp_tokens"
SOURCE_ROOT = Path(__file__).resolve().parents[1]


def source_files(entry: Path) -> list[Path]:
    """The entry file and every file of this package that it imports, directly or not, sorted by path."""
    found: set[Path] = set()
    waiting = [entry.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(_imported_files(path))
    return sorted(found)


def module_path(module: str) -> Path | None:
    """The file of a module of this package, or None when there is no such module."""
    base = SOURCE_ROOT.joinpath(*module.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


@cache
def _imported_files(path: Path) -> tuple[Path, ...]:
    modules = list(imported_modules(path))
    with_parents = {module[:end] for module in modules for end in _package_ends(module)}
    return tuple(filter(None, (module_path(module) for module in sorted(with_parents))))


def _package_ends(module: str) -> list[int]:
    return [index for index, letter in enumerate(module) if letter == "."] + [len(module)]


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names of this package's modules (and of names inside them) that a file imports."""
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == PACKAGE)
