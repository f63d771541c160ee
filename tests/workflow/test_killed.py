"""A killed rebuild goes on by the same command and leaves the same bytes; nobody outlives it or builds beside it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.workflow.projects import build, copy_project, digests, environment_of, snakemake

EXPERIMENT = """\
corpus: {train: 64, validation: 8, test: 8, min_length: 3, short_max_length: 8, max_length: 16}
model: {width: 8, layers: 1, heads: 2, feed_forward: 16, dropout: 0.1}
steps: 160
interrupt_at: 80
checkpoint_every: 10
batch: 2
"""
RUNS = ("interrupt", "continuous", "resume")
TARGETS = [f"results/tiny/runs/{run}" for run in RUNS]
TIME_LIMIT_S = 120
OUTLIVE_S = 10


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A project whose three runs are done, and the digests of what they left."""
    project = copy_project(tmp_path_factory.mktemp("undisturbed") / "project", EXPERIMENT)
    build(project, *TARGETS)
    return project, digests(project / "results/tiny/runs")


@pytest.fixture
def untrained(undisturbed, tmp_path) -> Path:
    """A copy of that project without its runs: all that training needs is there and up to date."""
    project = shutil.copytree(undisturbed[0], tmp_path / "project")
    shutil.rmtree(project / "results/tiny/runs")
    return project


@contextmanager
def building(project: Path) -> Iterator[subprocess.Popen[str]]:
    """The README's command, going on in the background."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *TARGETS]
    (project / "started").touch()
    with open(project / "output.txt", "w") as output:
        process = subprocess.Popen(
            command,
            cwd=project,
            env=environment_of(project),
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_for_working_checkpoint(project: Path, run: str, process: subprocess.Popen[str]) -> None:
    """One of this process's own: earlier ones may have left theirs."""
    deadline, started = time.monotonic() + TIME_LIMIT_S, (project / "started").stat().st_mtime
    while not any(time_of(path) > started for path in project.glob(f"results/tiny/runs/.{run}.*/step-*/manifest.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None, (project / "output.txt").read_text()
        time.sleep(0.01)


def time_of(path: Path) -> float:
    """0 when it has just been removed."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def jobs_of(snakemake_pid: int) -> list[int]:
    """Processes that were started, directly or not, by this Snakemake process."""
    mark, found = f"DDP_TOKENS_SNAKEMAKE_PID={snakemake_pid}@".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if any(variable.startswith(mark) for variable in path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return sorted(set(found) - {snakemake_pid})


def wait_until_no_job_is_left(snakemake_pid: int) -> None:
    deadline = time.monotonic() + OUTLIVE_S
    while jobs_of(snakemake_pid):
        assert time.monotonic() < deadline, f"{len(jobs_of(snakemake_pid))} processes outlive Snakemake"
        time.sleep(0.05)


def kill_while_training(project: Path, run: str, number: signal.Signals) -> None:
    with building(project) as process:
        wait_for_working_checkpoint(project, run, process)
        assert len(jobs_of(process.pid)) >= 3  # a launcher and its ranks, at least
        process.send_signal(number)
        process.wait(TIME_LIMIT_S)
        wait_until_no_job_is_left(process.pid)


def test_killed_three_times_at_different_moments(untrained, undisturbed):
    """Whatever is running then is killed as well: rules run side by side."""
    for run in RUNS:
        kill_while_training(untrained, run, signal.SIGKILL)
        assert not (untrained / f"results/tiny/runs/{run}/history.jsonl").exists()
        kept = [path for path in (untrained / "results/tiny/runs").glob(f".{run}.*/step-*") if path.is_dir()]
        assert 1 <= len(kept) <= 2
    build(untrained, *TARGETS)
    log = (untrained / "results/tiny/logs/resume.log").read_text()
    assert int(re.findall("^continuing after update ([0-9]+) of 160$", log, flags=re.MULTILINE)[0]) >= 90
    assert digests(untrained / "results/tiny/runs") == undisturbed[1]


def test_after_sigterm_the_same_command_goes_on(untrained, undisturbed):
    """Snakemake then starts no new job and waits for those that run."""
    kill_while_training(untrained, "interrupt", signal.SIGTERM)
    build(untrained, *TARGETS)
    assert digests(untrained / "results/tiny/runs") == undisturbed[1]


def test_after_ctrl_c_the_same_command_goes_on(untrained, undisturbed):
    """The terminal sends SIGINT to Snakemake, launchers and ranks at once."""
    with building(untrained) as process:
        wait_for_working_checkpoint(untrained, "interrupt", process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(TIME_LIMIT_S) != 0
        wait_until_no_job_is_left(process.pid)
    build(untrained, *TARGETS)
    assert digests(untrained / "results/tiny/runs") == undisturbed[1]


def test_a_second_snakemake_at_the_same_time_is_refused(untrained, undisturbed):
    with building(untrained) as process:
        wait_for_working_checkpoint(untrained, "interrupt", process)
        second = snakemake(untrained, *TARGETS)
        assert process.poll() is None
        assert second.returncode != 0
        sentence = f"another snakemake builds in this folder, process {process.pid}: wait until it has ended"
        assert sentence in second.stdout
        assert "Traceback" not in second.stdout
        dry = snakemake(untrained, *TARGETS, "--dry-run")
        assert dry.returncode == 0, dry.stdout
        assert process.wait(TIME_LIMIT_S) == 0, (untrained / "output.txt").read_text()
    assert digests(untrained / "results/tiny/runs") == undisturbed[1]
