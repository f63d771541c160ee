"""The project as it was used: its files, the commit, and how they differ from it. Asked of git, where it can be."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ddp_tokens.files import sha256, to_json
from ddp_tokens.tracked import asking_this_repository, in_repository

# Where the project's own files lie. Of what git does not know, and where there is no git, these alone are taken.
FOLDERS = (
    *(
        ".ci",
        "benchmarks",
        "config",
        "docs",
        "envs",
        "examples",
        "profiles",
        "report",
        "rules",
        "scripts",
        "src",
        "tests",
    ),
    *("workflow_scripts", "workloads"),
)
FILES = (
    *("Snakefile", "Makefile", "pyproject.toml", "compose.yaml", "LICENSE", "CITATION.cff", ".gitignore"),
    *(".dockerignore", ".pre-commit-config.yaml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md"),
)
ENTRY = "Snakefile"
# Whatever the user's own settings of git are.
AS_GIT_APPLY_READS_IT = (
    *("--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--unified=3"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--diff-algorithm=myers", "--no-indent-heuristic", "-O/dev/null"),
    *("--ignore-submodules=none", "--submodule=short", "--ws-error-highlight=none", "--inter-hunk-context=0"),
)
NOT_SOURCE = ("__pycache__", ".egg-info")


@dataclass(frozen=True)
class SourceState:
    """`files`: paths below the project, sorted, as they are now. `untracked`: those of them that git does not know.
    `difference`: of the tracked ones from the commit, as `git apply` reads it. `commit`, `date` (of the commit) and
    `dirty` are None where git cannot be asked.
    """

    files: tuple[str, ...]
    untracked: tuple[str, ...] = ()
    commit: str | None = None
    date: str | None = None
    difference: bytes = b""

    @property
    def dirty(self) -> bool | None:
        return None if self.commit is None else bool(self.difference or self.untracked)


def source_state(root: Path) -> SourceState:
    commit = _git(root, "rev-parse", "HEAD") if in_repository(root) else None
    tracked = _paths(_git(root, "ls-files", "-z")) if commit else set()
    if commit is None or ENTRY not in tracked:  # or a folder above is somebody else's repository
        return SourceState(_own_files(root))
    untracked = _paths(_git(root, "ls-files", "-z", "--others", "--exclude-standard", "--", *FOLDERS, *FILES))
    untracked = {path for path in untracked if _is_inside(root, path)}
    present = sorted(path for path in tracked | untracked if _is_inside(root, path))
    return SourceState(
        tuple(present),
        tuple(sorted(untracked)),
        commit.decode().strip(),
        (_git(root, "show", "--no-patch", "--format=%cI", "HEAD") or b"").decode().strip() or None,
        _git(root, "diff", "HEAD", "--relative", *AS_GIT_APPLY_READS_IT) or b"",
    )


def source_document(root: Path) -> str:
    """JSON that changes when any of it does: an input of the archive, since Snakemake does not ask git."""
    state = source_state(root)
    digests = {path: sha256(root / path) for path in state.files}
    return to_json({"commit": state.commit, "date": state.date, "dirty": state.dirty, "sha256": digests})


def _git(root: Path, *arguments: str) -> bytes | None:
    """None where git is missing or refuses."""
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=true", *arguments]
    try:
        done = subprocess.run(command, cwd=root, env=asking_this_repository(os.environ), capture_output=True)
    except OSError:
        return None
    return None if done.returncode else done.stdout


def _is_inside(root: Path, name: str) -> bool:
    """A file, and no link to one elsewhere, which nobody meant to give away."""
    path = root / name
    return path.is_file() and path.resolve().is_relative_to(root.resolve())


def _paths(output: bytes | None) -> set[str]:
    return {os.fsdecode(path) for path in (output or b"").split(b"\0") if path}


def _own_files(root: Path) -> tuple[str, ...]:
    below = (path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file())
    found = [*(root / name for name in FILES), *below]
    names = (path.relative_to(root) for path in found if _is_inside(root, str(path.relative_to(root))))
    return tuple(sorted(str(name) for name in names if not any(part.endswith(NOT_SOURCE) for part in name.parts)))
