"""Versions of the packages that a process has really imported, as the packages themselves say. No torch."""

import platform
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType

from ddp_tokens.sources import PACKAGE

FILE = "imported.json"


def imported_file(rank_logs: Path) -> Path:
    """logs/ranks/RUN/imported.json: it tells of the machine, not of the run's results."""
    return rank_logs / FILE


def imported_versions(modules: Mapping[str, ModuleType]) -> dict[str, str]:
    """`modules`: sys.modules. Package -> version, sorted, and `python`. What states no version is left out."""
    names = sorted({name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {PACKAGE, "__main__"})
    found = {name: version for name in names if (version := _version_of(name, modules)) is not None}
    return {"python": platform.python_version()} | found


def _version_of(name: str, modules: Mapping[str, ModuleType]) -> str | None:
    stated = getattr(modules.get(name), "__version__", None)
    if isinstance(stated, str):
        return str(stated)  # torch's is a class of its own
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
