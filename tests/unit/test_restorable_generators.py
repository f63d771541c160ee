"""States that could not be restored, or not as they stand, are told before anything is touched."""

import random
from dataclasses import replace

import numpy
import pytest
import torch

from ddp_tokens.determinism import seed_rank
from ddp_tokens.generators import Generators, read_generators, restorable, restore_generators


def halfway():
    """Each generator in the middle of a pair of normal numbers."""
    seed_rank(17, 0)
    random.gauss(0, 1), numpy.random.standard_normal(), torch.randn(1)
    return read_generators("cpu")


def test_what_was_read_can_be_restored_and_trying_draws_nothing():
    state = halfway()
    assert restorable(state, "cpu")
    assert read_generators("cpu").digests == state.digests
    drawn = random.gauss(0, 1), float(numpy.random.standard_normal()), torch.randn(1).item()
    restore_generators(state)
    assert (random.gauss(0, 1), float(numpy.random.standard_normal()), torch.randn(1).item()) == drawn


def with_plain(state, name, edit):
    part = [list(entry) if isinstance(entry, list) else entry for entry in state.plain[name]]
    edit(part)
    return replace(state, plain={**state.plain, name: part})


def with_torch(state, tensor):
    return replace(state, tensors={"torch_cpu": tensor})


DAMAGE = {
    "python: words too few": lambda s: with_plain(s, "python", lambda p: p[0].pop()),
    "python: a word of text": lambda s: with_plain(s, "python", lambda p: p[0].__setitem__(0, "1")),
    "python: a kept normal of text": lambda s: with_plain(s, "python", lambda p: p.__setitem__(1, "0.5")),
    "python: a part too few": lambda s: with_plain(s, "python", lambda p: p.pop()),
    "numpy: another algorithm": lambda s: with_plain(s, "numpy", lambda p: p.__setitem__(0, "PCG64")),
    "numpy: words too few": lambda s: with_plain(s, "numpy", lambda p: p[1].pop()),
    "numpy: a word too large": lambda s: with_plain(s, "numpy", lambda p: p[1].__setitem__(5, 2**32)),
    "numpy: a position below 0": lambda s: with_plain(s, "numpy", lambda p: p.__setitem__(2, -1)),
    "numpy: a position above 624": lambda s: with_plain(s, "numpy", lambda p: p.__setitem__(2, 625)),
    "numpy: a kept normal of text": lambda s: with_plain(s, "numpy", lambda p: p.__setitem__(4, "0.5")),
    "numpy: empty": lambda s: with_plain(s, "numpy", lambda p: p.clear()),
    "torch: bytes too few": lambda s: with_torch(s, s.tensors["torch_cpu"][1:].clone()),
    "torch: zeros": lambda s: with_torch(s, torch.zeros_like(s.tensors["torch_cpu"])),
    "torch: floats": lambda s: with_torch(s, s.tensors["torch_cpu"].float()),
    "torch: nothing": lambda s: replace(s, tensors={}),
    "torch: of an unknown device": lambda s: replace(s, tensors={**s.tensors, "torch_tpu": s.tensors["torch_cpu"]}),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_state_is_told(kind):
    state = halfway()
    damaged = DAMAGE[kind](state)
    before = read_generators("cpu").digests
    assert not restorable(damaged, "cpu")
    assert read_generators("cpu").digests == before


def test_a_gpu_needs_its_own_state():
    state = halfway()
    assert not restorable(state, "cuda:0")
    of_gpu = torch.zeros(16, dtype=torch.uint8)
    assert restorable(Generators(state.plain, {**state.tensors, "torch_cuda": of_gpu}), "cuda:0")
    assert not restorable(Generators(state.plain, {**state.tensors, "torch_cuda": of_gpu.float()}), "cuda:0")
