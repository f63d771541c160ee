"""The runner of one case: what it starts, and what it does where the package is missing or the script fails."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_tokens.errors import EvidenceError
from ddp_tokens.trainers import run
from ddp_tokens.trainers.cases import BY_NAME, CASES
from tests.helpers import PROJECT

LAUNCHER = 7  # words of a command before the script
BARE = replace(BY_NAME["bare_ddp"], package="pip")  # a package that is there; its version is looked up only


def started(monkeypatch, tmp_path, body):
    """Run the case with a script of one process and this body, in which `own` holds its arguments."""
    script = tmp_path / BARE.script
    script.write_text(
        "import argparse, json, os, sys\nparser = argparse.ArgumentParser()\n"
        "for name in ('setting', 'results', 'output'):\n    parser.add_argument(f'--{name}')\n"
        f"own = parser.parse_args()\n{body}\n"
    )
    of_torchrun = run.command_of
    monkeypatch.setattr(run, "command_of", lambda *given: [sys.executable, *of_torchrun(*given)[LAUNCHER:]])
    output = tmp_path / "runs" / "bare_ddp.json"
    output.parent.mkdir(exist_ok=True)
    run.run(BARE, tmp_path / "minimum", output, examples=tmp_path)
    return json.loads(output.read_text())


def test_a_case_is_started_by_torchrun_on_two_ranks(tmp_path):
    command = run.command_of(CASES[0], tmp_path / "minimum", tmp_path / "a.json")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=localhost", "--nnodes=1"]
    assert command[:LAUNCHER] == [sys.executable, *launcher, "--nproc-per-node=2"]
    script = str(PROJECT / "examples" / "bare_ddp.py")
    given = ["--results", str(tmp_path / "minimum"), "--output", str(tmp_path / "a.json")]
    assert command[LAUNCHER:] == [script, "--setting", "global_count", *given]


def test_what_the_script_writes_is_the_result(monkeypatch, tmp_path):
    body = "json.dump([own.setting, own.results, os.environ['OMP_NUM_THREADS']], open(own.output, 'w'))"
    assert started(monkeypatch, tmp_path, body) == ["global_count", str(tmp_path / "minimum"), "1"]


def test_temporary_files_of_a_script_are_not_left_behind(monkeypatch, tmp_path):
    body = "import tempfile\njson.dump(tempfile.mkdtemp(), open(own.output, 'w'))"
    left = Path(started(monkeypatch, tmp_path, body))
    assert left.parent.name.startswith("ddp-tokens-")
    assert not left.parent.exists()


def test_a_script_that_fails_makes_the_runner_fail_and_its_last_lines_are_shown(monkeypatch, tmp_path, capsys):
    with pytest.raises(
        EvidenceError, match=r"^bare_ddp: .*bare_ddp\.py ended with exit code 3: look at its last lines"
    ):
        started(monkeypatch, tmp_path, "print('first\\n' * 30 + 'told')\nsys.exit(3)")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1] == "told"
    assert len(lines) == run.SHOWN_LINES


def test_a_script_that_writes_nothing_makes_the_runner_fail(monkeypatch, tmp_path):
    """Not even when an earlier call has left a result."""
    output = tmp_path / "runs" / "bare_ddp.json"
    output.parent.mkdir()
    output.write_text("{}")
    with pytest.raises(EvidenceError, match="exit code 0 and wrote no result"):
        started(monkeypatch, tmp_path, "")
    assert not output.exists()


def test_a_script_that_does_not_end_is_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "WITHIN_S", 1)
    with pytest.raises(EvidenceError, match="did not end within 1 s"):
        started(monkeypatch, tmp_path, "import time\ntime.sleep(60)")


def test_a_package_that_is_not_installed_is_said_and_nothing_is_started(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "_ended", lambda *_: pytest.fail("started"))
    output = tmp_path / "a.json"
    run.run(replace(BARE, package="no-such-trainer"), tmp_path, output)
    problem = "no-such-trainer is not installed: install it with the other trainers by `make trainers`"
    assert json.loads(output.read_text()) == {"version": None, "problem": problem}


@pytest.mark.parametrize("absent", ["version", "module"])
def test_what_is_there_by_half_is_missing(monkeypatch, absent):
    """A folder of that name that is no installed package, or a package whose files are gone."""
    if absent == "module":
        monkeypatch.setattr(run, "find_spec", lambda name: None)
    package = "tests" if absent == "version" else "torch"
    assert run.missing(package).startswith(f"{package} is not installed")
    assert run.missing("pip") is None or absent == "module"


def test_the_page_that_torchrun_adds_is_left_out():
    lines = [
        "[rank1]: ValueError: why",
        "",
        "W1201 12:34:45.631000 18742 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 7 SIGTERM",
        "E1201 12:34:45.747000 18742 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)",
        "Traceback (most recent call last):",
    ]
    assert run.last_lines(lines) == ["[rank1]: ValueError: why"]
    assert run.last_lines(lines[2:3]) == lines[2:3], "where there is nothing else"


def test_an_unknown_case_is_refused(capsys):
    with pytest.raises(SystemExit):
        run.main(["no_such_case", "--output", "a.json"])
    assert "invalid choice: 'no_such_case'" in capsys.readouterr().err
