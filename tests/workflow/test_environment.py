"""The rule `environment`, by itself, in copies of the project."""

import json

import pytest

from tests.workflow.projects import TINY, build, copy_project, rules_to_run, run, snakemake

TARGET = "results/tiny/environment.json"


@pytest.fixture
def project(tmp_path):
    return copy_project(tmp_path / "project")


def verdicts_in(project):
    document = json.loads((project / TARGET).read_text())
    return {verdict["case"]: verdict for verdict in document["verdicts"]}


def test_two_processes_are_tried_where_there_are_several_ranks(project):
    build(project, TARGET)
    verdicts = verdicts_in(project)
    assert {case: verdict["outcome"] for case, verdict in verdicts.items() if verdict["outcome"] == "fail"} == {}
    processes = verdicts["ranks"]["observed"]["processes"]
    assert len({process["pid"] for process in processes}) == 2
    assert "nothing is seen to stand in the way" in (project / "results/tiny/logs/environment.log").read_text()
    made = {path.name for path in (project / "results/tiny").iterdir()}
    assert made == {"environment.json", "settings", "logs", "benchmarks"}, "nothing else is made for it"
    assert rules_to_run(project, TARGET) == set()
    assert rules_to_run(project, TARGET, "--config", "steps=5") == set(), "a setting that it does not read"
    assert rules_to_run(project, TARGET, "--config", "timeout_s=99") == {"environment"}


def test_a_single_rank_needs_no_second_process(tmp_path):
    project = copy_project(tmp_path / "project", TINY + "world_size: 1\n")
    build(project, TARGET)
    assert "ranks" not in verdicts_in(project)
    assert "environment" not in rules_to_run(project), "no other target asks for it"


def test_missing_gpus_are_told_by_the_file_and_refused_for_a_rebuild(project):
    """The target alone is built, and its verdict fails; with another target beside it the rebuild is refused."""
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() >= 2:
        pytest.skip("this machine has the GPUs that the test needs to be missing")
    build(project, TARGET, "--config", "device=cuda")
    verdicts = verdicts_in(project)
    assert [verdicts[case]["outcome"] for case in ("gpus", "ranks")] == ["fail", "fail"]
    log = (project / "results/tiny/logs/environment.log").read_text()
    assert "more fail" in log
    refused = snakemake(project, TARGET, "results/tiny/gate.txt", "--config", "device=cuda")
    assert refused.returncode != 0
    assert "device cuda needs 2 GPUs (one per rank) and torch sees" in refused.stdout


def test_by_hand_it_is_the_same_file(project):
    done = run(project, "ddp_tokens.cli", "check-environment", "--config", "config/tiny.yaml")
    assert done.returncode == 0, done.stdout
    assert f"wrote {TARGET}" in done.stdout
    assert verdicts_in(project)["backend"]["outcome"] == "pass"
