"""Which dtype and which scaler an experiment trains with, and what autocast does with them."""

import pytest
import torch

from ddp_tokens.config import Experiment
from ddp_tokens.precision import Precision, precision_of


@pytest.mark.parametrize(
    ("settings", "device", "dtype", "scaled"),
    [
        ({}, "cpu", None, False),
        ({}, "cuda:1", None, False),
        ({"amp_dtype": "float16"}, "cpu", None, False),  # use_amp decides
        ({"use_amp": True}, "cpu", torch.bfloat16, False),
        ({"use_amp": True, "amp_dtype": "float16"}, "cpu", torch.float16, True),
        ({"use_amp": True, "amp_dtype": "bfloat16", "device": "cuda"}, "cuda:1", torch.bfloat16, False),
    ],
)
def test_only_float16_has_its_loss_scaled(settings, device, dtype, scaled):
    precision = precision_of(Experiment(name="a", **settings), device)
    assert (precision.device_type, precision.dtype) == (device.partition(":")[0], dtype)
    assert precision.scaler.is_enabled() == scaled


def test_auto_is_float16_on_cuda():
    assert Experiment(name="a", device="cuda").resolved_amp_dtype == "float16"
    assert Experiment(name="a").resolved_amp_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("dtype", "expected"), [(None, torch.float32), *[(d, d) for d in (torch.bfloat16, torch.float16)]]
)
def test_inside_autocast_matrices_are_multiplied_in_that_dtype(dtype, expected):
    ones = torch.ones(2, 2)
    with Precision(dtype=dtype).autocast():
        assert (ones @ ones).dtype == (dtype or torch.float32)
    assert (ones @ ones).dtype == torch.float32


def test_a_scaler_that_is_not_enabled_hands_back_what_it_is_given():
    scaler, loss = Precision().scaler, torch.tensor(3.0)
    assert scaler.scale(loss) is loss
    assert (scaler.get_scale(), scaler.state_dict()) == (1.0, {})
