"""Buffers that forward changes, as a power iteration or a running mean does: what they held before each forward."""

from collections.abc import Iterable

import torch
from torch import nn

State = dict[str, torch.Tensor]
PART = 4  # buffers that no forward is known to change are copied where they take at most this part of what may be kept


class Buffers:
    """Of `module`, within a window. `limit`: bytes that all copies of a window may take."""

    def __init__(self, module: nn.Module, limit: int) -> None:
        self.bytes = 0
        self._module, self._limit = module, limit
        self._moving: set[str] = set()  # in any window
        self._copies: dict[str, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self._marks: dict[str, tuple[torch.Tensor, int]] = {}

    def clear(self) -> None:
        self.bytes = 0
        self._copies, self._marks = {}, {}

    def before_forward(self, taken: int) -> State:
        """By name, copies on the CPU, as far as there is room besides the bytes `taken`. What nothing has changed since
        an earlier forward is the same copy again.
        """
        self._marks = {name: (one, _version(one)) for name, one in self._module.named_buffers()}
        takes_little = sum(_bytes(one) for one, _ in self._marks.values()) <= self._limit // PART
        for name, (one, version) in self._marks.items():
            found = self._copies.pop(name, None)
            if found is not None and found[0] is one and found[1] == version:
                self._copies[name] = found
            elif (takes_little or name in self._moving) and taken + self.bytes + _bytes(one) <= self._limit:
                self._copies[name] = one, version, one.detach().to("cpu", copy=True)
                self.bytes += _bytes(one)
        return {name: copy for name, (_, _, copy) in self._copies.items()}

    def has_all(self, state: State) -> bool:
        """After the forward: whether everything that it changed is in the state before it."""
        now = dict(self._module.named_buffers())
        moved = {
            name for name, (one, version) in self._marks.items() if now.get(name) is not one or _version(one) != version
        }
        self._moving |= moved
        return moved <= state.keys()


def moved(module: nn.Module, states: Iterable[State]) -> set[str]:
    """Names of buffers that hold something else now than in any of the states."""
    now = dict(module.named_buffers())
    copies = {id(copy): (name, copy) for state in states for name, copy in state.items()}
    return {
        name for name, copy in copies.values() if name not in now or not torch.equal(copy, now[name].detach().cpu())
    }


def put(module: nn.Module, state: State) -> None:
    """In place, where the shape is the same, since a module may hold a buffer in other places besides."""
    for name, value in state.items():
        path, _, last = name.rpartition(".")
        part = module.get_submodule(path)
        buffer = part._buffers.get(last)
        if buffer is None or buffer.shape != value.shape:
            part._buffers[last] = value
        else:
            with torch.no_grad():
                buffer.copy_(value)


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)
