"""What torch does to gradients between backward and the update: clipping, and leaving updates out.

Functions of torch are replaced for the length of the audit by ones that call them and take note.
"""

import functools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, MethodType
from typing import Any

import torch
from torch.nn.utils import clip_grad

# What clip_grad_norm_ and clip_grad_value_ call, however a script has imported these.
CLIP = "_clip_grads_with_norm_"
GROUP = "_group_tensors_by_device_and_dtype"
OF_CLIP_VALUE = "clip_grad_value_"
EPSILON = 1e-6  # as in torch's clip_grad_norm_


@dataclass(frozen=True)
class Clipping:
    """`parameters`: ids. `norm`: before, of whatever kind, and of all that was clipped together. `after`: microbatches
    that had been computed. `lengths`: before, the 2-norm of each one's gradient, by id.
    """

    parameters: frozenset[int]
    max_norm: float
    norm: float
    after: int
    lengths: Mapping[int, float] = field(default_factory=dict)

    @property
    def factor(self) -> float:
        return min(1.0, self.max_norm / (self.norm + EPSILON))


class Between:
    """Takes note until `stop` of what is done to `parameters()`. `computed`: microbatches since the last update.
    `skipped`: called when a gradient scaler leaves an update out.
    """

    def __init__(
        self,
        parameters: Callable[[], Iterable[torch.Tensor]],
        computed: Callable[[], int],
        skipped: Callable[[torch.optim.Optimizer], None],
    ) -> None:
        self.clippings: list[Clipping] = []
        self.clipped_by_value = False
        self._parameters = parameters
        self._computed = computed
        self._skipped = skipped
        self._stepped = False
        self._is_clipping = False
        self._replaced = [
            Replaced(owner, name, by)
            for owner, name, by in (
                (clip_grad, CLIP, self._clip),
                (torch.nn.utils, "clip_grads_with_norm_", self._clip),
                (clip_grad, GROUP, self._group),
                (torch.amp.GradScaler, "step", self._step),
            )
            if hasattr(owner, name)
        ]

    def stop(self) -> None:
        for one in reversed(self._replaced):
            one.undo()
        self._replaced = []

    def clear(self) -> None:
        self.clippings = []
        self.clipped_by_value = False

    def has_stepped(self) -> None:
        self._stepped = True

    def _own(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        own = frozenset(map(id, self._parameters()))
        return list({id(one): one for one in parameters if id(one) in own}.values())

    def _clip(self, original: Any, parameters: Any, max_norm: float, total_norm: Any, *rest: Any, **named: Any) -> Any:
        """One of the functions that are replaced may call another."""
        if self._is_clipping:
            return original(parameters, max_norm, total_norm, *rest, **named)
        parameters = _several(parameters)
        whole = float(_full(total_norm))
        if own := self._own(parameters):
            self.clippings.append(
                Clipping(frozenset(map(id, own)), float(max_norm), whole, self._computed(), _lengths(own))
            )
        self._is_clipping = True
        try:
            return original(parameters, max_norm, total_norm, *rest, **named)
        finally:
            self._is_clipping = False

    def _group(self, original: Any, *arguments: Any, **named: Any) -> Any:
        caller = _outside()
        if caller.f_code.co_name == OF_CLIP_VALUE:
            own = {id(parameter.grad) for parameter in self._parameters() if parameter.grad is not None}
            self.clipped_by_value |= not own.isdisjoint(map(id, caller.f_locals.get("grads", ())))
        return original(*arguments, **named)

    def _step(self, original: Any, scaler: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
        self._stepped = False
        result = original(scaler, optimizer, *arguments, **named)
        if not self._stepped:
            self._skipped(optimizer)
        return result


class Replaced:
    """Another function under the name of one. Several audits may have replaced the same one, and end in any order."""

    def __init__(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        self._owner, self._name = owner, name
        self._replacement = Replacement(getattr(owner, name), vars(owner).get(name), by)
        setattr(owner, name, self._replacement)

    def undo(self) -> None:
        self._replacement.is_over = True
        while isinstance(top := getattr(self._owner, self._name), Replacement) and top.is_over:
            setattr(self._owner, self._name, top.kept)


class Replacement:
    """Calls `by` with the original and its arguments, until it is over. `kept`: what the owner held, which for a method
    of a class need not be what it gives.
    """

    def __init__(self, original: Any, kept: Any, by: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original, updated=())
        self.original, self.kept = original, kept
        self.is_over = False
        self._by = by

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.is_over:
            return self.original(*arguments, **named)
        return self._by(self.original, *arguments, **named)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method."""
        return self if instance is None else MethodType(self, instance)


def _outside() -> FrameType:
    """What called a function that is replaced here."""
    frame: FrameType = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _several(parameters: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)


def _full(tensor: Any) -> Any:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _lengths(parameters: Sequence[torch.Tensor]) -> dict[int, float]:
    """By id; half precision would overflow."""
    norms = {}
    for one in parameters:
        if one.grad is not None:
            gradient = one.grad.coalesce().values() if one.grad.is_sparse else one.grad
            gradient = gradient.float() if gradient.dtype == torch.float16 else gradient
            norms[id(one)] = _full(torch.linalg.vector_norm(gradient))
    return {key: float(norm) for key, norm in norms.items()}


def shortened(clippings: Iterable[Clipping]) -> dict[int, float]:
    """By how much clipping shortened each parameter's gradient, by id; not where nothing is left to be told from."""
    factors: dict[int, float] = {}
    for clipping in clippings:
        if clipping.factor > 0.0 and math.isfinite(clipping.factor):
            for key in clipping.parameters:
                factors[key] = factors.get(key, 1.0) * clipping.factor
    return factors
