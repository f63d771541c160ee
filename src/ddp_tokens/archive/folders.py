"""The folder that a tool is asked to fill."""

import os
import shutil
from pathlib import Path

import yaml

from ddp_tokens.archive.layout import CONFIG, CONTROLS, INPUTS, RESULTS, SOURCE, results_of
from ddp_tokens.archive.recorded import Run
from ddp_tokens.errors import ArchiveError
from ddp_tokens.files import sha256, write_bytes, write_text

UNPACKED = ".unpacked"
FIRST_PARTS = (".snakemake", ".venv", ".cache", UNPACKED)
# What PATH, make, a shell and Snakemake's format strings take apart.
APART = " \t\n\r\v\f:$#%'\"\\{}"


def require_new(folder: Path) -> None:
    """Raises ArchiveError unless there is nothing yet, or an empty folder."""
    if folder.is_symlink() and not folder.exists():
        raise ArchiveError(f"{folder} is a link that leads nowhere: name a folder that is not there yet")
    if folder.exists() and not folder.is_dir():
        raise ArchiveError(f"{folder} is no folder: name one that is not there yet, or an empty one")
    if folder.is_dir() and any(folder.iterdir()):
        raise ArchiveError(f"{folder} is not empty: name a folder that is not there yet, or an empty one")


def require_buildable(folder: Path) -> None:
    """Raises ArchiveError for a path in which Snakemake cannot run scripts, or a new environment cannot be found."""
    bad = next((letter for letter in str(folder.resolve()) if letter in APART), None)
    if bad is not None:
        what = "a space" if bad.isspace() else f"'{bad}'"
        raise ArchiveError(
            f"{folder.resolve()}: nothing can be built in a folder with {what} in its path: name another"
        )


def unpack_project(run: Run, folder: Path) -> None:
    """The archived source and inputs, with the archived settings as the only experiment.

    Raises ArchiveError for what is missing, and for a file that Snakemake would take for its own.
    """
    names = [name for name in run.archive.names if name.startswith((f"{SOURCE}/", f"{INPUTS}/"))]
    if f"{SOURCE}/Snakefile" not in names:
        raise ArchiveError(f"{run.archive.path}: {SOURCE}/Snakefile is not in it: there is nothing to rebuild with")
    for name in names:
        _require_allowed(run, name)
    _require_left_out(run)
    try:
        for prefix in (SOURCE, INPUTS):
            run.archive.extract(folder / UNPACKED, f"{prefix}/")
            for path in sorted((folder / UNPACKED / prefix).rglob("*")):
                if path.is_file():
                    _move(path, folder / path.relative_to(folder / UNPACKED / prefix))
    finally:
        shutil.rmtree(folder / UNPACKED, ignore_errors=True)
    settings = run.archive.read(f"{results_of(run.experiment)}/{CONFIG}")
    write_bytes(folder / "config" / f"{run.experiment}.yaml", settings)
    # A name such as 2024, on or null must stay one.
    write_text(folder / "config" / "config.yaml", yaml.safe_dump({"experiments": [run.experiment]}))


def _require_allowed(run: Run, name: str) -> None:
    first, *rest = name.split("/")[1:]
    if first in FIRST_PARTS or (first == RESULTS and rest[:1] in ([run.experiment], [CONTROLS])):
        raise ArchiveError(
            f"{run.archive.path}: {name} would be taken for something that the rebuild has made: do not rebuild it, "
            "and ask whoever made it"
        )


def _require_left_out(run: Run) -> None:
    """What the source needs and the archive does not hold must lie where it was."""
    for name, of in sorted(run.archive.document.omitted.items()):
        first, _, path = name.partition("/")
        if first == SOURCE or (first == INPUTS and not _is_elsewhere(run, f"/{path}")):
            raise ArchiveError(
                f"{run.archive.path}: {name} was left out as too large: ask for an archive with a higher limit"
            )
        if first == INPUTS and not (Path(f"/{path}").is_file() and sha256(f"/{path}") == of["sha256"]):
            raise ArchiveError(
                f"{run.archive.path}: the experiment reads /{path}, which is no part of the archive: put the file "
                f"with SHA-256 {of['sha256']} there"
            )


def _is_elsewhere(run: Run, path: str) -> bool:
    """Whether the settings give own data, or an own workload, by a whole path: of a workload, in its folder."""
    settings = run.settings()
    corpus, workload = settings.get("corpus"), str(settings.get("workload", ""))
    if Path(workload).is_absolute() and Path(path).is_relative_to(Path(workload).parent):
        return True
    return isinstance(corpus, dict) and Path(str(corpus.get("path", ""))).is_absolute()


def _move(path: Path, target: Path) -> None:
    if target.exists():
        raise ArchiveError(f"{target} is in the archive twice, in {SOURCE}/ and in {INPUTS}/: make the archive again")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, target)
