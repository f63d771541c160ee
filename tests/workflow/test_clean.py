"""What `clean` has deleted, the next build makes again, with the same bytes."""

import shutil
from pathlib import Path

import pytest

from tests.workflow.projects import build, digests, rules_to_run, run

RUNS = {"interrupt", "continuous", "resume"}


@pytest.fixture
def copy(built, tmp_path) -> Path:
    return shutil.copytree(built, tmp_path / "project", symlinks=True)


def clean(project: Path, scope: str) -> str:
    done = run(project, "ddp_tokens.cli", "clean", "--scope", scope, "--yes")
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_runs_are_made_again_after_their_checkpoints_were_deleted(copy):
    before = digests(copy / "results")
    assert "results/tiny/runs\n" in clean(copy, "checkpoints")
    left = digests(copy / "results")
    assert set(before) - set(left) == {path for path in before if path.startswith("tiny/runs/")}
    assert not (copy / "results/tiny/runs").exists()
    needed = rules_to_run(copy)
    assert needed >= RUNS
    assert not needed & {"prepare", "reference", "gradients", "control_cases", "control_ranks"}
    build(copy)
    assert digests(copy / "results") == before
    assert rules_to_run(copy) == set()


def test_everything_is_made_again_after_what_was_generated_was_deleted(copy):
    """Without the controls, which take as long as all else."""
    before = digests(copy / "results/tiny")
    clean(copy, "generated")
    assert sorted(path.name for path in (copy / "results").iterdir()) == ["tiny"]
    runs = {f"runs/{path}": digest for path, digest in digests(copy / "results/tiny/runs").items()}
    assert digests(copy / "results/tiny") == runs
    assert runs.items() < before.items()
    assert rules_to_run(copy, "results/tiny/gate.txt") >= {"prepare", *RUNS}
    build(copy, "results/tiny/gate.txt")
    assert digests(copy / "results/tiny") == before
