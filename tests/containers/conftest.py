from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.engine import Engine, copy_of_checkout, engine_in, missing


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """With the project's image, built from the files as they are now."""
    if problem := missing():
        pytest.skip(f"no containers: {problem}")
    folder = tmp_path_factory.mktemp("engine")
    with engine_in(folder) as engine:
        engine.build(copy_of_checkout(folder / "context"))
        yield engine


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return copy_of_checkout(tmp_path / "project")
