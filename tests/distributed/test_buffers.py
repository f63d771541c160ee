"""BatchNorm's buffers on real ranks: all end with rank 0's, and a resume continues them bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_tokens.config_reading import load_experiment
from ddp_tokens.inputs import read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.train import begin
from ddp_tokens.trainer import train
from ddp_tokens.world import World
from tests.distributed.ranks import run_ranks
from tests.distributed.tiny import ACCUMULATION, STEPS, Tiny, prepared
from tests.distributed.tiny_images import IMAGES


@pytest.fixture(scope="module")
def of_size(tmp_path_factory):
    """World size -> the tiny experiment of images with BatchNorm and its three runs. Read only."""
    done: dict[int, Tiny] = {}

    def of(world_size: int) -> Tiny:
        if world_size not in done:
            done[world_size] = prepared(tmp_path_factory.mktemp("norm") / "tiny", world_size, **IMAGES)
            done[world_size].train_all()
        return done[world_size]

    return of


def train_here(world: World, config: str, root: str, shared: bool) -> dict[str, Any]:
    """The whole run; buffers and parameters of this rank at its end."""
    experiment, at = load_experiment(config), Layout(Path(root))
    prepared_ = read_prepared(experiment, at)
    begun = begin(experiment, prepared_, at.initial, world)
    begun.model.broadcast_buffers = shared
    plan, rows = prepared_.plan, prepared_.rows
    for _ in train(begun.model, begun.state, begun.workload, plan, rows, world, STEPS, begun.how):
        pass
    bare = begun.state.model
    return {
        "parameters": {name: tensor.tolist() for name, tensor in bare.named_parameters()},
        "buffers": {name: tensor.tolist() for name, tensor in bare.named_buffers()},
        "types": sorted({str(tensor.dtype) for tensor in bare.buffers()}),
    }


def test_all_ranks_hold_rank_0s_buffers_where_their_own_would_have_differed(of_size):
    """Rank 1 has one row less in each epoch, in one microbatch instead of two: three batches less in all.

    Parameters do not depend on it: in training, BatchNorm normalizes with the statistics of the batch.
    """
    tiny = of_size(2)
    where = (tiny.folder, str(tiny.config), str(tiny.at.root))
    apart, shared = (run_ranks(train_here, 2, *where, kept_equal) for kept_equal in (False, True))
    assert apart[0]["types"] == [str(torch.float32), str(torch.int64)]
    assert apart[0]["parameters"] == apart[1]["parameters"] == shared[0]["parameters"] == shared[1]["parameters"]
    assert apart[0]["buffers"] == shared[0]["buffers"] == shared[1]["buffers"]
    for name, own in apart[1]["buffers"].items():
        assert own != apart[0]["buffers"][name], name
    assert shared[1]["buffers"]["stem_norm.num_batches_tracked"] == STEPS * ACCUMULATION
    assert apart[1]["buffers"]["stem_norm.num_batches_tracked"] == STEPS * ACCUMULATION - 3


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_resume_with_batch_norm_is_bit_equal_and_replicas_too(of_size, world_size):
    tiny = of_size(world_size)
    verdicts = tiny.resume_verdicts()
    assert {case: verdict.first_difference for case, verdict in verdicts.items() if not verdict.as_expected} == {}
    for verdict in tiny.replica_verdicts():
        assert (verdict.outcome, verdict.first_difference) == ("pass", None)
        assert verdict.observed["buffers"] == 3 * 3  # of the stem and of both norms of the block
