"""What one process says of the compared windows, read and held together before anything is judged by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ddp_tokens.checks.gradient_norms import (
    Arrays,
    algebra_tolerances,
    errors,
    is_finite,
    largest_ratio,
    shapes_of,
    weighted_sum,
)
from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.errors import EvidenceError
from ddp_tokens.layout import BY_UNIT, FLOAT64, NATIVE, PARTS
from ddp_tokens.term_facts import TermsFacts
from ddp_tokens.term_formulas import right_on
from ddp_tokens.window_facts import WindowFacts

REFERENCES = (NATIVE, FLOAT64, PARTS)
AGAIN = "run reference again"
SAME = 1e-12

Parts = Mapping[tuple[int, int], Arrays]
PartsRead = dict[tuple[int, int], dict[str, NDArray[Any]]]


@dataclass(frozen=True)
class References:
    """`of_dtype`: dtype -> gradient of the window in one process. `parts`: (rank, microbatch) -> gradient of its loss
    sum, in float64. `others`: the parts by each other unit.
    """

    of_dtype: Mapping[str, Arrays]
    parts: Parts
    others: Mapping[str, Parts] = field(default_factory=dict)


def read_references(
    paths: Mapping[str, Path], facts: Mapping[str, WindowFacts], adding_up: bool = True
) -> dict[str, References]:
    """By window. Raises EvidenceError, naming the file, when a dump lacks a parameter of another, when the parts are
    not those of the plan's ranks and microbatches, or, unless it is known that they need not (`adding_up`), when they
    do not add up to the reference.
    """
    dumps = {name: read_arrays(path) for name, path in paths.items()}
    found = {}
    for window, of_window_ in facts.items():
        of_dtype = {dtype: of_window(dumps[dtype], window) for dtype in (NATIVE, FLOAT64)}
        others = {unit: parts_of(dumps[PARTS], f"{window}/{BY_UNIT}{unit}") for unit in of_window_.others}
        of_parts = parts_of_terms if isinstance(of_window_, TermsFacts) else parts_of
        references = References(of_dtype, of_parts(dumps[PARTS], window, of_window_), others if adding_up else {})
        _require_same_parameters(references, paths, window)
        _require_parts_of_the_plan(references, paths[PARTS], window, of_window_)
        if adding_up and not add_up(references.parts, references.of_dtype[FLOAT64], of_window_):
            raise EvidenceError(f"{paths[PARTS]} does not add up to the reference of window '{window}': {AGAIN}")
        found[window] = references
    return found


def add_up(parts: Parts, reference: Arrays, facts: WindowFacts) -> bool:
    """Is the mean of the parts over the window's units the reference? One that is no number is left to the verdict."""
    if not is_finite(reference):
        return True
    total = weighted_sum(_right_weights(parts, facts), parts)
    return largest_ratio(errors(total, reference), algebra_tolerances(reference, SAME))[0] <= 1


def _right_weights(parts: Parts, facts: WindowFacts) -> dict[tuple[int, int], float]:
    if not isinstance(facts, TermsFacts):
        return dict.fromkeys(parts, float(1 / facts.total))
    [weights] = right_on(facts).variants(facts).values()
    assert weights is not None
    return {(rank, index): float(weights[rank][index]) for rank, index in parts}


def of_window(arrays: Arrays, window: str) -> dict[str, NDArray[Any]]:
    prefix = f"{window}/"
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def parts_of(arrays: Arrays, window: str, facts: WindowFacts | None = None) -> PartsRead:
    """(rank, microbatch) -> gradients, from names WINDOW/RANK/MICROBATCH/PARAMETER."""
    parts: PartsRead = {}
    for name, array in of_window(arrays, window).items():
        if name.startswith(BY_UNIT):
            continue
        rank, microbatch, parameter = name.split("/", 2)
        parts.setdefault((int(rank), int(microbatch)), {})[parameter] = array
    return parts


def parts_of_terms(arrays: Arrays, window: str, facts: WindowFacts) -> PartsRead:
    """The same from names WINDOW/TERM/RANK/MICROBATCH/PARAMETER; of term t, rank r is t * W + r, as in the facts."""
    assert isinstance(facts, TermsFacts)
    return {
        (place * facts.world_size + rank, microbatch): gradients
        for place, term in enumerate(facts.terms)
        for (rank, microbatch), gradients in parts_of(arrays, f"{window}/{term.name}").items()
    }


def _require_same_parameters(references: References, paths: Mapping[str, Path], window: str) -> None:
    expected = shapes_of(references.of_dtype[FLOAT64])
    of_parts = [part for parts in (references.parts, *references.others.values()) for part in parts.values()]
    for name, gradients in {NATIVE: [references.of_dtype[NATIVE]], PARTS: of_parts}.items():
        if any(shapes_of(gradient) != expected for gradient in gradients):
            raise EvidenceError(
                f"{paths[name]} does not hold the parameters of {paths[FLOAT64]} for window '{window}': {AGAIN}"
            )


def _require_parts_of_the_plan(references: References, path: Path, window: str, facts: WindowFacts) -> None:
    planned = {(rank, index) for rank, of_rank in enumerate(facts.units) for index in range(len(of_rank))}
    if any(set(parts) != planned for parts in (references.parts, *references.others.values())):
        raise EvidenceError(f"{path} holds other ranks or microbatches for window '{window}' than the plan: {AGAIN}")
