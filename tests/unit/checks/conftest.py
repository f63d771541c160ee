"""Three runs of a tiny model in one process: to 2, to 4 at once, and from 2 to 4."""

import shutil

import pytest
import torch

from ddp_tokens.checkpoint import load
from ddp_tokens.determinism import seed_rank
from ddp_tokens.generators import read_generators
from ddp_tokens.run_files import write_run
from ddp_tokens.world import World
from tests.unit.training import advance, new_state, start_of

IDENTITY = {"seed": 17, "rows.jsonl": "digest of the rows"}


@pytest.fixture(scope="session")
def _runs_made_once(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    seed_rank(17, 0)
    when_seeded = read_generators("cpu").digests
    torch.rand(3)  # as building a model draws
    state = new_state()
    start = start_of(state, when_seeded)
    advance(state, 2)
    write_run(runs / "interrupt", state, start, IDENTITY, World())
    advance(state, 4)
    write_run(runs / "continuous", state, start, IDENTITY, World())
    resumed = new_state(seed=99)
    load(runs / "interrupt" / "step-0002", resumed, IDENTITY, World())
    start = start_of(resumed)
    advance(resumed, 4)
    write_run(runs / "resume", resumed, start, IDENTITY, World())
    return runs


@pytest.fixture
def runs(_runs_made_once, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(_runs_made_once, tmp_path / "runs")
