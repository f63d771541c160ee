"""In float64, a forward makes float64 tensors, and draws the numbers that it draws in float32."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from ddp_tokens.audit.widening import Widening

SIZE = 64


def of_ones(dtype: torch.dtype) -> torch.Tensor:
    return torch.full((SIZE,), 0.5, dtype=dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.zeros(3),
        lambda x: torch.zeros(3, dtype=torch.float32),
        lambda x: torch.full((2, 2), float("-inf")),
        lambda x: torch.tensor([1.5]),
        lambda x: torch.arange(3.0),
        lambda x: x.float(),
        lambda x: x.half(),
        lambda x: x.to(torch.float32),
        lambda x: x.to(dtype=torch.bfloat16),
        lambda x: torch.zeros_like(x, dtype=torch.float32),
        lambda x: functional.softmax(x, dim=-1, dtype=torch.float32),
        lambda x: (x > 0).float(),
        lambda x: torch.ones(3, dtype=torch.long).float(),
    ],
)
def test_what_is_made_is_float64(make):
    with Widening(torch.float32):
        assert make(of_ones(torch.float64)).dtype == torch.float64
    assert torch.zeros(1).dtype == torch.float32


def test_what_is_no_real_number_stays():
    with Widening(torch.float32):
        assert torch.arange(3).dtype == torch.long
        assert torch.zeros(2, dtype=torch.bool).dtype == torch.bool
        assert of_ones(torch.float64).view(torch.int64).dtype == torch.int64
        assert torch.zeros(3).double().sum() == 0


def test_what_torch_has_not_in_float64_is_computed_as_in_the_run_and_said():
    left, right = torch.rand(2, 16, 16), torch.rand(2, 16, 16)
    expected = torch._grouped_mm(left.bfloat16(), right.bfloat16())
    with Widening(torch.bfloat16) as widening:
        found = torch._grouped_mm(left.bfloat16().double(), right.bfloat16().double())
        assert widening.narrow == {"_grouped_mm"}
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            torch.matmul(torch.ones(2, 3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64))
    assert torch.equal(found, expected.double())
    assert widening.narrow == {"_grouped_mm"}


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(SIZE),
        lambda x: torch.randn(SIZE, dtype=torch.float32),
        lambda x: torch.rand_like(x),
        lambda x: torch.randn_like(x),
        lambda x: torch.bernoulli(x),
        lambda x: torch.normal(x, 0.1),
        lambda x: torch.empty_like(x).uniform_(),
        lambda x: torch.empty_like(x).normal_(1.0, 2.0),
        lambda x: torch.empty_like(x).bernoulli_(0.3),
        lambda x: torch.zeros_like(x).exponential_(),
        lambda x: functional.dropout(x, 0.4),
        lambda x: nn.Dropout1d(0.4)(x.view(8, 8)),
        lambda x: functional.gumbel_softmax(x, hard=True),
    ],
)
def test_what_is_drawn_is_what_float32_draws(draw):
    torch.manual_seed(1)
    expected, after = draw(of_ones(torch.float32)), torch.get_rng_state()
    torch.manual_seed(1)
    with Widening(torch.float32):
        found = draw(of_ones(torch.float64))
    assert found.dtype == torch.float64
    assert torch.allclose(found, expected.double(), rtol=1e-6, atol=0)
    assert torch.equal(torch.get_rng_state(), after)
    assert len(set(expected.flatten().tolist())) > 1
