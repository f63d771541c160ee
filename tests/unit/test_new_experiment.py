"""`ddp_tokens.cli new NAME` writes three files that work as they are, and overwrites none."""

import importlib.util
import shutil
import subprocess
import sys

import pytest

from ddp_tokens.cli import TOOLS, main
from ddp_tokens.config_reading import load_experiment
from ddp_tokens.errors import ConfigError
from ddp_tokens.new_experiment import LONGEST, RESERVED, WRITTEN, write_new
from ddp_tokens.options import run_as_program
from ddp_tokens.workloads import load
from tests.helpers import PROJECT

FILES = ["config/my_task.yaml", "workloads/my_task.py", "tests/own/test_my_task.py"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "Snakefile").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_what_it_wrote_and_the_next_two_commands(project, capsys):
    assert main(["new", "my_task"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("".join(f"wrote {name}\n" for name in FILES))
    assert "\n  python -m pytest tests/own/test_my_task.py\n" in said
    assert said.endswith("\n  snakemake --cores 2 results/my_task/summary.json\n")
    assert {str(path.relative_to(project)) for path in project.rglob("*.*")} == set(FILES)
    assert "new" in TOOLS


def test_no_placeholder_is_left_and_the_name_is_everywhere(project):
    for path in write_new("my_task", project):
        text = path.read_text()
        assert "NAME" not in text
        assert "my_task" in text


def test_the_experiment_is_valid_and_small_and_its_workload_is_the_file_beside_it(project):
    write_new("my_task", project)
    experiment = load_experiment("config/my_task.yaml")
    assert experiment.workload == "workloads/my_task.py:Work"
    assert (experiment.name, experiment.world_size, experiment.unit) == ("my_task", 2, "token")
    assert experiment.steps <= 20
    assert experiment.corpus.train <= 128
    workload = load(experiment.workload)
    assert sum(p.numel() for p in workload.build_model(experiment.model, Shape).parameters()) < 10_000


class Shape:
    vocabulary, positions, classes = 4, 32, 4


@pytest.mark.parametrize("name", ["", "Mine", "my-task", "2nd", "a/b", "../a", "a b", "ä", "a.b", "x" * (LONGEST + 1)])
def test_a_bad_name_is_refused(project, name):
    with pytest.raises(ConfigError, match="cannot be the name of an experiment and of its files"):
        write_new(name, project)
    assert not (project / "config").exists()


@pytest.mark.parametrize("name", RESERVED)
def test_a_reserved_name_is_refused(project, name):
    with pytest.raises(ConfigError, match=f"'{name}' is reserved"):
        write_new(name, project)


@pytest.mark.parametrize("there", FILES)
def test_nothing_is_overwritten_and_then_nothing_is_written(project, there):
    path = project / there
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is there already, and nothing is overwritten"):
        write_new("my_task", project)
    assert path.read_text() == "mine"
    assert [str(p.relative_to(project)) for p in project.rglob("*.*")] == [there]


@pytest.mark.parametrize("in_the_way", ["config", "workloads", "tests", "tests/own"])
def test_where_one_file_cannot_be_written_none_is_left_and_the_next_try_succeeds(project, capsys, in_the_way):
    """A file stands where a folder should: of `tests/own` the third file cannot be written, after two were."""
    obstacle = project / in_the_way
    obstacle.parent.mkdir(exist_ok=True)
    obstacle.write_text("mine")
    assert run_as_program("ddp_tokens.cli", main, ["new", "my_task"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert in_the_way in said
    assert list(project.rglob("*my_task*")) == []
    obstacle.unlink()
    assert main(["new", "my_task"]) == 0
    assert {str(path.relative_to(project)) for path in project.rglob("*my_task*")} == set(FILES)


def test_a_link_that_leads_nowhere_is_not_written_through(project, tmp_path):
    (project / "config").mkdir()
    (project / "config" / "my_task.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    with pytest.raises(ConfigError, match="is there already"):
        write_new("my_task", project)


def test_it_is_called_in_the_projects_folder(tmp_path):
    with pytest.raises(ConfigError, match="has no Snakefile: call this in the project's folder"):
        write_new("my_task", tmp_path)


@pytest.mark.skipif(shutil.which("ruff") is None, reason="ruff is not installed")
@pytest.mark.parametrize("name", ["a", "x" * LONGEST])
def test_what_it_writes_is_in_this_projects_style(project, name):
    shutil.copy(PROJECT / "pyproject.toml", project)
    files = [str(path) for path in write_new(name, project) if path.suffix == ".py"]
    (project / "src").symlink_to(PROJECT / "src")  # imports are sorted by what is there
    (project / "tests" / "distributed").symlink_to(PROJECT / "tests" / "distributed")
    for folder in ("tests", "tests/own"):
        (project / folder / "__init__.py").touch()
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(["ruff", *command, *files], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_its_own_test_passes_and_notices_a_wrong_workload(project):
    """Beside the modules of this project's tests that it uses. The injected fault: units that are counted twice."""
    _, workload, test = write_new("my_task", project)
    shutil.copytree(PROJECT / "tests" / "distributed", project / "tests" / "distributed")
    for folder in ("tests", "tests/own"):
        (project / folder / "__init__.py").write_text("")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    workload.write_text(workload.read_text().replace("batch.units\n", "2 * batch.units\n", 1))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "sums the losses of" in done.stdout


def test_its_templates_are_all_there_and_are_packaged():
    folder = PROJECT / "src" / "ddp_tokens" / "templates" / "new"
    assert {path.name for path in folder.iterdir()} == set(WRITTEN)
    assert '"templates/new/*"' in (PROJECT / "pyproject.toml").read_text()
    assert importlib.util.find_spec("ddp_tokens.new_experiment") is not None
