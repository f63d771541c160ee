import shutil
from pathlib import Path

import pytest

from tests.workflow.archives import ARCHIVE, contents_of
from tests.workflow.projects import BUILD_S, build, copy_project

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a test builds, and a fixture of the session that is made for it, counts as its time."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(BUILD_S))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose tiny experiment has been built. Tests leave it as they found it."""
    project = copy_project(tmp_path_factory.mktemp("built") / "project")
    build(project)
    return project


@pytest.fixture(scope="session")
def built_again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another project whose tiny experiment has been built, without the controls. Tests leave it as they found it."""
    project = copy_project(tmp_path_factory.mktemp("again") / "project")
    build(project, "results/tiny/gate.txt", "results/tiny/environment.json")
    return project


@pytest.fixture(scope="session")
def archived(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built project with its archive, made by Snakemake. Tests leave it as they found it."""
    project = tmp_path_factory.mktemp("archived") / "project"
    shutil.copytree(built, project, symlinks=True)
    build(project, ARCHIVE)
    return project


@pytest.fixture(scope="session")
def contents(archived: Path) -> dict[str, bytes]:
    """Of that archive."""
    return contents_of(archived / ARCHIVE)
