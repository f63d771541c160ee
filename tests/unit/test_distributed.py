"""Without a process group, one process is all ranks there are. The rest is in tests/distributed."""

import pytest
import torch

from ddp_tokens.distributed import barrier, claim_device, cleanup, global_count, is_main_process, sum_over_ranks
from ddp_tokens.errors import LaunchError
from ddp_tokens.world import World


def test_sums_over_one_process_are_its_own():
    assert global_count(7) == 7
    assert sum_over_ranks([0.1, 2.0]) == [0.1, 2.0]
    assert is_main_process()
    barrier()
    cleanup()


def test_counts_are_exact_beyond_what_float32_holds():
    assert global_count(2**53 + 1) == 2**53 + 1


def test_on_the_cpu_nothing_is_claimed():
    world = World(rank=3, local_rank=3, size=4)
    assert claim_device(world, "gloo") == world


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_gpu_that_does_not_exist_is_refused(backend):
    world = World(rank=5, local_rank=1, size=8, device="cuda:1")
    with pytest.raises(LaunchError, match="rank 5 needs GPU 1 of this host and torch sees 0: lower world_size"):
        claim_device(world, backend)
