from pathlib import Path

import pytest

from tests.workflow.projects import build, copy_project


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose tiny experiment has been built. Tests leave it as they found it."""
    project = copy_project(tmp_path_factory.mktemp("built") / "project")
    build(project)
    return project
