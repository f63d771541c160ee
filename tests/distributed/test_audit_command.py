"""`python -m ddp_tokens.audit -- SCRIPT`: the verdict of the in-code form, on a script that knows of no audit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("audited_script.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*TORCHRUN, *arguments], env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def windows_in(path: Path) -> list[dict]:
    """All but the seconds."""
    document = json.loads(path.read_text())
    return [{name: value for name, value in window.items() if name != "seconds"} for window in document["windows"]]


def trained_to(done: subprocess.CompletedProcess[str]) -> str:
    [line] = [line for line in done.stdout.splitlines() if line.startswith("trained to")]
    return line


@pytest.mark.parametrize(
    ("way", "outcome", "diagnosis"), [("right", "pass", []), ("mean_of_means", "fail", ["mean_of_means"])]
)
def test_the_command_gives_the_verdict_of_the_form_in_code(tmp_path, way, outcome, diagnosis):
    by_command, in_code = tmp_path / "command.json", tmp_path / "code.json"
    of_command = started(
        "-m", "ddp_tokens.audit", "--loss", f"{SCRIPT}:loss_sum", "--watch", "--output", str(by_command),
        "--", str(SCRIPT), "--way", way,
    )  # fmt: skip
    of_code = started(str(SCRIPT), "--way", way, "--in-code", str(in_code))
    assert of_code.returncode == 0, of_code.stderr
    assert (of_command.returncode == 0) == (outcome == "pass"), of_command.stderr
    assert windows_in(by_command) == windows_in(in_code)
    for window in windows_in(by_command):
        assert window["verdict"]["outcome"] == outcome
        assert window["verdict"]["diagnosis"] == diagnosis
        assert window["seen"]["units"][0] != window["seen"]["units"][1], "equal counts would show nothing"
    assert len(windows_in(by_command)) == 2
    assert trained_to(of_command) == trained_to(of_code)  # three windows, the third without an audit
    assert f"ddp_tokens.audit: {outcome}: " in of_command.stdout
    assert of_command.stdout.count("ddp_tokens.audit: ") == 1, "one rank speaks"


@pytest.mark.parametrize("empty", [0, 1])
def test_a_rank_that_has_no_batch_before_the_first_update_takes_part(tmp_path, empty):
    output = tmp_path / "found.json"
    script = SCRIPT.with_name("audited_empty_script.py")
    done = started(
        "-m", "ddp_tokens.audit", "--loss", "classification", "--timeout", "20", "--output", str(output),
        "--", str(script), str(empty),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    windows = json.loads(output.read_text())["windows"]
    assert [window["verdict"]["outcome"] for window in windows] == ["pass", "pass"]
    assert windows[0]["seen"]["microbatches"] == [int(rank != empty) for rank in (0, 1)]
    assert windows[1]["seen"]["microbatches"] == [1, 1]
    assert all(0 < window["seconds"]["window"] < 200 for window in windows), "since its beginning"


def test_a_script_can_be_ended_after_the_audit(tmp_path):
    done = started(
        "-m", "ddp_tokens.audit", "--loss", f"{SCRIPT}:loss_sum", "--watch", "--windows", "1", "--stop",
        "--", str(SCRIPT),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1 of 1 windows" in done.stdout
    assert "trained to" not in done.stdout


def test_labels_that_are_no_input_are_asked_for():
    done = started("-m", "ddp_tokens.audit", "--loss", "token-classification", "--", str(SCRIPT))
    assert done.returncode != 0
    assert (
        ": rank 0, window 1: loss token-classification finds no labels (labels, label, targets, target) in the batch: "
        "where they are no input of the module, say where batches come from" in done.stderr
    )
    assert "trained to" not in done.stdout
