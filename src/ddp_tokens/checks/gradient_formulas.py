"""What the known wrong formulas would leave on a window: could they be seen, and which one is it?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy
from numpy.typing import NDArray

from ddp_tokens.checks.gradient_norms import (
    Arrays,
    Norms,
    errors,
    is_finite,
    largest_ratio,
    norms,
    shapes_of,
    weighted_sum,
    whole,
)
from ddp_tokens.checks.gradient_references import Parts, add_up
from ddp_tokens.formulas import RIGHT, Formula, Weights
from ddp_tokens.other_units import UNWEIGHTED
from ddp_tokens.term_formulas import is_right_on, possible_on, right_on
from ddp_tokens.window_facts import WindowFacts

LOSS_SCALE = "loss_scale_kept"
SCALED = "scaled"
OWN_STATISTICS = "statistics_of_each_microbatch"
ANOTHER_UNIT = "another_unit"
WEIGHTS_IGNORED = "weights_ignored"
POWER_OF_TWO = 1e-4
SMALLEST_LOSS_SCALE = 16.0  # a 2 or a 4 may have other reasons


@dataclass(frozen=True)
class Diagnosis:
    """`names`: the mistakes that fit, in the order of their table; empty when none does.

    `residual`: distance of the observed gradient from the nearest formula's, as a fraction of that formula's norm.
    """

    names: tuple[str, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)


def predicted(weights: Weights, parts: Parts) -> dict[str, NDArray[Any]]:
    """The gradient that a formula leaves: its weights times what each microbatch's loss sum has as gradient."""
    flat = {(rank, index): float(w) for rank, of_rank in enumerate(weights) for index, w in enumerate(of_rank)}
    return weighted_sum(flat, parts)


def distances(
    excluded: Sequence[Formula], facts: WindowFacts, parts: Parts, reference: Arrays, tolerances: Norms
) -> dict[str, float]:
    """How far off each formula would be on these rows: the error of its worst parameter in units of its tolerance, for
    the formula's nearest variant. Infinite where it divides by zero.
    """
    found = {}
    for formula in excluded:
        of_variants = [
            float("inf")
            if weights is None
            else largest_ratio(errors(predicted(weights, parts), reference), tolerances)[0]
            for weights in formula.variants(facts).values()
        ]
        if of_variants:
            found[formula.name] = min(of_variants)
    return found


def distance_of_units(
    facts: WindowFacts, others: Mapping[str, Parts], reference: Arrays, tolerances: Norms
) -> dict[str, float]:
    """How far off the mean over the nearest other unit would be, and the one without weights, as `distances` measures
    it; none where there is none.
    """
    found: dict[str, float] = {}
    for unit, parts in others.items():
        name = name_of_other(unit)
        for weights in RIGHT.variants(facts.others[unit]).values():
            distance = (
                math.inf
                if weights is None
                else largest_ratio(errors(predicted(weights, parts), reference), tolerances)[0]
            )
            found[name] = min(found.get(name, math.inf), distance)
    return found


def name_of_other(unit: str) -> str:
    return WEIGHTS_IGNORED if unit == UNWEIGHTED else ANOTHER_UNIT


