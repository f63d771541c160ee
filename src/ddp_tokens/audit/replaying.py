"""A recorded window once more, in one process: in float64 for the objective, in the training dtype for its rounding.

In float64, each microbatch's loss sum is backpropagated into the same gradient, so that one buffer serves all: what a
microbatch adds to the sketch of each parameter's gradient is the sketch of its own gradient.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ddp_tokens.audit.buffers import put
from ddp_tokens.audit.evaluating import summed
from ddp_tokens.audit.inputs import batch_of
from ddp_tokens.audit.losses import LossSum
from ddp_tokens.audit.packing import Tree, unpack
from ddp_tokens.audit.recording import local
from ddp_tokens.audit.sketch import sketch
from ddp_tokens.audit.swapping import Change, swapped
from ddp_tokens.audit.widening import Widening
from ddp_tokens.generators import Generators, read_generators, restore_generators

HALF = (torch.float16, torch.bfloat16)
# How far a loss sum may be from that of the run: in the dtype of the run, and in float64, where dropout that is drawn
# otherwise moves it by some percent. The kernels of the run give the same bits on any number of threads, and others,
# such as a compiler's, differ by some 1e-7 to 1e-6; those of TF32 and the like have 3 digits. Half precision has 3, of
# each of many activations.
SAME = (1e-5, 1e-3)
SAME_IN_TF32 = (1e-4, 1e-3)
SAME_IN_HALF = (1e-2, 0.1)

Parts = dict[tuple[int, int], dict[str, Any]]
Gradients = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Recorded:
    """A microbatch as its rank sent it."""

    tree: Tree
    tensors: list[torch.Tensor]
    generators: Generators
    autocast: torch.dtype | None


@dataclass(frozen=True)
class Window:
    """`recorded`: by (rank, microbatch). `names`: of the parameters that are compared, `whole`: all parameters, not
    sharded; both by id of the module's own.
    """

    module: nn.Module
    loss_sum: LossSum
    recorded: Mapping[tuple[int, int], Recorded]
    names: Mapping[int, str]
    whole: Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class Replayed:
    """`sums`: (rank, microbatch) -> loss sum. `gradients`: by name, of the sum of all. `parts`: sketches of each.
    `narrow`: functions that were not computed in float64.
    """

    sums: dict[tuple[int, int], float]
    gradients: Gradients
    parts: Parts
    narrow: frozenset[str] = frozenset()


def in_float64(window: Window) -> Replayed:
    """Without autocast."""
    sums, parts = {}, {}
    instead = _instead(window, _wide)
    before: dict[str, Any] = {}
    widening = Widening(next(iter(window.whole.values())).dtype)
    with _undisturbed(window), swapped(window.module, instead, _wide), widening:
        for place, recorded in window.recorded.items():
            with torch.autocast(_device(window).type, enabled=False):
                total = _loss_sum(window, recorded, torch.float64)
            sums[place] = _backward(total)
            after = {name: sketch(gradient) for name, gradient in _gradients(window, instead).items()}
            parts[place] = {name: (after[name] - before.get(name, 0.0)).numpy() for name in after}
            before = after
    return Replayed(sums, _gradients(window, instead), parts, frozenset(widening.narrow))


def in_training_dtype(window: Window, denominator: float) -> Replayed:
    """The gradient of (sum of losses) / denominator, under the autocast of the run. No parts."""
    sums = {}
    instead = _instead(window, lambda tensor: tensor, shared=True)
    with _undisturbed(window), swapped(window.module, instead, torch.clone):
        for place, recorded in window.recorded.items():
            device = _device(window)
            with torch.autocast(device.type, recorded.autocast, enabled=recorded.autocast is not None):
                total = _loss_sum(window, recorded, None)
            sums[place] = float(total.detach().double())
            _backward(total / denominator)
    return Replayed(sums, _gradients(window, instead), {})


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def _instead(window: Window, change: Change, shared: bool = False) -> dict[int, torch.Tensor]:
    """New leaves. `shared`: parameters use the memory of those that they stand for, and only buffers are copied."""
    instead: dict[int, torch.Tensor] = {}
    for key, tensor in window.whole.items():
        instead[key] = nn.Parameter(change(tensor.detach()), requires_grad=key in window.names)
    for buffer in window.module.buffers():
        changed = change(buffer.detach())
        instead[id(buffer)] = changed.clone() if shared else changed
    return instead


def _loss_sum(window: Window, recorded: Recorded, dtype: torch.dtype | None) -> torch.Tensor:
    device = _device(window)

    def placed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else None, copy=True)

    def given() -> list[Any]:
        found: list[Any] = unpack(recorded.tree, recorded.tensors, placed)
        return found

    restore_generators(recorded.generators)
    arguments, named, _, *states = given()
    for state in states:
        put(window.module, state)
    outputs = window.module(*arguments, **named)
    batch = batch_of(window.module, *given()[:3])  # forward may have changed what it was given
    return summed(window.loss_sum, outputs, batch)[0]


def _backward(total: torch.Tensor) -> float:
    """A microbatch without a supervised unit may have a loss sum that depends on nothing."""
    if total.requires_grad:
        torch.autograd.backward(total)  # Tensor.backward would leave Widening, and a checkpoint computes again inside
    return float(total.detach().double())


def _gradients(window: Window, instead: Mapping[int, torch.Tensor]) -> Gradients:
    return {name: local(instead[key].grad) for key, name in window.names.items() if _has(instead[key])}


def _has(tensor: torch.Tensor) -> bool:
    return tensor.grad is not None


def _device(window: Window) -> torch.device:
    return next(iter(window.whole.values())).device


@contextmanager
def _undisturbed(window: Window) -> Iterator[None]:
    """Gradients are recorded, all cores compute, and every generator is put back. Other ranks wait meanwhile."""
    generators, threads = read_generators(str(_device(window))), torch.get_num_threads()
    try:
        torch.set_num_threads(max(threads, len(os.sched_getaffinity(0))))
        with torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)
        restore_generators(generators)


def not_reproduced(
    window: Window, in_run: Mapping[tuple[int, int], float], exact: Replayed, native: Replayed
) -> tuple[int, int] | None:
    """The first (rank, microbatch) whose loss sum, as it was in the run, is not met again; None where all are."""
    for place, total in in_run.items():
        is_half = window.recorded[place].autocast is not None or any(p.dtype in HALF for p in window.whole.values())
        is_exact = torch.get_float32_matmul_precision() == "highest"
        in_training, in_float64_too = SAME_IN_HALF if is_half else SAME if is_exact else SAME_IN_TF32
        size = max(abs(total), 1.0)
        is_same = abs(native.sums[place] - total) <= in_training * size
        if not (is_same and abs(exact.sums[place] - total) <= in_float64_too * size):
            return place
    return None
