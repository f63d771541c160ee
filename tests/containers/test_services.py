"""What the README says of containers, done: images and containers are real, GPUs are not there."""

import json
import os
import platform
import subprocess
import time

import pytest

from ddp_tokens.locks import lock_alone
from ddp_tokens.workflow import LOCK
from tests.containers.engine import USER, copy_of_checkout
from tests.workflow.projects import TINY, digests, snakemake

pytestmark = [pytest.mark.containers, pytest.mark.timeout(1200)]

GATE = "results/tiny/gate.txt"
# They hold Python's version, or the digest of a file that does.
STATING_PYTHON = (
    "runs/*/step-*/*.json",
    "checks/resume.json",
    "checks/checkpoints.json",
    "report/ver*.html",
    "summary.json",
)
ENOUGH_TO_BE_KILLED = TINY.replace("steps: 4", "steps: 400").replace("interrupt_at: 2", "interrupt_at: 200")


def set_up(project, experiment=TINY):
    """The only experiment is `tiny`, in the folder that containers see: the image does not hold it."""
    (project / "config" / "config.yaml").write_text("experiments: [tiny]\n")
    (project / "config" / "tiny.yaml").write_text(experiment)
    return project


def stating_python(folder):
    return {str(path.relative_to(folder)) for pattern in STATING_PYTHON for path in folder.glob(pattern)}


def differing(some, others):
    return {name for name in some.keys() | others.keys() if some.get(name) != others.get(name)}


def test_who_runs_there_is_the_user_and_has_no_network_and_cannot_change_the_code(engine, project):
    done = engine.service(project, "cpu", "sh", "-c", "id -u; id -g; ls /sys/class/net; touch src/x; env")
    assert done.stdout.split()[:3] == [str(USER), str(USER), "lo"]
    assert "cannot touch 'src/x': Permission denied" in done.stdout
    assert not [word for word in ("PASSWORD", "TOKEN", "SECRET") if word in done.stdout]


def test_minimum_is_the_same_inside_and_outside(engine, project, tmp_path):
    inside = engine.service(project, "cpu", "snakemake", "--cores", "2", "results/minimum/gate.txt")
    assert inside.returncode == 0, inside.stdout
    outside = copy_of_checkout(tmp_path / "outside")
    done = snakemake(outside, "results/minimum/gate.txt")
    assert done.returncode == 0, done.stdout

    folder = project / "results" / "minimum"
    version = engine.service(project, "cpu", "python", "-c", "import platform; print(platform.python_version())")
    same_python = version.stdout.strip() == platform.python_version()
    found = digests(folder)
    assert len(found) > 100
    assert differing(found, digests(outside / "results" / "minimum")) == (
        set() if same_python else stating_python(folder)
    )
    assert {path.stat().st_uid for path in folder.rglob("*")} == {USER}


def test_host_and_containers_go_on_from_each_other(engine, project):
    set_up(project)
    assert engine.service(project, "cpu", "snakemake", "--cores", "2", GATE).returncode == 0
    again = engine.service(project, "cpu", "snakemake", "--cores", "2", "--dry-run", GATE)
    assert "Nothing to be done" in again.stdout
    assert "Nothing to be done" in snakemake(project, "--dry-run", GATE).stdout


def test_a_killed_container_is_gone_on_from(engine, project, tmp_path):
    set_up(project, ENOUGH_TO_BE_KILLED)
    command = engine.command("run", "--rm", "-T", "--name", "killed", "cpu", "snakemake", "--cores", "2", GATE)
    with subprocess.Popen(command, cwd=project, env=engine.environment, stdout=subprocess.DEVNULL) as running:
        working = project / "results" / "tiny" / "runs"
        while running.poll() is None and not list(working.glob(".*/step-0100")):
            time.sleep(0.1)
        subprocess.run(["podman", "kill", "killed"], env=engine.environment, check=True, capture_output=True)
        assert running.wait() != 0
    assert not (project / GATE).exists()

    again = engine.service(project, "cpu", "snakemake", "--cores", "2", GATE)
    assert again.returncode == 0, again.stdout
    logs = "".join(path.read_text() for path in (project / "results/tiny/logs").glob("*.log"))
    assert "going on from" in logs
    undisturbed = set_up(copy_of_checkout(tmp_path / "undisturbed"), ENOUGH_TO_BE_KILLED)
    assert engine.service(undisturbed, "cpu", "snakemake", "--cores", "2", GATE).returncode == 0
    assert differing(digests(project / "results/tiny"), digests(undisturbed / "results/tiny")) == set()


def test_a_container_waits_for_nobody_who_builds_in_the_same_folder(engine, project):
    held = lock_alone(project / LOCK)
    os.chown(project / LOCK, USER, USER)
    refused = engine.service(project, "cpu", "snakemake", "--cores", "2", "exercise")
    assert refused.returncode != 0
    assert f"another snakemake builds in this folder, process {os.getpid()} on host {platform.node()}" in refused.stdout
    held.close()


def test_nothing_needs_a_download(engine, project):
    done = engine.service(project, "acquire")
    assert done.returncode == 0, done.stdout
    assert "no download" in done.stdout


def test_two_processes_meet(engine, project):
    environment = ("python", "-m", "ddp_tokens.cli", "check-environment", "--config", "config/minimum.yaml", "--dual")
    done = engine.service(project, "cpu", *environment)
    assert done.returncode == 0, done.stdout
    verdicts = json.loads((project / "results/minimum/environment.json").read_text())["verdicts"]
    assert [verdict["outcome"] for verdict in verdicts if verdict["case"] == "ranks"] == ["pass"]


@pytest.mark.parametrize("absent", [".env", "results", ".snakemake", "data"])
def test_what_setup_makes_is_asked_for(engine, project, absent):
    path = project / absent
    path.rename(project / "away")
    done = engine.service(project, "cpu", "true")
    assert done.returncode != 0
    assert ("run scripts/setup.sh first" if absent == ".env" else str(path)) in done.stdout
    assert not path.exists()


@pytest.mark.timeout(3600)
def test_the_whole_suite_passes_inside(engine, project):
    done = engine.service(project, "cpu", "make", "test")
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
