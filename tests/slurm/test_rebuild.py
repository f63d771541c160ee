"""The chain on two nodes of a real SLURM, with the project's profile: whole, and cancelled in its midst."""

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.slurm.projects import EXPERIMENT, GATE, TIME_LIMIT_S, command, environment_with, snakemake, submitted
from tests.workflow.projects import build, copy_project, digests, rules_to_run

pytestmark = pytest.mark.timeout(900)
ON_BOTH_NODES = {"gradients", "interrupt", "continuous", "resume"}
IN_ONE_PROCESS = {"reference", "evaluate"}
# Every setting of the experiment, and what it ran on.
STATE_THE_HOSTS = {"settings/summary.json", "report/config.html", "report/versions.html"}
RUN = "results/tiny/runs/continuous"


@pytest.fixture(scope="module")
def environment(cluster, plugin):
    """Of a project: what its Snakemake is called with."""
    return lambda project: cluster.environment(environment_with(plugin, project))


@pytest.fixture(scope="module")
def local(cluster, plugin, tmp_path_factory) -> dict[str, str]:
    """Digests of a rebuild on this host alone."""
    project = copy_project(tmp_path_factory.mktemp("local") / "project", EXPERIMENT)
    build(project, GATE)
    return digests(project / "results/tiny")


@pytest.fixture(scope="module")
def rebuilt(environment, tmp_path_factory) -> tuple[Path, str]:
    """A project that was rebuilt on both nodes, and what Snakemake said."""
    project = copy_project(tmp_path_factory.mktemp("rebuilt") / "project", EXPERIMENT)
    done = snakemake(project, environment(project), GATE)
    assert done.returncode == 0, done.stdout
    return project, done.stdout


def test_a_rebuild_on_two_nodes_has_the_digests_of_a_local_one(rebuilt, local):
    found = digests(rebuilt[0] / "results/tiny")
    assert "runs/resume/step-0300/model.safetensors" in found
    assert set(found) == set(local)
    assert {name for name in found if found[name] != local[name]} == STATE_THE_HOSTS
    document = (rebuilt[0] / "results/tiny/settings/summary.json").read_text()
    assert '"nodes": 2' in document


def test_only_what_computes_with_tensors_is_submitted_and_runs_on_both_nodes(rebuilt, cluster):
    jobs = submitted(rebuilt[1])
    assert set(jobs) == ON_BOTH_NODES | IN_ONE_PROCESS
    assert sum(map(len, jobs.values())) <= 8
    nodes = {rule: cluster.nodes_of_step(job) for rule, [job] in jobs.items()}
    assert {rule for rule in nodes if nodes[rule] == ["n1", "n2"]} == ON_BOTH_NODES
    assert all(len(nodes[rule]) == 1 for rule in IN_ONE_PROCESS)


def test_the_settings_of_the_default_profile_still_hold(rebuilt):
    """Both profiles are read. A rebuild leaves no lock of Snakemake's own, and nothing to do."""
    project, output = rebuilt
    assert "Using profiles profiles/slurm and workflow specific profile profiles/default" in output
    assert not list((project / ".snakemake" / "locks").glob("*"))
    assert rules_to_run(project, "--config", "nodes=2", "--", GATE) == set()


@pytest.mark.all_hosts
def test_a_cancelled_run_goes_on_from_its_newest_checkpoint(rebuilt, local, environment, cluster, tmp_path):
    project = Path(shutil.copytree(rebuilt[0], tmp_path / "project"))
    shutil.rmtree(project / RUN)
    with open(project / "output.txt", "w") as output:
        process = subprocess.Popen(
            command(RUN), cwd=project, env=environment(project), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            wait_for_working_checkpoint(project, process)
            [job] = submitted((project / "output.txt").read_text())["continuous"]
            ranks = {(of["RANK"], of["SLURMD_NODENAME"]) for of in cluster.processes(job) if "RANK" in of}
            cluster.run("scancel", job)
            assert process.wait(TIME_LIMIT_S) != 0
        finally:
            process.kill()
            process.wait()
    assert ranks == {("0", "n1"), ("1", "n2")}
    assert "SLURM status is: 'CANCELLED'" in (project / "output.txt").read_text()
    assert not (project / RUN / "history.jsonl").exists()
    done = snakemake(project, environment(project), RUN)
    assert done.returncode == 0, done.stdout
    log = (project / "results/tiny/logs/continuous.log").read_text()
    [update] = re.findall("^continuing after update ([0-9]+) of 300$", log, flags=re.MULTILINE)
    assert int(update) >= 10
    expected = {name: digest for name, digest in local.items() if name.startswith("runs/")}
    assert {f"runs/{name}": digest for name, digest in digests(project / "results/tiny/runs").items()} == expected


def wait_for_working_checkpoint(project: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + TIME_LIMIT_S
    while not list(project.glob("results/tiny/runs/.continuous.*/step-*/manifest.json")):
        assert time.monotonic() < deadline
        assert process.poll() is None, (project / "output.txt").read_text()
        time.sleep(0.01)
