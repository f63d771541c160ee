"""What a loss_sum returns, checked."""

import dataclasses
import math
from typing import Any

import numpy
import torch

from ddp_tokens.audit.losses import LossSum
from ddp_tokens.errors import AuditError

NUMBERS = (int, float, numpy.number)


def evaluated(loss_sum: LossSum, outputs: Any, batch: Any) -> tuple[float, float]:
    total, units = summed(loss_sum, outputs, batch)
    return float(total.detach().double()), units


def summed(loss_sum: LossSum, outputs: Any, batch: Any) -> tuple[torch.Tensor, float]:
    """Raises AuditError where `loss_sum` fails, or returns something else than a scalar tensor and their
    number, or the sum of their weights.
    """
    name = getattr(loss_sum, "__name__", type(loss_sum).__name__)
    try:
        returned = loss_sum(outputs, batch)
    except AuditError:
        raise
    except Exception as error:
        held = sorted(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        raise AuditError(
            f"loss_sum {name} fails on what the module returned, a {type(outputs).__name__}, and the batch, {held}: "
            f"{type(error).__name__}: {error}"
        ) from error
    total, units = returned if isinstance(returned, tuple | list) and len(returned) == 2 else (returned, None)
    is_scalar = isinstance(total, torch.Tensor) and total.numel() == 1
    number = _number(units)
    if not is_scalar or number is None:
        shape = f" of shape {tuple(total.shape)}" if isinstance(total, torch.Tensor) else ""
        count = "no number" if units is None else f"{units!r}" if isinstance(units, NUMBERS) else _kind(units)
        raise AuditError(
            f"loss_sum {name} returns a {type(total).__name__}{shape} and {count}: let it return the sum of the "
            "losses, a scalar tensor, and how many supervised units it is the sum of, or the sum of their weights"
        )
    return total.reshape(()), number


def _number(value: Any) -> float | None:
    """Of a number of Python or numpy, or a tensor of one that does not depend on the weights; an int if it is whole."""
    if isinstance(value, torch.Tensor) and value.requires_grad:
        return None
    is_one = isinstance(value, NUMBERS) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    number = float(value) if is_one else -1.0
    if not math.isfinite(number) or number < 0:
        return None
    return int(number) if number == int(number) else number


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def differentiable_in(value: Any, seen: set[int]) -> list[torch.Tensor]:
    """The tensors themselves; packing detaches them."""
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    return [tensor for part in parts for tensor in differentiable_in(part, seen)]
