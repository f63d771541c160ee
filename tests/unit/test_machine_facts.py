import errno
import fcntl
import json
import os
import tomllib
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from ddp_tokens import machine_facts as facts
from ddp_tokens.cgroups import Limits
from tests.helpers import PROJECT

DEPENDENCIES = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["dependencies"]


def test_the_packages_are_the_dependencies_of_the_project():
    assert list(facts.IMPORTED) == sorted(Requirement(text).name for text in DEPENDENCIES)


def test_this_machine_in_plain_values(tmp_path, monkeypatch):
    """On any machine that runs these tests Linux tells of memory and disk, and locks work in /tmp."""
    monkeypatch.setattr(facts, "limits", lambda: Limits(cores=1.5, memory=100, left=60, known=True))
    found = facts.machine_facts(tmp_path / "new" / "tiny", {facts.VISIBLE: ""})
    assert json.loads(json.dumps(found)) == found
    assert found["locks"] == facts.WORK
    assert found["process_handles"] is True
    assert found["cuda_visible_devices"] == ""
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert [found[f"{name}_bytes"] for name in ("memory_of_group", "memory_left_in_group")] == [100, 60]
    assert found["cores_of_group"] == 1.5
    assert 0 < found["memory_available_bytes"] < found["memory_bytes"]
    assert found["disk_free_bytes"] > 0
    assert list((tmp_path / "new" / "tiny").iterdir()) == [], "the trial leaves nothing"


def test_versions_beside_the_lock_and_the_ranges(tmp_path, monkeypatch):
    """2.13.0+cpu is the lock's 2.13.0; 2.0 lies outside >=2.2; what is not installed has no version."""
    lock = tmp_path / "lock"
    lock.write_text("# Made by make lock\ntorch==2.13.0\npandas==3.1.1\n")
    monkeypatch.setattr(facts, "LOCK_FILE", lock)
    monkeypatch.setattr(facts, "IMPORTED", ("torch", "pandas", "tqdm"))
    ranges = ["torch>=2.7", "pandas >=2.2,<4", "Types_PyYAML>=6; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda name: ranges)
    versions = {"torch": "2.13.0+cpu", "pandas": "2.0"}

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    assert facts.packages() == {
        "torch": {"installed": "2.13.0", "locked": "2.13.0", "needed": ">=2.7", "within": True},
        "pandas": {"installed": "2.0", "locked": "3.1.1", "needed": ">=2.2,<4", "within": False},
        "tqdm": {"installed": None, "locked": None, "needed": None, "within": None},
    }


def test_without_an_installed_project_no_range_is_known(monkeypatch, tmp_path):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert facts.needed_ranges() == {}
    assert facts.locked_versions(tmp_path / "gone") == {}


def test_this_environment_has_a_version_of_each_package_and_a_lock_for_it():
    found = facts.packages()
    assert all(package["installed"] and package["locked"] for package in found.values())


def test_a_folder_that_cannot_be_written_to_is_a_fact(tmp_path):
    (tmp_path / "results").write_text("a file")
    found = facts.machine_facts(tmp_path / "results" / "tiny", {})
    assert found["results_refused"] == "Not a directory"
    assert found["locks"] is None


def test_a_folder_that_can_be_written_to_is_left_empty(tmp_path):
    assert facts.trial_of_writing(tmp_path / "results" / "tiny") is None
    assert list((tmp_path / "results").rglob("*")) == [tmp_path / "results" / "tiny"]


def test_a_file_system_without_locks_is_told_in_its_own_words(tmp_path, monkeypatch):
    def refuse(stream, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert facts.trial_of_locks(tmp_path) == os.strerror(errno.ENOLCK)
    assert list(tmp_path.iterdir()) == []


def test_locks_that_keep_nobody_out_do_not_work(tmp_path, monkeypatch):
    """This process only pretends to lock, so that the other one gets the lock."""
    monkeypatch.setattr(fcntl, "flock", lambda stream, kind: None)
    assert facts.trial_of_locks(tmp_path) == "two processes could lock the same file"
    assert list(tmp_path.iterdir()) == []


def test_a_trial_that_breaks_is_told_by_its_last_line(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "TRIAL", "raise RuntimeError('the trial broke')")
    assert facts.trial_of_locks(tmp_path) == "RuntimeError: the trial broke"


def test_free_space_is_for_this_user_and_unknown_where_nobody_tells(tmp_path, monkeypatch):
    found = os.statvfs(tmp_path)
    assert abs(facts.free_bytes(tmp_path) - found.f_bavail * found.f_frsize) < 2**30
    assert facts.free_bytes(tmp_path / "gone") is None

    class Silent:
        f_blocks, f_bavail, f_frsize = 0, 0, 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Silent)
    assert facts.free_bytes(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (None, None),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version: 12.2\n", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95  Release\n", "580.95"),
        ("something else\n", "unknown"),
        ("", "unknown"),
    ],
)
def test_the_driver_as_its_kernel_module_tells_it(tmp_path, monkeypatch, text, version):
    monkeypatch.setattr(facts, "DRIVER", tmp_path / "version")
    if text is not None:
        (tmp_path / "version").write_text(text)
    assert facts.driver_version() == version


@pytest.mark.parametrize("error", [AttributeError("no pidfd_open"), PermissionError(errno.EPERM, "forbidden")])
def test_handles_of_processes_may_be_missing_or_forbidden(monkeypatch, error):
    def refuse(pid):
        raise error

    assert facts.has_process_handles()
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert not facts.has_process_handles()
