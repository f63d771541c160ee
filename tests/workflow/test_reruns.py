"""What reruns after a change, and what must not."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ddp_tokens.files import read_json
from tests.workflow.projects import build, rules_to_run, snakemake

TRAINING = {"interrupt", "continuous", "resume"}
SCORES = {"evaluate", "check_evaluation"}
CONCLUSION = {"summary", "gate"}
CONTROLS_JUDGED = {"control_table", "control_gate"}
CONTROLS_RUN = {"control_ranks"} | CONTROLS_JUDGED
CONTROLS = {"control_cases"} | CONTROLS_RUN
AFTER_TRAINING = {"check_resume", "check_replicas", "check_checkpoints", "figure"} | SCORES | CONCLUSION


@contextmanager
def edited(*paths: Path) -> Iterator[None]:
    """The files with one more line, put back afterwards with the times that they had."""
    before = [(path, path.read_bytes(), path.stat()) for path in paths]
    try:
        for path, content, _ in before:
            path.write_bytes(content + b"\n# edited\n")
        yield
    finally:
        for path, content, status in before:
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["README.md"], set()),
        (["src/ddp_tokens/cli.py"], set()),
        (["src/ddp_tokens/checks/resume.py"], {"check_resume"} | CONCLUSION | CONTROLS_JUDGED),
        (["src/ddp_tokens/checks/gradient_parity.py"], {"check_parity"} | CONCLUSION | CONTROLS_JUDGED),
        (["src/ddp_tokens/trainer.py"], TRAINING | AFTER_TRAINING | CONTROLS_RUN),
        (
            ["src/ddp_tokens/normalization.py"],
            {"check_loss", "reference", "gradients", "check_parity", "check_window", "check_zero_window", "exercise"}
            | TRAINING
            | AFTER_TRAINING
            | CONTROLS,
        ),
        (["src/ddp_tokens/evaluation.py"], SCORES | CONCLUSION | CONTROLS_RUN),
        (["src/ddp_tokens/checks/evaluation.py"], {"check_evaluation"} | CONCLUSION | CONTROLS_JUDGED),
        (["src/ddp_tokens/controls/gradients.py"], CONTROLS_RUN),
        (["config/controls.yaml"], set()),
        (["workflow_scripts/check_loss.py"], {"check_loss"} | CONCLUSION),
        # A check that reruns hides what comes after it from Snakemake's own triggers, as its verdict only guards.
        (
            ["src/ddp_tokens/checks/gradient_parity.py", "src/ddp_tokens/trainer.py"],
            {"check_parity"} | TRAINING | AFTER_TRAINING | CONTROLS_RUN,
        ),
    ],
)
def test_an_edited_file_reruns_the_steps_that_use_it(built, files, expected):
    assert rules_to_run(built) == set()
    with edited(*(built / name for name in files)):
        assert rules_to_run(built) == expected
    assert rules_to_run(built) == set()


def test_another_lock_file_reruns_everything(built):
    with edited(built / "envs/requirements.lock"):
        everything = rules_to_run(built)
    assert {"prepare", "reference", "check_loss", "gradients", "exercise"} <= everything
    assert everything >= TRAINING | AFTER_TRAINING | CONTROLS


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("optimizer={lr: 0.05}", TRAINING | AFTER_TRAINING),
        ("tolerances={published: {atol: 1e-5}}", {"check_parity", "figure"} | CONCLUSION),
        ("interrupt_at=3", {"interrupt", "resume"} | AFTER_TRAINING - SCORES),
        ("train_anyway=true", TRAINING | AFTER_TRAINING),
    ],
)
def test_a_changed_setting_reruns_the_steps_that_read_it(built, setting, expected):
    assert rules_to_run(built, "--config", setting) == expected


def test_another_world_size_reruns_all_but_the_arithmetic(built):
    rerun = rules_to_run(built, "--config", "world_size=1")
    assert {"prepare", "reference", "gradients", "check_parity"} | TRAINING | AFTER_TRAINING == rerun - {
        "check_window",
        "check_zero_window",
    }
    assert not {"check_loss", "exercise"} & rerun


def test_settings_of_experiments_are_none_of_the_controls(built):
    """They have a file of their own, and no override reaches them."""
    assert not CONTROLS & rules_to_run(built, "--config", "batch=3")


def copy_of(built: Path, folder: Path) -> Path:
    """With results, times and what Snakemake remembers."""
    return Path(shutil.copytree(built, folder / "project"))


def failing(project: Path, module: str, *options: str) -> None:
    """A build in which one step fails; afterwards its source is as it was."""
    source = project / "src/ddp_tokens" / module
    before = source.read_text()
    source.write_text(before + '\nraise SystemExit("injected")\n')
    done = snakemake(project, *options, "results/tiny/gate.txt")
    source.write_text(before)
    assert done.returncode != 0


def test_a_failed_step_before_the_runs_does_not_hide_that_they_are_out_of_date(built, tmp_path):
    """`gradients` fails in a rebuild for more updates: its outputs are gone, corpus, plan and settings are new, the
    runs and everything below are of before.
    """
    project = copy_of(built, tmp_path)
    config = project / "config" / "tiny.yaml"
    config.write_text(config.read_text().replace("steps: 4", "steps: 6"))
    failing(project, "gradients.py", "--keep-going")
    assert len(read_json(project / "results/tiny/plan.json")["plan"]) == 6
    assert not (project / "results/tiny/gradients/token_mean.native.safetensors").exists(), "the injected fault fired"
    assert (project / "results/tiny/runs/continuous/step-0004").exists()
    needed = rules_to_run(project, "results/tiny/gate.txt")
    assert needed >= {"gradients", "check_parity"} | TRAINING | AFTER_TRAINING


def test_what_a_failed_step_would_have_made_is_made_by_the_same_command(built, tmp_path):
    """`evaluate` fails in a rebuild: its output is gone, what was concluded from the one before must not stay."""
    project = copy_of(built, tmp_path)
    failing(project, "evaluation.py")
    assert not (project / "results/tiny/evaluation.json").exists(), "the injected fault fired"
    assert not (project / "results/tiny/gate.txt").exists()
    assert rules_to_run(project, "results/tiny/gate.txt") >= SCORES | CONCLUSION
    build(project, "results/tiny/gate.txt")
    assert rules_to_run(project, "results/tiny/gate.txt") == set()
