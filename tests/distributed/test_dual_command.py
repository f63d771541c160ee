"""check-environment --dual with real processes over gloo: who they are, and what becomes of one that goes wrong."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddp_tokens import dual
from ddp_tokens.check_environment import main
from ddp_tokens.faults import OUTLIVE_S, wait_until_gone
from ddp_tokens.files import read_json
from tests.helpers import PROJECT

PROGRAM = "ddp_tokens.cli check-environment"
TIME_LIMIT_S = 120
ALL_REDUCE = "the all-reduce of the known numbers"


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """The command's arguments for an experiment whose results go below tmp_path."""
    (tmp_path / "tiny.yaml").write_text("timeout_s: 60\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), str(PROJECT / "src")]))
    return ["--config", str(tmp_path / "tiny.yaml"), "--results", str(tmp_path / "results"), "--dual"]


def verdict_of(tmp_path, case="ranks"):
    document = read_json(tmp_path / "results" / "tiny" / "environment.json")
    return next(verdict for verdict in document["verdicts"] if verdict["case"] == case)


@pytest.mark.parametrize("launcher", ["fork", "spawn", "torchrun"])
def test_two_processes_sum_what_they_know(experiment, tmp_path, capfd, launcher):
    assert main(PROGRAM, [*experiment, "--launcher", launcher, "--threads-per-rank", "2"]) == 0
    document = read_json(tmp_path / "results" / "tiny" / "environment.json")
    first, second = document["machine"]["dual"]["processes"]
    assert [first["rank"], second["rank"]] == [0, 1]
    assert len({first["pid"], second["pid"], os.getpid()}) == 3
    for process in (first, second):
        assert process["sums"] == [120.0, 48.0], "12 + 108 and 12 + 36"
        assert process["device"] == "cpu"
        assert process["uuid"] is None
        assert process["cores"] == sorted(os.sched_getaffinity(0))
        assert process["threads"] == 2
    assert verdict_of(tmp_path)["outcome"] == "pass"
    said = capfd.readouterr()
    assert f"{first['pid']} " in said.out
    assert f"{second['pid']} " in said.out
    assert said.err == ""
    assert wait_until_gone([first["pid"], second["pid"]], OUTLIVE_S) == []


@pytest.mark.parametrize(
    ("fault", "timeout_s", "told"),
    [
        ("die sum_over_ranks", 60, "rank 1 was killed"),
        ("raise sum_over_ranks", 60, "rank 1 raised ArithmeticError: the rank went wrong"),
        ("hang sum_over_ranks", 8, "rank 1 does not go on"),
        ("hang agreed_launch", 8, "rank 1 is not there"),
        ("lie sum_over_ranks", 8, ALL_REDUCE),
    ],
)
def test_a_rank_that_goes_wrong_is_named(experiment, tmp_path, capfd, monkeypatch, fault, timeout_s, told):
    """In `lie`, a rank makes up its sum and takes no part in the all-reduce; either may be the one that tells."""
    monkeypatch.setattr(dual, "PROGRAM", "tests.distributed.dual_faults")
    monkeypatch.setenv("FAULT", fault)
    assert main(PROGRAM, [*experiment, "--timeout-s", str(timeout_s)]) == 1
    verdict = verdict_of(tmp_path)
    assert verdict["outcome"] == "fail"
    found = verdict["first_difference"]["found"]
    assert told in found
    assert "rank 1" in found
    assert verdict["observed"]["said"]
    said = capfd.readouterr().err
    assert said.startswith(f"{PROGRAM}: ranks: ")
    assert told in said
    assert said.count("\n") == 1, "one sentence"


def test_what_does_not_end_in_time_is_ended(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(dual, "PROGRAM", "tests.distributed.dual_faults")
    monkeypatch.setattr(dual, "STARTED_WITHIN_S", -50)
    monkeypatch.setenv("FAULT", "hang agreed_launch")
    assert main(PROGRAM, experiment) == 1
    found = verdict_of(tmp_path)["first_difference"]["found"]
    assert found.startswith("the two processes did not end within 10 s: rank 0 ")
    assert found.endswith("rank 1 did not come: see 'The dual check fails' in docs/troubleshooting.md")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_command(experiment, tmp_path, monkeypatch, number):
    """The ranks wait for each other when the signal comes; nothing is written."""
    monkeypatch.setenv("FAULT", "sleep_through_sigterm sum_over_ranks")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = "import sys; from ddp_tokens import dual, cli; dual.PROGRAM = 'tests.distributed.dual_faults'; "
    code += "sys.exit(cli.main(['check-environment', *sys.argv[1:]]))"
    with open(tmp_path / "said", "w") as said:
        process = subprocess.Popen([sys.executable, "-c", code, *experiment], stdout=said, stderr=said)
        try:
            ranks = pids_of_ranks(tmp_path)
            process.send_signal(number)
            assert process.wait(TIME_LIMIT_S) == (-number if number == signal.SIGKILL else 128 + number)
        finally:
            process.kill()
            process.wait()
    assert wait_until_gone(ranks, OUTLIVE_S) == []
    assert not (tmp_path / "results" / "tiny" / "environment.json").exists()
    assert "Traceback" not in (tmp_path / "said").read_text()


def pids_of_ranks(folder: Path) -> list[int]:
    """As soon as both have told where they are, rank 0 that it is in the all-reduce."""
    deadline = time.monotonic() + TIME_LIMIT_S
    while time.monotonic() < deadline:
        places = [path.read_text() for path in sorted(folder.glob("ddp-tokens-*/rank-*.now.json"))]
        if len(places) == 2 and '"collective": "all-reduce of the known numbers", "inside": true' in places[0]:
            return [int(place.split('"pid": ')[1].split(",")[0]) for place in places]
        time.sleep(0.05)
    raise TimeoutError("the ranks did not come")
