"""Copies of the project with a small experiment, built by real Snakemake calls."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
COPIED = (
    *("Snakefile", "rules", "workflow_scripts", "src", "config", "report", "envs", "examples", "profiles", "README.md"),
    *("Makefile", "pyproject.toml", "CITATION.cff", "LICENSE"),
)
TINY = """\
corpus: {train: 64, validation: 8, test: 8, min_length: 3, short_max_length: 8, max_length: 16}
model: {width: 8, layers: 1, heads: 2, feed_forward: 16, dropout: 0.1}
steps: 4
interrupt_at: 2
batch: 2
"""
BUILD_S = 900  # of a whole chain, on a machine that is busy
VARYING = ("logs", "benchmarks")


def copy_project(folder: Path, experiment: str = TINY) -> Path:
    """A project of its own whose only experiments are `tiny` and `exercise`."""
    folder.mkdir(parents=True)
    for name in COPIED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, folder / name)
    (folder / "config" / "config.yaml").write_text("experiments: [tiny]\n")
    (folder / "config" / "tiny.yaml").write_text(experiment)
    return folder


def environment_of(project: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(project / "src"), "PYTHONDONTWRITEBYTECODE": "1"}


def run(project: Path, *command: str, timeout: int = 240) -> subprocess.CompletedProcess[str]:
    """A command in the project's folder, with the project's own source first on the path."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=project,
        env=environment_of(project),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )


def snakemake(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(project, "snakemake", "--cores", "2", *arguments, timeout=BUILD_S)


def build(project: Path, *arguments: str) -> str:
    done = snakemake(project, *arguments)
    assert done.returncode == 0, done.stdout
    return done.stdout


def rules_to_run(project: Path, *arguments: str) -> set[str]:
    """Names of the rules that a dry run would run, without the small `settings` jobs and the target rule."""
    done = snakemake(project, "--dry-run", *arguments)
    assert done.returncode == 0, done.stdout
    if "Nothing to be done" in done.stdout:
        return set()
    table = done.stdout.split("Job stats:")[-1].split("total")[0]
    return set(re.findall(r"^(\w+) +\d+$", table, flags=re.MULTILINE)) - {"settings", "all"}


def digests(folder: Path) -> dict[str, str]:
    """Path below the folder -> SHA-256, of everything that must be the same in every rebuild."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not set(path.parts) & set(VARYING)
    }
