"""One set of versions: pyproject.toml states ranges, and both files in envs/ hold what was resolved from them."""

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ddp_tokens.steps import PROJECT_ROOT
from ddp_tokens.trainers.cases import CASES


def pins(lines):
    """Canonical name -> version, of lines NAME==VERSION."""
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


LOCK = pins((PROJECT_ROOT / "envs" / "requirements.lock").read_text().splitlines())
CONDA = yaml.safe_load((PROJECT_ROOT / "envs" / "environment.yaml").read_text())["dependencies"]
PROJECT = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())["project"]
DIRECT = [Requirement(text) for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])]


@pytest.mark.parametrize("requirement", DIRECT, ids=lambda requirement: requirement.name)
def test_the_lock_satisfies_each_direct_dependency(requirement):
    assert requirement.specifier.contains(LOCK[canonicalize_name(requirement.name)])


def test_both_environments_have_the_same_versions():
    [of_pip] = [entry["pip"] for entry in CONDA if isinstance(entry, dict)]
    conda = pins(of_pip)
    assert conda == {name: LOCK[name] for name in conda}
    assert set(conda) == {canonicalize_name(requirement.name) for requirement in DIRECT}


def test_the_lock_names_no_build():
    """One lock for CPU and GPU machines: no "+cpu", and nothing that only torch's CUDA build needs."""
    assert {name: version for name, version in LOCK.items() if Version(version).local} == {}
    assert [name for name in LOCK if re.match(r"nvidia-|cuda-|triton$", name)] == []
    assert len(LOCK) > len(DIRECT)


def test_the_lock_of_slurm_adds_its_plugin_and_changes_nothing():
    """It is installed beside the other one, by those who have a SLURM; `make` does not."""
    slurm = pins((PROJECT_ROOT / "envs" / "slurm.lock").read_text().splitlines())
    [requirement] = [Requirement(text) for text in PROJECT["optional-dependencies"]["slurm"]]
    assert requirement.specifier.contains(slurm[requirement.name])
    assert not set(slurm) & set(LOCK)
    assert "slurm.lock" not in (PROJECT_ROOT / "Makefile").read_text()


def test_the_lock_of_trainers_adds_them_and_changes_nothing():
    """It is installed beside the other one, by `make trainers` and no other target."""
    trainers = pins((PROJECT_ROOT / "envs" / "trainers.lock").read_text().splitlines())
    requirements = [Requirement(text) for text in PROJECT["optional-dependencies"]["trainers"]]
    assert [each.name for each in requirements if not each.specifier.contains(trainers[each.name])] == []
    assert len(requirements) == 4
    assert not set(trainers) & set(LOCK)
    assert [name for name in trainers if re.match(r"torch$|nvidia-|cuda-|triton$", name)] == []
    makefile = (PROJECT_ROOT / "Makefile").read_text()
    assert re.findall(r"^\t.*trainers\.lock$", makefile, re.MULTILINE) == [
        "\t$(BIN)/python -m pip install --quiet --no-deps --requirement envs/trainers.lock"
    ]
    assert [line for line in makefile.splitlines() if "$(TRAINERS)" in line] == [
        "trainers: $(TRAINERS)",
        "$(TRAINERS): envs/trainers.lock $(INSTALLED)",
    ]


def test_the_lock_of_data_adds_pyarrow_and_changes_nothing():
    """It is installed beside the other one, by `make data` and no other target. No other lock may have it in another
    version.
    """
    data = pins((PROJECT_ROOT / "envs" / "data.lock").read_text().splitlines())
    [requirement] = [Requirement(text) for text in PROJECT["optional-dependencies"]["data"]]
    assert requirement.specifier.contains(data[requirement.name])
    assert not set(data) & set(LOCK)
    trainers = pins((PROJECT_ROOT / "envs" / "trainers.lock").read_text().splitlines())
    assert {name: trainers[name] for name in set(data) & set(trainers)}.items() <= data.items()
    makefile = (PROJECT_ROOT / "Makefile").read_text()
    assert re.findall(r"^\t.*data\.lock$", makefile, re.MULTILINE) == [
        "\t$(BIN)/python -m pip install --quiet --no-deps --requirement envs/data.lock"
    ]
    assert [line for line in makefile.splitlines() if "$(DATA)" in line] == [
        "data: $(DATA)",
        "$(DATA): envs/data.lock $(INSTALLED)",
    ]


def test_every_audited_package_is_in_a_lock():
    """What the table of trainers says to install is what `make trainers` installs."""
    trainers = pins((PROJECT_ROOT / "envs" / "trainers.lock").read_text().splitlines())
    assert {case.package for case in CASES} - set(trainers) == {"torch"}


def test_conda_takes_a_python_that_the_project_supports():
    [python] = [entry for entry in CONDA if isinstance(entry, str) and entry.startswith("python=")]
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python.removeprefix("python="))
