"""One file per kind of work. The trainer, the checks and the rules know a kind of work only through `Workload`."""

import importlib
import inspect
import math
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

import numpy
import torch

from ddp_tokens.config import Model
from ddp_tokens.corpora.lock import ImageShape, Shape
from ddp_tokens.corpora.rows import TOKEN, Row
from ddp_tokens.errors import WorkloadError
from ddp_tokens.own_work import load_own
from ddp_tokens.terms import CountsRow, Term, require_terms
from ddp_tokens.workload_names import place_of


class Workload(Protocol):
    """What a file in this folder defines, as plain functions."""

    def build_model(self, settings: Model, shape: Shape | ImageShape) -> torch.nn.Module:
        """On the CPU. Raises WorkloadError for settings or rows of another kind."""

    def collate(self, rows: Sequence[Row], device: torch.device | str = "cpu") -> Any:
        """A batch; padding never counts. For a GPU it has the methods `to` and `pin_memory`, as batches.Batch has."""

    def forward(self, model: torch.nn.Module, batch: Any) -> Any: ...

    def loss_sum(self, outputs: Any, batch: Any) -> tuple[torch.Tensor, float]:
        """The SUM of the losses of the supervised units (a scalar, with use_amp in float32 too), and their number; of
        weighted ones, the weighted sum and the sum of the weights.
        """

    def metrics(self, outputs: Any, batch: Any) -> dict[str, float]:
        """Sums and counts by name, never means: `loss_sum`, `correct` and `units`, the number of supervised positions;
        where these are weighted also `weight`, what the loss sum is divided by.
        """


class Several(Protocol):
    """What a file in this folder defines in place of loss_sum, where its loss has several terms: besides these, TERMS,
    a tuple of Term.
    """

    def loss_terms(self, outputs: Any, batch: Any) -> dict[str, tuple[torch.Tensor, float]]:
        """By name of each term, the SUM of its losses (a scalar, with use_amp in float32 too), and its number of units
        in this batch; of a term that counts once its value, the same for each batch, and 1. What is computed from
        parameters, as a regularizer, stands in `forward`, inside the model's own forward pass, and is carried by
        `outputs`: DDP reduces a parameter by what it sees there.
        """


class CountsRows(Protocol):
    """What such a file may define besides, where a term's denominator is not what its unit says."""

    def denominators(self, row: Row) -> dict[str, float]:
        """What the row adds to the denominators, by name of the terms that are counted here and not by their unit."""


class Writer(Protocol):
    """What a file in this folder may define besides, where its models can write sequences."""

    def sample(
        self, model: torch.nn.Module, first_token: int, generator: torch.Generator, longest: int, stop: Set[int]
    ) -> list[int]:
        """One sequence of 1 to `longest` tokens from `first_token` on, ended early by a token of `stop`. Dropout is
        off; `generator` is on the CPU.
        """


class Counter(Protocol):
    """What a file in this folder may define besides, where training is to tell its accuracy."""

    def correct(self, outputs: Any, batch: Any) -> torch.Tensor:
        """How many supervised units are right; a scalar, on the outputs' device."""


class Augmenter(Protocol):
    """What a file in this folder may define besides, where rows can be changed at random in training."""

    def augment(self, batch: Any, how: str, generator: numpy.random.Generator) -> Any:
        """A changed batch, on the CPU; `how`: the setting `augmentation`. All that is random comes from `generator`."""


OPTIONAL = {"sample": Writer, "correct": Counter, "augment": Augmenter}
WEIGHTS_AGREE = 1e-6
FUNCTIONS = ("build_model", "collate", "forward", "loss_sum", "metrics")


def load(name: str) -> Workload:
    """`name`: as the experiment gives it. Raises WorkloadError when it lacks a function of Workload, or one cannot be
    called as it is called here, and for whatever a user's file raises.
    """
    place = place_of(name)
    found: Any = load_own(place) if place.is_own else importlib.import_module(f"{__name__}.{name}")
    where = name if place.is_own else found.__file__
    for function in FUNCTIONS:
        if function != "loss_sum" or not hasattr(found, "TERMS"):
            _require_callable(found, where, function, Workload)
    require_several(found, where)
    for function, protocol in OPTIONAL.items():
        if hasattr(found, function):
            _require_callable(found, where, function, protocol)
    return cast(Workload, found)


