"""What torch does to gradients between backward and the update: clipping, and leaving updates out.

Both functions of torch are replaced for the length of the audit by ones that call them and take note.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import clip_grad

CLIP = "_clip_grads_with_norm_"  # what clip_grad_norm_ calls, however it was imported
EPSILON = 1e-6  # as in torch's clip_grad_norm_


@dataclass(frozen=True)
class Clipping:
    """`parameters`: ids. `norm`: before. `after`: microbatches that had been computed."""

    parameters: frozenset[int]
    max_norm: float
    norm: float
    after: int

    @property
    def factor(self) -> float:
        return min(1.0, self.max_norm / (self.norm + EPSILON))


class Between:
    """Takes note until `stop`. `computed`: the number of microbatches since the last update."""

    def __init__(self, computed: Callable[[], int], skipped: Callable[[torch.optim.Optimizer], None]) -> None:
        self.clippings: list[Clipping] = []
        self.clipped_by_value = False
        self._computed = computed
        self._skipped = skipped
        self._stepped = False
        self._replaced: list[tuple[Any, str, Any]] = []
        if hasattr(clip_grad, CLIP):
            self._replace(clip_grad, CLIP, self._clip)
        for module in (clip_grad, torch.nn.utils):
            self._replace(module, "clip_grad_value_", self._clip_value)
        self._replace(torch.amp.GradScaler, "step", self._step)

    def stop(self) -> None:
        for owner, name, original in reversed(self._replaced):
            setattr(owner, name, original)
        self._replaced = []

    def clear(self) -> None:
        self.clippings = []
        self.clipped_by_value = False

    def has_stepped(self) -> None:
        self._stepped = True

    def _replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        self._replaced.append((owner, name, original))

        def replacement(*arguments: Any, **named: Any) -> Any:
            return by(original, *arguments, **named)

        setattr(owner, name, replacement)

    def _clip(self, original: Any, parameters: Any, max_norm: float, total_norm: Any, *rest: Any, **named: Any) -> Any:
        parameters = _several(parameters)
        whole = total_norm.full_tensor() if hasattr(total_norm, "full_tensor") else total_norm
        ids = frozenset(map(id, parameters))
        self.clippings.append(Clipping(ids, float(max_norm), float(whole), self._computed()))
        return original(parameters, max_norm, total_norm, *rest, **named)

    def _clip_value(self, original: Any, *arguments: Any, **named: Any) -> Any:
        self.clipped_by_value = True
        return original(*arguments, **named)

    def _step(self, original: Any, scaler: Any, optimizer: Any, *arguments: Any, **named: Any) -> Any:
        self._stepped = False
        result = original(scaler, optimizer, *arguments, **named)
        if not self._stepped:
            self._skipped(optimizer)
        return result


def _several(parameters: torch.Tensor | Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
