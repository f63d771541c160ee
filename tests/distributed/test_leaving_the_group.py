"""A rank that raises leaves its process group and ends; it never hangs with what the exception still holds."""

import pytest
import torch

from ddp_tokens.distributed import process_group, sum_over_ranks, wrap_for_ddp
from ddp_tokens.errors import CheckpointError
from tests.distributed.ranks import run_ranks

ATTEMPTS = 60


def refuse_right_after_a_collective(world):
    """The moment at which one of gloo's threads may still hold the tensor that was reduced."""
    model = wrap_for_ddp(torch.nn.Linear(3, 3))
    sum_over_ranks([1.0])
    raise CheckpointError(f"refused with {type(model).__name__} in hand")


def refuse_many_times(world):
    refused = 0
    for _ in range(ATTEMPTS):
        with pytest.raises(CheckpointError, match="DistributedDataParallel"), process_group("gloo", 20):
            refuse_right_after_a_collective(world)
        refused += 1
    return refused


def test_ranks_that_refuse_together_all_end(tmp_path):
    assert run_ranks(refuse_many_times, 2, tmp_path, joined=False) == [ATTEMPTS, ATTEMPTS]