def diagnose(
    observed: Arrays,
    reference: Arrays,
    facts: WindowFacts,
    parts: Parts,
    tolerances: Norms,
    more: Sequence[Formula] = (),
    others: Mapping[str, Parts] | None = None,
) -> Diagnosis:
    """Which known mistake, or one of `more`, leaves the observed gradient?

    A formula fits when the distance to its gradient, over all parameters, is within the tolerances of all parameters
    together, enlarged when its gradient is longer than the right one. One that is the right formula on this window, by
    arithmetic, explains nothing: unless the parts, weighted rightly, are not the reference, which is so where a layer
    uses statistics of the rows that it is given at once. A gradient that is not a number is explained by the formulas
    that divide by zero here. `others`: the parts by each other unit, which are looked at where no formula fits.
    """
    if not is_finite(observed):
        undefined = tuple(f.name for f in possible_on(facts) if None in f.variants(facts).values())
        return Diagnosis(undefined)
    allowed, length = whole(tolerances.values()), whole(norms(reference).values())
    if length == 0.0 or shapes_of(observed) != shapes_of(reference):
        return Diagnosis()
    best: dict[str, tuple[float, str]] = {}
    fitting = []
    own_statistics = () if add_up(parts, reference, facts) else (replace(right_on(facts), name=OWN_STATISTICS),)
    for formula in (*own_statistics, *possible_on(facts), *more):
        for variant, weights in formula.variants(facts).items():
            if weights is None or (formula not in own_statistics and is_right_on(facts, weights)):
                continue
            residual, fits = _fit(observed, predicted(weights, parts), allowed, length)
            if residual < best.get(formula.name, (float("inf"), ""))[0]:
                best[formula.name] = residual, variant
            if fits and formula.name not in fitting:
                fitting.append(formula.name)
    if fitting:
        return _concluded(best, fitting)
    by_unit = _of_another_unit(observed, facts, others or {}, allowed, length)
    if by_unit is not None:
        return replace(by_unit, figures=by_unit.figures | _next_best(best, ()))
    return _scaled(observed, reference, allowed, length, best)


def _of_another_unit(
    observed: Arrays, facts: WindowFacts, others: Mapping[str, Parts], allowed: float, length: float
) -> Diagnosis | None:
    """The mean over another unit, or what a known mistake makes of that."""
    best: tuple[float, str, str] | None = None
    for unit, parts in others.items():
        counted = facts.others[unit]
        for formula in (RIGHT, *possible_on(counted)):
            for weights in formula.variants(counted).values():
                if weights is None:
                    continue
                residual, fits = _fit(observed, predicted(weights, parts), allowed, length)
                if fits and (best is None or residual < best[0]):
                    what = "mean" if formula is RIGHT else formula.name
                    best = residual, name_of_other(unit), f"{unit} {what} where {facts.unit} mean was meant"
    return None if best is None else Diagnosis((best[1],), {"residual": best[0], "detail": best[2]})


def _fit(observed: Arrays, expected: Arrays, allowed: float, length: float) -> tuple[float, bool]:
    distance, own_length = whole(errors(observed, expected).values()), whole(norms(expected).values())
    residual = distance / own_length if own_length else float("inf")
    return residual, distance <= allowed * max(1.0, own_length / length)


def _concluded(best: Mapping[str, tuple[float, str]], fitting: Sequence[str]) -> Diagnosis:
    residual, variant = min(best[name] for name in fitting)
    figures: dict[str, Any] = {"residual": residual} | ({"detail": variant} if variant else {})
    return Diagnosis(tuple(fitting), figures | _next_best(best, fitting))


def _scaled(
    observed: Arrays, reference: Arrays, allowed: float, length: float, best: Mapping[str, tuple[float, str]]
) -> Diagnosis:
    """The right direction in a length that no formula gives; a power of two is a loss scale that was not undone."""
    products = sum(float((observed[name].astype(numpy.float64) * array).sum()) for name, array in reference.items())
    factor = products / length**2
    expected = {name: factor * array for name, array in reference.items()}
    residual, fits = _fit(observed, expected, allowed, length)
    if not fits or factor == 0.0 or abs(factor - 1) * length <= allowed:
        return Diagnosis((), _next_best(best, ()))
    power = 2.0 ** round(math.log2(abs(factor)))
    kept = factor >= SMALLEST_LOSS_SCALE * (1 - POWER_OF_TWO) and abs(factor / power - 1) < POWER_OF_TWO
    name = LOSS_SCALE if kept else SCALED
    return Diagnosis((name,), {"residual": residual, "factor": factor} | _next_best(best, ()))


def _next_best(best: Mapping[str, tuple[float, str]], named: Sequence[str]) -> dict[str, Any]:
    others = sorted((residual, name) for name, (residual, _) in best.items() if name not in named)
    return {"next_best": others[0][1], "next_best_residual": others[0][0]} if others else {}
