"""Tiny experiments that several tests look at; a test that changes files takes a copy."""

import shutil

import pytest

from tests.distributed.tiny import Tiny, prepared


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """World size -> a tiny experiment whose three runs are done. Read only."""
    done: dict[int, Tiny] = {}

    def of(world_size: int) -> Tiny:
        if world_size not in done:
            tiny = prepared(tmp_path_factory.mktemp("trained") / "tiny", world_size)
            tiny.train_all()
            done[world_size] = tiny
        return done[world_size]

    return of


@pytest.fixture
def copy_of(trained, tmp_path):
    """World size -> a copy of that experiment, to be changed."""

    def of(world_size: int) -> Tiny:
        return Tiny(shutil.copytree(trained(world_size).folder, tmp_path / "tiny"), world_size)

    return of
