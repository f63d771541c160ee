"""`cli new` and the chain after it, unedited: every verdict is as expected; an edit reruns what uses the workload."""

import csv
import shutil

import pytest

from ddp_tokens.archive.make import Project, make_archive
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.files import read_json
from tests.workflow.archives import contents_of
from tests.workflow.projects import build, copy_project, rules_to_run, run, snakemake

TARGET = "results/demo/summary.json"
WORKLOAD = "workloads/demo.py"
OF_THE_WORK = {"reference", "gradients", "interrupt", "continuous", "resume", "evaluate"}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """With the files that `new` writes, and the results of its chain. Tests leave it as they found it."""
    project = copy_project(tmp_path_factory.mktemp("new") / "project")
    done = run(project, "ddp_tokens.cli", "new", "demo")
    assert done.returncode == 0, done.stdout
    build(project, TARGET)
    return project


def test_all_verdicts_are_as_expected_as_it_is_written(project):
    summary = read_json(project / TARGET)
    assert summary["as_expected"] is True
    with open(project / "results/demo/summary.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) > 30
    assert {row["outcome"] for row in rows if "mean_of_means" in row["case"]} == {"fail"}, "the known mistake is seen"
    assert rules_to_run(project, TARGET) == set()


def test_the_workload_is_part_of_what_its_steps_are_made_of(project):
    settings = read_json(project / "results/demo/settings/continuous.json")
    assert WORKLOAD in settings["code"]
    assert WORKLOAD not in read_json(project / "results/demo/settings/prepare.json")["code"]


def test_an_edit_of_it_reruns_the_steps_that_use_it(project):
    path = project / WORKLOAD
    before = path.read_text()
    path.write_text(before + "# edited\n")
    try:
        rerun = rules_to_run(project, TARGET)
    finally:
        path.write_text(before)
    assert rerun >= OF_THE_WORK
    assert not {"prepare", "check_loss"} & rerun


def test_another_one_is_refused(project):
    done = run(project, "ddp_tokens.cli", "new", "demo")
    assert done.returncode == 2
    assert "is there already, and nothing is overwritten" in done.stdout


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("return losses.sum(), batch.units", "return losses.mean(), batch.units", "not twice as much: let loss_sum "),
        ("return losses.sum(), batch.units", "return losses.sum(), losses.sum()", "(it requires grad)"),
        ("return model(batch.tokens)", "return model(batch.token)", "Work.forward raised AttributeError, as the"),
    ],
)
def test_a_wrong_workload_stops_the_chain_at_the_reference(project, tmp_path, before, after, told):
    copy = tmp_path / "project"
    shutil.copytree(project, copy, symlinks=True)
    path = copy / WORKLOAD
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    done = snakemake(copy, TARGET)
    assert done.returncode != 0
    log = (copy / "results/demo/logs/reference.log").read_text()
    assert told in log
    assert ("Traceback" in log) == ("raised" in told), "theirs, where there is one"
    assert not (copy / "results/demo/initial.safetensors").exists()


def test_a_workload_that_is_gone_is_named_before_the_first_job(project):
    (project / WORKLOAD).rename(project / "gone.py")
    try:
        done = snakemake(project, "--dry-run", TARGET)
    finally:
        (project / "gone.py").rename(project / WORKLOAD)
    assert done.returncode != 0
    assert "config/demo.yaml: workload 'workloads/demo.py:Work' has no file " in done.stdout
    assert "Traceback" not in done.stdout


def test_the_archive_takes_it_along(project, tmp_path, monkeypatch, archived_controls):
    """As source, since `new` writes into one of the project's own folders."""
    shutil.copytree(archived_controls, project / "results" / "controls", dirs_exist_ok=True)
    monkeypatch.chdir(project)
    build(project, "results/demo/environment.json", "results/demo/figures/tokens.png")
    experiment, controls = (load_experiment(f"config/{name}.yaml") for name in ("demo", "controls"))
    path = tmp_path / "demo.zip"
    make_archive(path, Project(project, project / "results"), experiment, controls, 256)
    contents = contents_of(path)
    assert contents[f"source/{WORKLOAD}"] == (project / WORKLOAD).read_bytes()
    assert "source/config/demo.yaml" in contents
    done = run(tmp_path, "ddp_tokens.cli", "verify", str(path))
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def archived_controls(built):
    return built / "results" / "controls"
