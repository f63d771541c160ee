"""Three runs of a tiny model in one process: to 2, to 4 at once, and from 2 to 4."""

import shutil

import pytest

from ddp_tokens.checkpoint import load
from ddp_tokens.train import write_run
from ddp_tokens.world import World
from tests.unit.training import advance, fresh_run, new_state

IDENTITY = {"seed": 17}


@pytest.fixture(scope="session")
def _runs_made_once(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    state = fresh_run(2)
    write_run(runs / "interrupt", state, IDENTITY, World())
    advance(state, 4)
    write_run(runs / "continuous", state, IDENTITY, World())
    resumed = new_state(seed=99)
    load(runs / "interrupt" / "step-0002", resumed, IDENTITY, World())
    advance(resumed, 4)
    write_run(runs / "resume", resumed, IDENTITY, World())
    return runs


@pytest.fixture
def runs(_runs_made_once, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(_runs_made_once, tmp_path / "runs")
