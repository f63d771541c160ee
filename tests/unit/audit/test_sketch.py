"""A sketch adds like the gradients that it stands for, and is about as long."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_tokens.audit import sketch as sketches
from ddp_tokens.audit.sketch import BUCKETS, ROWS, sketch

BLOCK = ROWS * BUCKETS
# sqrt(1 / (2 * BUCKETS)), the standard deviation of a sketch's relative length.
DEVIATION = math.sqrt(1 / (2 * BUCKETS))
LENGTHS = (BUCKETS + 1, 2 * BUCKETS, 2 * BUCKETS + 7, 40_000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3 * BUCKETS + 5)


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lengthened(vectors):
    """|sketch| / |vector| - 1 of each."""
    return torch.tensor([float(sketch(vector).norm() / vector.norm()) - 1 for vector in vectors])


def over_seeds(vector, monkeypatch, number=60):
    found = []
    for seed in range(number):
        monkeypatch.setattr(sketches, "SEED", 1000 + seed)
        found.append(lengthened([vector]))
    return torch.cat(found)


@settings(max_examples=40, deadline=None)
@given(
    length=st.sampled_from((0, 1, 5, BUCKETS, *LENGTHS)),
    weights=st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)),
    seed=st.integers(0, 99),
)
def test_the_sketch_of_a_weighted_sum_is_the_weighted_sum_of_sketches(length, weights, seed):
    one, other = drawn(length, seed=seed), drawn(length, seed=seed + 100)
    a, b = weights
    together, apart = sketch(a * one + b * other), a * sketch(one) + b * sketch(other)
    size = float(abs(a) * one.norm() + abs(b) * other.norm())
    assert torch.allclose(together, apart, rtol=0, atol=1e-13 * size)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (BUCKETS,), (2, BUCKETS // 2)])
def test_what_is_short_is_its_own_sketch(shape):
    vector = drawn(*shape)
    assert torch.equal(sketch(vector), vector.reshape(-1))


@pytest.mark.parametrize("length", [4, BUCKETS, BUCKETS + 1, BLOCK])
def test_a_sketch_is_a_tensor_of_its_own(length):
    """Gradients change in place, as when the next microbatch is added."""
    vector = drawn(length)
    before = sketch(vector)
    kept = before.clone()
    vector.mul_(3)
    assert torch.equal(before, kept)
    assert not before.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("length", [7, BUCKETS + 7])
def test_it_adds_in_float64_whatever_the_gradient_is(dtype, length):
    vector = drawn(length).to(dtype)
    assert sketch(vector).dtype == torch.float64
    assert torch.equal(sketch(vector), sketch(vector.double()))


def test_it_adds_what_float32_would_lose():
    """2**30 and 1 meet in float64, where the sum of both has 31 of 53 digits."""
    vector = torch.ones(4 * BUCKETS)
    vector[0] = 2.0**30
    assert sketch(vector).abs().max() > 2.0**30 - 5
    assert not torch.equal(sketch(vector), sketch(vector).float().double())


@pytest.mark.parametrize("length", LENGTHS)
def test_every_coordinate_lands_in_one_bucket_with_one_sign(length):
    for place in {0, 1, BUCKETS, length // 2, length - 2, length - 1}:
        vector = torch.zeros(length)
        vector[place] = 3.0
        [value] = sketch(vector)[sketch(vector) != 0].tolist()
        assert abs(value) == 3.0


def test_coordinates_of_one_row_do_not_meet():
    vector = torch.zeros(3, BUCKETS)
    vector[1] = torch.arange(1, BUCKETS + 1)
    assert sorted(sketch(vector).abs().tolist()) == list(range(1, BUCKETS + 1))


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_of_random_gradients_are_kept(length):
    """40 of them: none further off than five standard deviations, and all together by about one."""
    found = lengthened([drawn(length, seed=seed) for seed in range(40)])
    assert found.abs().max() < 5 * DEVIATION
    assert found.pow(2).mean().sqrt() < 1.4 * DEVIATION


@pytest.mark.parametrize("width", [64, 256, 512, 520, 522, 768, 1024, 4096])
def test_a_gradient_in_one_column_keeps_its_length(width, monkeypatch):
    """As where one input is larger than all others: the gradient of a linear layer is an outer product with it. Every
    BUCKETS rows of it never meet.
    """
    gradient = torch.zeros(3000, width)
    gradient[:, 5] = drawn(3000).float()
    found = over_seeds(gradient, monkeypatch)
    assert found.abs().max() < 5 * DEVIATION
    assert found.pow(2).mean().sqrt() < 1.4 * DEVIATION


def test_a_gradient_that_repeats_from_block_to_block_keeps_its_length(monkeypatch):
    """Its blocks meet as wholes where they are turned alike, which doubles the variance at most."""
    found = over_seeds(drawn(BLOCK).float().repeat(4), monkeypatch, number=20)
    assert found.abs().max() < 5 * math.sqrt(2) * DEVIATION
    assert found.pow(2).mean().sqrt() < 1.4 * math.sqrt(2) * DEVIATION


def test_one_coordinate_and_one_row_keep_their_length_exactly(monkeypatch):
    gradient = torch.zeros(300, BUCKETS)
    gradient[7] = drawn(BUCKETS).float()
    assert over_seeds(gradient, monkeypatch, number=5).abs().max() < 1e-6


def test_blocks_of_the_same_content_do_not_cancel_or_add():
    """Each has a sign and a turn of its own: without these, twice a block would be twice as long, or nothing."""
    block = drawn(BLOCK)
    assert sketch(torch.cat([block, block])).norm() == pytest.approx(float(block.norm()) * math.sqrt(2), rel=0.25)
    assert sketch(torch.cat([block, -block])).norm() == pytest.approx(float(block.norm()) * math.sqrt(2), rel=0.25)


@pytest.mark.parametrize("length", [BUCKETS, 5 * BUCKETS + 3])
def test_shape_and_strides_do_not_matter(length):
    vector = drawn(2, length)
    across = vector.t().contiguous().t()
    assert not across.is_contiguous()
    assert torch.equal(sketch(across), sketch(vector.reshape(-1)))
    assert torch.equal(sketch(vector.reshape(-1)[: 2 * length : 1]), sketch(vector))


def test_it_is_the_same_in_every_process_and_draws_nothing_of_the_runs():
    state = torch.get_rng_state()
    vector = torch.ones(BLOCK + BUCKETS + 1)
    first = sketch(vector)
    torch.manual_seed(4)
    after = torch.get_rng_state()
    assert torch.equal(first, sketch(vector))
    assert torch.equal(torch.get_rng_state(), after)
    torch.set_rng_state(state)


def test_the_default_device_of_the_script_does_not_matter():
    vector = drawn(3 * BUCKETS)
    expected = sketch(vector)
    with torch.device("meta"):
        assert torch.equal(sketch(vector), expected)


def test_what_is_not_a_number_stays_visible():
    vector = torch.ones(5 * BUCKETS)
    vector[77] = math.nan
    assert sketch(vector).isnan().sum() == 1
    vector[77] = math.inf
    assert sketch(vector).isinf().sum() == 1
