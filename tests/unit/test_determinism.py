import random

import numpy
import pytest
import torch

from ddp_tokens.determinism import make_deterministic, seed_new_rank, seed_rank


def draws():
    return random.random(), float(numpy.random.random()), float(torch.rand(()))


def seeded(seed, rank):
    seed_rank(seed, rank)
    return draws()


def test_a_seed_decides_every_generator():
    assert seeded(17, 0) == seeded(17, 0)


@pytest.mark.parametrize("other", [(17, 1), (18, 0)])
def test_ranks_and_seeds_differ_in_every_generator(other):
    assert all(a != b for a, b in zip(seeded(17, 0), seeded(*other), strict=True))


def test_a_large_seed_is_accepted():
    """numpy takes 32 bits only."""
    assert seeded(2**40, 3) == seeded(2**40, 3)


def test_threads_and_algorithms_are_set():
    before = torch.get_num_threads()
    try:
        make_deterministic(2)
        assert torch.get_num_threads() == 2
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.set_num_threads(before)


def test_a_rank_that_joins_is_seeded_by_seed_rank_and_update():
    def joined(*about):
        seed_new_rank(*about)
        return draws()

    about = [(17, 2, 50), (18, 2, 50), (17, 3, 50), (17, 2, 51)]
    assert joined(*about[0]) == joined(*about[0])
    numbers = [number for one in about for number in joined(*one)] + [*seeded(17, 2)]
    assert len(set(numbers)) == len(numbers)
