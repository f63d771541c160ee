"""One file per kind of work. The trainer, the checks and the rules know a kind of work only through `Workload`."""

import importlib
from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch

from ddp_tokens.config import Model
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.corpora.rows import Row


class Workload(Protocol):
    """What a file in this folder defines, as plain functions."""

    def build_model(self, settings: Model, shape: Shape) -> torch.nn.Module: ...

    def collate(self, rows: Sequence[Row], device: torch.device | str = "cpu") -> Any:
        """A batch; padding never counts."""

    def forward(self, model: torch.nn.Module, batch: Any) -> Any: ...

    def loss_sum(self, outputs: Any, batch: Any) -> tuple[torch.Tensor, int]:
        """The SUM of the losses of the supervised units (a scalar), and their number."""

    def metrics(self, outputs: Any, batch: Any) -> dict[str, float]:
        """Sums and counts by name, never means."""


def load(name: str) -> Workload:
    return cast(Workload, importlib.import_module(f"{__name__}.{name}"))
