"""A workload of the user's own goes into the archive, or is named as what a rebuild must find."""

import pytest

from ddp_tokens.archive.collect import require_archivable
from ddp_tokens.archive.own_workload import workload_inputs
from ddp_tokens.archive.source import source_state
from ddp_tokens.errors import ArchiveError
from tests.helpers import tiny_experiment
from tests.unit.archive.test_rebuild import archive_with, left_out, refusal, unpacked


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a workload in each of several places, each of which imports a file beside it."""
    folder = tmp_path / "project"
    for place in ("project/workloads", "project/mine", "project/package", "elsewhere", "project/.venv/lib"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "work.py").write_text("import beside\n")
        (tmp_path / place / "beside.py").write_text("")
    (folder / "package" / "work.py").write_text("from . import beside\n")
    monkeypatch.chdir(folder)
    return folder


def inputs(workload, source=()):
    return workload_inputs(tiny_experiment(workload=workload), source)


def test_what_is_in_the_project_goes_along_unless_it_is_in_the_source(project):
    names = {f"inputs/mine/{name}": project / "mine" / name for name in ("work.py", "beside.py")}
    assert inputs("mine/work.py:Work") == (names, {})
    assert inputs("./mine/work.py:Work", ["mine/beside.py"])[0].keys() == {"inputs/mine/work.py"}
    assert inputs("package.work:Work")[0].keys() == {"inputs/package/work.py", "inputs/package/beside.py"}
    assert inputs("token_labels") == ({}, {})


def test_a_file_that_new_wrote_is_source(project):
    source = source_state(project).files
    assert {"workloads/work.py", "workloads/beside.py"} <= set(source)
    assert inputs("workloads/work.py:Work", source) == ({}, {})


def test_what_lies_elsewhere_is_named(project, tmp_path):
    folder = tmp_path / "elsewhere"
    inside, outside = inputs(f"{folder}/work.py:Work")
    assert inside == {}
    assert outside == {f"inputs{folder}/{name}": folder / name for name in ("beside.py", "work.py")}


@pytest.mark.parametrize(
    "workload", ["../elsewhere/work.py:Work", "json.decoder:JSONDecoder", ".venv/lib/work.py:Work"]
)
def test_what_a_rebuild_would_not_find_is_refused(project, workload):
    with pytest.raises(ArchiveError, match=r"tiny: field workload, .* leads out of the project's folder"):
        require_archivable(tiny_experiment(workload=workload))


def test_a_link_to_a_file_outside_is_refused(project, tmp_path):
    (project / "mine" / "linked.py").symlink_to(tmp_path / "elsewhere" / "work.py")
    with pytest.raises(ArchiveError, match="leads out of the project's folder"):
        inputs("mine/linked.py:Work")


def test_a_workload_that_lies_elsewhere_must_lie_there_for_a_rebuild(tmp_path):
    work = tmp_path / "elsewhere" / "work.py"
    archive = archive_with(tmp_path, omitted=left_out(f"inputs{work}"), config=f"workload: {work}:Work\n")
    assert f"the experiment reads {work}, which is no part of the archive" in refusal(archive, tmp_path / "new")
    work.parent.mkdir()
    work.write_bytes(b"rows")
    assert "Snakefile" in unpacked(archive, tmp_path / "new")


def test_a_workload_of_the_project_that_was_too_large_is_not_looked_for_elsewhere(tmp_path):
    archive = archive_with(tmp_path, omitted=left_out("inputs/mine/work.py"), config="workload: mine/work.py:Work\n")
    assert "inputs/mine/work.py was left out as too large" in refusal(archive, tmp_path / "new")
