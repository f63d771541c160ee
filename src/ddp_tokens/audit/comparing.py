"""The gradient found, and the objective's, parameter by parameter: only norms and sketches stay."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from ddp_tokens.audit.judging import Compared, Undone
from ddp_tokens.audit.replaying import Gradients, Replayed
from ddp_tokens.audit.sketch import sketch

CHUNK = 2**20


class Comparison:
    """Takes one parameter after another, so that the gradient of a sharded one need not be kept."""

    def __init__(self, exact: Replayed, native: Gradients, denominator: float) -> None:
        self._exact, self._native, self._denominator = exact, native, denominator
        self.narrow = sorted(exact.narrow)
        self.reference: dict[str, float] = {}
        self.errors: dict[str, float] = {}
        self.rounding: dict[str, float] = {}
        self.observed: dict[str, Any] = {}
        self.missing: list[str] = []
        self._epsilon = 0.0
        self._square = 0.0

    def take(self, name: str, found: torch.Tensor | None, factor: float) -> None:
        """`found`: the whole gradient that the optimizer holds, or None; `factor`: by which clipping shortened it."""
        reference = self._exact.gradients.get(name)
        if reference is None:
            reference = torch.zeros_like(found, dtype=torch.float64) if found is not None else torch.zeros(1)
        self.reference[name] = distance(reference, None, 1 / self._denominator)
        if found is None:
            if self.reference[name]:
                self.missing.append(name)
            found = torch.zeros_like(reference)
        else:
            self._epsilon = max(self._epsilon, torch.finfo(found.dtype).eps)
        self.observed[name] = (sketch(found) / factor).numpy()
        self._square += distance(found, None, 1.0) ** 2
        self.errors[name] = distance(found, reference, 1 / self._denominator, 1 / factor)
        native = self._native.get(name)
        self.rounding[name] = 0.0 if native is None else distance(native, reference, 1 / self._denominator)
        self._exact.gradients.pop(name, None)
        self._native.pop(name, None)

    def result(self, left_over: Mapping[str, Any], undone: Sequence[Undone] = ()) -> Compared:
        parts = {place: self._whole(part) for place, part in self._exact.parts.items()}
        return Compared(
            self.reference,
            self.errors,
            self.rounding,
            self._epsilon,
            self.observed,
            parts,
            left_over,
            self.missing,
            math.sqrt(self._square),
            undone,
        )

    def _whole(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter that a microbatch does not use has no gradient of it."""
        return {name: part.get(name, numpy.zeros_like(found)) for name, found in self.observed.items()}


def distance(one: torch.Tensor, other: torch.Tensor | None, of_other: float, of_one: float = 1.0) -> float:
    """|one * of_one - other * of_other|, or |one * of_other| without another; in float64, a piece at a time."""
    total = 0.0
    pieces = one.detach().reshape(-1).split(CHUNK)
    others = other.detach().reshape(-1).split(CHUNK) if other is not None else [None] * len(pieces)
    for piece, beside in zip(pieces, others, strict=True):
        difference = piece.double() * of_other if beside is None else piece.double() * of_one - beside * of_other
        total += float(torch.dot(difference, difference))
    return math.sqrt(total)
