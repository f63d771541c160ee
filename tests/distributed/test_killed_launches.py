"""Ranks under a real launcher: signals that it passes on, and what is left when it or they are killed."""

import os
import random
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from ddp_tokens import faults
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.faults import kill_one_run, make_trial, report, undisturbed, wait_until_gone
from tests.distributed.test_interrupted import continued, kept, of_run, outputs
from tests.distributed.test_launched_processes import LAUNCHERS, TIME_LIMIT_S
from tests.distributed.tiny import SETTINGS, Tiny

# Trains as ddp_tokens.train does. In update 3, rank 0 does something to the process numbers that it is given, once.
MODULE = """
import os, signal, sys, time
from pathlib import Path
from ddp_tokens import train
from ddp_tokens.options import run_as_program

def main(arguments):
    what, folder, *arguments = arguments
    fired, updates = Path(folder) / "fired", train.train
    (Path(folder) / f"rank-{os.environ['RANK']}.pid").write_text(str(os.getpid()))

    def disturbed(*given):
        for record in updates(*given):
            if record["step"] == 3 and os.environ["RANK"] == "0" and not fired.exists():
                fired.touch()
                number, _, victim = what.partition(" ")
                os.kill({"launcher": os.getppid(), "itself": os.getpid()}[victim], getattr(signal, number))
                if number == "SIGKILL":
                    time.sleep(1)  # updates are so short that none might be left for the watching thread
            yield record

    train.train = disturbed
    return train.main(arguments)

if __name__ == "__main__":
    raise SystemExit(run_as_program("disturbed", main, sys.argv[1:]))
"""


def launched(tiny: Tiny, launcher: list[str], what: str, *more: str) -> subprocess.CompletedProcess[str]:
    (tiny.folder / "disturbed.py").write_text(MODULE)
    paths = os.pathsep.join(filter(None, [str(tiny.folder), os.environ.get("PYTHONPATH")]))
    arguments = ["-m", "disturbed", what, str(tiny.folder), *tiny.arguments(*more)]
    with open(tiny.folder / "said", "w") as said:
        done = subprocess.run(
            [sys.executable, "-m", *launcher, *arguments],
            env=os.environ | {"PYTHONPATH": paths},
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=TIME_LIMIT_S,
            check=False,
        )
        assert (tiny.folder / "fired").exists(), (tiny.folder / "said").read_text()
        ranks = [int(path.read_text()) for path in tiny.folder.glob("rank-*.pid")]
        assert len(ranks) == tiny.world_size
        assert wait_until_gone(ranks, faults.OUTLIVE_S) == []
    done.stdout = (tiny.folder / "said").read_text()
    return done


@pytest.mark.parametrize(
    ("launcher", "signals", "code"),
    [
        ("fork", "SIGTERM", 143),
        ("fork", "SIGUSR1", 138),
        ("spawn", "SIGTERM", 143),
        ("spawn", "SIGINT", 130),
        ("spawn", "SIGHUP", 129),
        ("spawn", "SIGUSR1", 138),
        ("torchrun", "SIGTERM", None),
        ("torchrun", "SIGUSR1", None),
    ],
)
def test_a_signal_to_the_launcher_stops_all_ranks_after_the_update(copy_of, launcher, signals, code):
    tiny = copy_of(2)
    before = outputs(tiny)
    arguments = of_run(tiny, "continuous")
    command = list(LAUNCHERS[launcher])
    if launcher == "torchrun":
        command.append("--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")
    done = launched(tiny, command, f"{signals} launcher", *arguments)
    assert done.returncode == code or (code is None and done.returncode != 0), done.stdout
    stop = re.search(f"stopped by {signals}[^\n]* after update ([3-6]) of 6, kept in", done.stdout)
    assert stop, done.stdout
    continued(tiny, *arguments, after=int(stop[1]))
    assert outputs(tiny) == before


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_of_a_killed_launcher_save_and_end(copy_of, launcher):
    """Forked and spawned ranks may hear of it first from the kernel, whom torch asks for SIGINT."""
    tiny = copy_of(2)
    before = outputs(tiny)
    arguments = of_run(tiny, "continuous")
    done = launched(tiny, LAUNCHERS[launcher], "SIGKILL launcher", *arguments)
    assert done.returncode == -signal.SIGKILL
    why = {"torchrun": "SIGHUP (what started one of the ranks has ended)", "fork": "SIG", "spawn": "SIG"}[launcher]
    assert re.search(f"stopped by {re.escape(why)}.* after update 3 of 6", done.stdout), done.stdout
    assert kept(tiny, "continuous") == ["step-0003"]
    continued(tiny, *arguments, after=3)
    assert outputs(tiny) == before


def test_torchruns_own_restart_goes_on(copy_of):
    tiny = copy_of(2)
    before = outputs(tiny)
    arguments = [*of_run(tiny, "continuous"), "--checkpoint-every", "2"]
    done = launched(tiny, [*LAUNCHERS["torchrun"], "--max-restarts=1"], "SIGKILL itself", *arguments)
    assert done.returncode == 0, done.stdout
    assert "continuing after update 2 of 6" in done.stdout
    assert outputs(tiny) == before


@pytest.fixture(scope="module", params=[2, 3])
def trial(request, tmp_path_factory) -> Any:
    """An experiment of 12 updates, what it delivers when it is left alone, and the seconds that it takes."""
    folder = tmp_path_factory.mktemp("faults")
    config = folder / "given.yaml"
    config.write_text(repr(SETTINGS | {"world_size": request.param, "steps": 12, "checkpoint_every": 3}))
    trial = make_trial(load_experiment(config), folder)
    return trial, *undisturbed(trial)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_at_random_instants_the_run_ends_with_the_same_bytes(trial, seed):
    """Two kills of a rank, of all ranks or of the launcher, from the launcher's start to the run's end."""
    prepared, expected, seconds = trial
    assert any(path.endswith("start-rank-1.json") for path in expected)
    rows = kill_one_run(prepared, 2, random.Random(seed), seconds, expected)
    assert len(rows) <= 2
    assert all(row.equal for row in rows), rows


def test_a_run_that_ends_otherwise_is_reported(trial, capsys):
    """The injected fault: one digest is another."""
    prepared, expected, seconds = trial
    wrong = dict.fromkeys(expected, "0" * 64)
    rows: list[faults.Kill] = []
    draw = random.Random(4)
    while not rows:
        rows = kill_one_run(prepared, 1, draw, seconds / 2, wrong)
    assert report(rows) == 1
    assert capsys.readouterr().out.endswith("0 of 1 bit-equal, 1 lost\n")
