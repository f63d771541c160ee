"""Same inputs, same bits: threads, deterministic algorithms and generators, set in one place."""

import hashlib
import os
import random

import numpy
import torch

RANK_SEED_OFFSET = 1000


def make_deterministic(threads: int) -> None:
    """Call before the first operation: the number of threads is part of the order in which sums are taken."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # On CUDA the backward passes of these two attention kernels add in an order that varies.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)


def seed_rank(seed: int, rank: int) -> None:
    """Seed every generator, differently on each rank, so that ranks drop out different units."""
    _seed_all(seed + RANK_SEED_OFFSET + rank)


def seed_new_rank(seed: int, rank: int, step: int) -> None:
    """Seed every generator of a rank that joins a run at update `step`: by all three, so that none starts alike."""
    digest = hashlib.sha256(f"{seed} {rank} {step}".encode()).digest()
    _seed_all(int.from_bytes(digest[:7], "big"))


def _seed_all(number: int) -> None:
    random.seed(number)
    numpy.random.seed(number % 2**32)
    torch.manual_seed(number)