def require_several(workload: Any, where: str) -> None:
    """Raises WorkloadError when a loss of several terms is not declared as it must be."""
    if not hasattr(workload, "TERMS"):
        return
    require_terms(workload.TERMS, where)
    _require_callable(workload, where, "loss_terms", Several)
    if hasattr(workload, "denominators"):
        _require_callable(workload, where, "denominators", CountsRows)


def terms_of(workload: Workload) -> tuple[Term, ...]:
    """Of a loss of several terms; empty where it has one. Raises WorkloadError where they are none."""
    return require_terms(workload.TERMS, _name(workload)) if hasattr(workload, "TERMS") else ()


def counter_of_rows(workload: Workload) -> CountsRow | None:
    """Counts terms in place of their units, where the workload does."""
    return cast(CountsRows, workload).denominators if hasattr(workload, "denominators") else None


def writer(workload: Workload) -> Writer | None:
    """The workload as one that can write sequences, where it can."""
    return cast(Writer, workload) if hasattr(workload, "sample") else None


def counter(workload: Workload) -> Counter | None:
    """The workload as one that counts what is right, where it does."""
    return cast(Counter, workload) if hasattr(workload, "correct") else None


def augmenter(workload: Workload) -> Augmenter:
    """Raises WorkloadError where the workload cannot change rows at random."""
    if not hasattr(workload, "augment"):
        raise WorkloadError(f"workload {_name(workload)} has no function augment: set augmentation to none")
    return cast(Augmenter, workload)


def unit_of(workload: Workload, counted: Row | None = None) -> str:
    """What a supervised position is called, in the singular; with a row, as the objective counted it, what counts once
    in the loss.
    """
    called = str(getattr(workload, "UNIT", TOKEN))
    if counted is None or not (counted.is_weighted or counted.units is not None):
        return called
    return f"weighted {called}" if counted.unit == TOKEN else counted.unit


def require_weight(workload: Workload, scores: Mapping[str, float], rows: Sequence[Row]) -> None:
    """Raises WorkloadError where supervised positions do not count the same and the scores do not say their weight."""
    if "weight" not in scores and any(row.is_weighted for row in rows):
        raise WorkloadError(
            f"workload {_name(workload)}: metrics lacks 'weight', what the loss sum of the rows is divided by, which "
            "is needed where positions are weighted: return it besides loss_sum, correct and units"
        )


def require_same_units(workload: Workload, window: str, units_of_ranks: Sequence[tuple[float, float]]) -> None:
    """`units_of_ranks`: by rank, the units of the window whose losses the workload says it summed, and those that the
    corpus counts.

    Raises WorkloadError, naming the first rank where they differ: the formula divides by what the corpus counts.
    """
    for rank, (summed, counted) in enumerate(units_of_ranks):
        if not agree(summed, counted):
            raise WorkloadError(
                f"{window}: workload {_name(workload)} sums the losses of {summed:.15g} units on rank {rank}, where "
                f"the corpus counts {counted:.15g}: let its loss_sum cover the supervised units and no others"
            )


def agree(summed: float, counted: float) -> bool:
    """Weights may have been added up in another order, or in float32; of whole numbers one is never lost."""
    if isinstance(counted, int) or float(counted).is_integer():
        return abs(summed - counted) <= min(WEIGHTS_AGREE * counted, 0.25)
    return math.isclose(summed, counted, rel_tol=WEIGHTS_AGREE)


def _require_callable(workload: Any, where: str, name: str, protocol: type) -> None:
    needed = list(inspect.signature(getattr(protocol, name)).parameters)[1:]
    call = f"{name}({', '.join(needed)})"
    function = getattr(workload, name, None)
    if not callable(function):
        raise WorkloadError(f"{where} has no function {name}: define {call}{_classes_in(workload, name)}")
    try:
        inspect.signature(function).bind(*needed)
    except (TypeError, ValueError) as error:
        raise WorkloadError(
            f"{where}: {name} cannot be called as {call} ({error}): let it take these arguments"
        ) from None


def _classes_in(workload: Any, function: str) -> str:
    """A module whose class has the function was meant to be given with it."""
    classes = vars(workload).items() if isinstance(workload, ModuleType) else ()
    name = next((name for name, value in classes if isinstance(value, type) and hasattr(value, function)), None)
    return f", or name the class that has it, {name}, after a colon" if name else ""


def _name(workload: Workload) -> str:
    """Of a file, without its folder; of an object, its class."""
    return Path(str(workload.__file__)).stem if isinstance(workload, ModuleType) else type(workload).__name__
