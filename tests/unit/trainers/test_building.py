from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from ddp_tokens.files import read_json
from ddp_tokens.trainers import building
from ddp_tokens.trainers.building import audited, installed_file, script_file
from tests.unit.trainers.synthetic import CASES


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_script_lies_among_the_examples():
    assert script_file(CASES[0]) == "examples/bare.py"


@pytest.fixture
def installed(monkeypatch):
    """Package -> version, as if these were installed."""
    versions = {"torch": "2.13.0"}

    def version(package):
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(building, "version", version)
    return versions


def test_another_version_is_another_input(installed):
    before = installed_file(CASES[0])
    assert installed_file(CASES[0]) == before
    assert read_json(before) == {"package": "torch", "version": "2.13.0"}
    installed["torch"] = "2.13.1"
    assert installed_file(CASES[0]) != before


def test_a_run_is_made_again_once_its_package_is_installed(installed):
    case = replace(CASES[0], package="deepspeed")
    before = installed_file(case)
    assert read_json(before) == {"package": "deepspeed", "version": None}
    installed["deepspeed"] = "0.17"
    assert installed_file(case) != before


def test_a_report_shows_the_table_where_it_is_there():
    assert audited() == []
    path = Path("results/audit/trainers.json")
    path.parent.mkdir(parents=True)
    path.touch()
    assert audited() == [str(path)]
