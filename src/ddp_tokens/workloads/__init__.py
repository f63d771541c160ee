"""One file per kind of work. The trainer, the checks and the rules know a kind of work only through `Workload`."""

import importlib
import inspect
from collections.abc import Sequence, Set
from types import ModuleType
from typing import Any, Protocol, cast

import torch

from ddp_tokens.config import Model
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.corpora.rows import Row
from ddp_tokens.errors import WorkloadError


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


class Writer(Protocol):
    """What a file in this folder may define besides, where its models can write sequences."""

    def sample(
        self, model: torch.nn.Module, first_token: int, generator: torch.Generator, longest: int, stop: Set[int]
    ) -> list[int]:
        """One sequence of 1 to `longest` tokens from `first_token` on, ended early by a token of `stop`. Dropout is
        off; `generator` is on the CPU.
        """


FUNCTIONS = ("build_model", "collate", "forward", "loss_sum", "metrics")


def load(name: str) -> Workload:
    """Raises WorkloadError when the file lacks a function of Workload, or one cannot be called as it is called here."""
    module = importlib.import_module(f"{__name__}.{name}")
    for function in FUNCTIONS:
        _require_callable(module, function, Workload)
    if hasattr(module, "sample"):
        _require_callable(module, "sample", Writer)
    return cast(Workload, module)


def writer(workload: Workload) -> Writer | None:
    """The workload as one that can write sequences, where it can."""
    return cast(Writer, workload) if hasattr(workload, "sample") else None


def require_same_units(workload: Workload, window: str, units_of_ranks: Sequence[tuple[float, float]]) -> None:
    """`units_of_ranks`: by rank, the units of the window whose losses the workload says it summed, and those that the
    corpus counts.

    Raises WorkloadError, naming the first rank where they differ: the formula divides by what the corpus counts.
    """
    for rank, (summed, counted) in enumerate(units_of_ranks):
        if summed != counted:
            raise WorkloadError(
                f"{window}: workload {_name(workload)} sums the losses of {summed:.15g} units on rank {rank}, where "
                f"the corpus counts {counted:.15g}: let its loss_sum cover the supervised units and no others"
            )


def _require_callable(module: ModuleType, name: str, protocol: type) -> None:
    needed = list(inspect.signature(getattr(protocol, name)).parameters)[1:]
    call = f"{name}({', '.join(needed)})"
    function = getattr(module, name, None)
    if not callable(function):
        raise WorkloadError(f"{module.__file__} has no function {name}: define {call}")
    try:
        inspect.signature(function).bind(*needed)
    except (TypeError, ValueError) as error:
        raise WorkloadError(
            f"{module.__file__}: {name} cannot be called as {call} ({error}): let it take these arguments"
        ) from None


def _name(workload: Workload) -> str:
    return getattr(workload, "__name__", type(workload).__name__).rpartition(".")[2]
