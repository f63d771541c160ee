"""A process ends with those that started it, whoever kills them."""

import os
import subprocess
import sys
import time

import pytest

from ddp_tokens.machine import this_machine
from ddp_tokens.watching import LAUNCHER, ORPHANED, SNAKEMAKE, sign_as, snakemake_of, starters_of_rank

WATCHER = """
import sys, time
from ddp_tokens.watching import end_with
first = (lambda: print("asked", flush=True)) if sys.argv[2] == "asks" else None
end_with([int(sys.argv[1])], first, 0.5)
print("watching", flush=True)
time.sleep(1.5 if sys.argv[3] == "ends" else 600)
"""


@pytest.fixture
def watched():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def watcher(process, asks="asks", ends="stays"):
    command = [sys.executable, "-c", WATCHER, str(process.pid), asks, ends]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_it_is_asked_and_then_ended(watched):
    with watcher(watched) as process:
        assert process.stdout.readline() == "watching\n"
        assert process.poll() is None
        watched.kill()
        assert process.wait(60) == ORPHANED
        assert process.stdout.read() == "asked\n"


def test_who_has_nothing_to_save_ends_at_once(watched):
    with watcher(watched, asks="does not ask") as process:
        assert process.stdout.readline() == "watching\n"
        watched.kill()
        assert process.wait(60) == ORPHANED


def test_it_may_end_by_itself(watched):
    with watcher(watched, ends="ends") as process:
        assert process.wait(60) == 0


def test_a_process_that_has_ended_before_is_noticed(watched):
    watched.kill()
    watched.wait()
    with watcher(watched) as process:
        assert process.wait(60) == ORPHANED
        assert "asked" in process.stdout.read()  # another thread writes too


def test_whose_numbers_a_rank_watches():
    environment = {}
    assert starters_of_rank(environment) == [os.getppid()]
    sign_as(LAUNCHER, environment)
    sign_as(SNAKEMAKE, environment)
    assert starters_of_rank(environment) == [os.getpid(), os.getpid()]
    assert snakemake_of({}) == []
    assert snakemake_of({SNAKEMAKE: f"12@{this_machine()}"}) == [12]


def test_the_number_of_a_process_on_another_machine_is_nobody_here():
    """A job that SLURM runs elsewhere carries the number of the Snakemake that submitted it."""
    elsewhere = {SNAKEMAKE: "12@host/another-boot", LAUNCHER: "13@another-host/boot"}
    assert snakemake_of(elsewhere) == []
    assert starters_of_rank(elsewhere) == [os.getppid()]


SCRIPT = """
import sys, time
from ddp_tokens.script import logged
with logged(sys.argv[1]):
    print("working", flush=True)
    time.sleep(600)
"""


def test_a_script_of_the_workflow_ends_with_snakemake(watched, tmp_path):
    environment = os.environ | {SNAKEMAKE: f"{watched.pid}@{this_machine()}"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "log")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "working\n"
        killed = time.monotonic()
        watched.kill()
        assert process.wait(60) == ORPHANED
        assert time.monotonic() - killed < 60
