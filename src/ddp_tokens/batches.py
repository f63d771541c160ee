"""A batch of tensors, which a loader moves to the device as one."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Self

import torch


@dataclass(frozen=True)
class Batch:
    """A kind of work adds fields: tensors, which are moved, and plain values, which stay as they are."""

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        return self._each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self._each(torch.Tensor.pin_memory)

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        return replace(self, **{name: change(tensor) for name, tensor in tensors.items()})
