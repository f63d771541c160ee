"""What reruns after a change, and what must not."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.workflow.projects import rules_to_run

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
            {"check_loss", "gradients", "check_parity", "check_window", "check_zero_window", "exercise"}
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
