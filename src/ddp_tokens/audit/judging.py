"""The verdict on one window, from norms and sketches. Plain numbers: no torch, no process group."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy

from ddp_tokens.audit.meanings import (
    CLIPPED,
    CLIPPED_WHILE_SCALED,
    GRADIENTS_DIFFER,
    MISSING,
    NOT_CLEARED,
    NOT_DIVIDED,
    WEIGHTS_DIFFER,
)
from ddp_tokens.check_settings import Tolerances
from ddp_tokens.checks.gradient_formulas import LOSS_SCALE, SCALED, Diagnosis, diagnose, distances
from ddp_tokens.checks.gradient_norms import (
    Arrays,
    Norms,
    calibrated,
    errors,
    largest_ratio,
    norms,
    plain,
    weighted_sum,
    whole,
)
from ddp_tokens.checks.gradient_references import Parts
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict
from ddp_tokens.errors import AuditError
from ddp_tokens.formulas import ACCUMULATION_FORGOTTEN, RIGHT, alike_on, excluded_by
from ddp_tokens.window_facts import WindowFacts

ALONE = (
    "the gradient is that of the mean over all units, but with one rank and one microbatch there is nothing that could "
    "be weighed wrongly: start it with several ranks (torchrun --nproc-per-node=2)"
)
ROUND = 1e-4  # torch adds 1e-6 to the norm by which it divides
SAME_LENGTH = 1e-2  # of a gradient when it was clipped, and beside what is within the tolerances
# Other causes explain a difference and do not make one.
ALWAYS_WRONG = {WEIGHTS_DIFFER, GRADIENTS_DIFFER, CLIPPED_WHILE_SCALED}
UNDECIDED = {
    LOSS_SCALE: "the gradient is scaled by {factor:g}, a loss scale: that is right if the optimizer undoes it, which "
    "it does inside its step or not at all",
    CLIPPED: "the gradient has the right direction and {factor:.3g} of its length, and its norm is a round number, as "
    "clipping leaves it; the clipping itself was not seen, so the length before it is not known",
}


@dataclass(frozen=True)
class Undone:
    """A clipping that was undone: of which parameters, to which norm, and how long their gradient was before. `before`:
    by how much others had shortened it, by name.
    """

    names: Sequence[str]
    max_norm: float
    length: float
    before: Norms = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """By name of parameter. `reference`: norms in float64. `errors`: of the gradient found. `rounding`: of one process
    in the training dtype, and `epsilon` of that. `missing`: without a gradient, though the objective has one. `norm`:
    of the whole gradient found. `observed`, `parts`, `left_over`: sketches, the last of what was there at the window's
    begin. `undone`: clippings that shortened something.
    """

    reference: Norms
    errors: Norms
    rounding: Norms
    epsilon: float
    observed: Arrays
    parts: Parts
    left_over: Arrays
    missing: Sequence[str] = ()
    norm: float = 0.0
    undone: Sequence[Undone] = ()


@dataclass(frozen=True)
class Seen:
    """What decides besides the numbers. `causes`: what was seen that explains a difference, name -> sentence; those of
    ALWAYS_WRONG are wrong without one. `doubts`: why the window cannot be judged, in sentences. `is_surely_sum`: twice
    the rows were seen to have twice the loss_sum.
    """

    causes: Mapping[str, str] = field(default_factory=dict)
    doubts: Sequence[str] = ()
    is_surely_sum: bool = True


def tolerances_of(compared: Compared, tolerances: Tolerances) -> Norms:
    rounding = {name: compared.rounding.get(name, 0.0) for name in compared.reference}
    epsilons = dict.fromkeys(compared.reference, compared.epsilon)
    return calibrated(compared.reference, rounding, epsilons, tolerances.native)


def judge(case: str, facts: WindowFacts, compared: Compared, seen: Seen, tolerances: Tolerances) -> Verdict:
    allowed = tolerances_of(compared, tolerances)
    ratio, worst = largest_ratio(compared.errors, allowed)
    reference = weighted_sum(dict.fromkeys(compared.parts, float(1 / facts.total)), compared.parts)
    power = distances(excluded_by(facts), facts, compared.parts, reference, allowed)
    found = Diagnosis()
    difference = {"parameter": worst, "error": plain(ratio), "tolerance": 1.0} if not ratio <= 1 else None
    if compared.missing:
        worst, difference = compared.missing[0], {"parameter": compared.missing[0], "problem": MISSING}
    if difference is not None:
        found = _diagnosed(facts, compared, reference, allowed)
        if found.names in ((), (SCALED,), (NOT_DIVIDED,)) and not seen.is_surely_sum:
            _require_sums(facts, compared, allowed)
    elif scaled := _clipped_while_scaled(compared, allowed):
        seen = replace(seen, causes={CLIPPED_WHILE_SCALED: scaled, **seen.causes})
    outcome, reason = _concluded(facts, found, difference is not None, power, seen, tolerances)
    observed = {
        "error": plain(compared.errors[worst]) if worst in compared.errors else None,
        "tolerance": plain(allowed[worst]) if worst else None,
        "parameter": worst,
        "power": plain(min(power.values())) if power else None,
        "nearest_formula": min(power, key=lambda name: power[name]) if power else None,
        "units_per_rank": facts.told_units_per_rank,
    }
    causes = _deciding(seen, difference is not None)
    names = tuple(causes) + tuple(name for name in found.names if name not in causes)
    return Verdict(
        case=case,
        expected=PASS,
        outcome=outcome,
        criterion=f"{_criterion(tolerances)}; {reason}" if reason else _criterion(tolerances),
        observed=observed | found.figures,
        evidence={},
        first_difference=difference or _first_cause(causes),
        diagnosis=names if outcome == FAIL or found.names else (),
    )


def is_round(norm: float) -> bool:
    """Of two digits, as people choose the norm to which they clip."""
    return norm > 0 and abs(norm / float(f"{norm:.1e}") - 1) < ROUND


def not_comparable(case: str, units_per_rank: Sequence[float], doubts: Sequence[str]) -> Verdict:
    """Of a window that was not computed again."""
    figures = dict.fromkeys(("error", "tolerance", "parameter", "power", "nearest_formula"))
    observed = {**figures, "units_per_rank": list(units_per_rank)}
    return Verdict(case, PASS, INCONCLUSIVE, "; ".join(["no number is compared", *doubts]), observed, {})


def _diagnosed(facts: WindowFacts, compared: Compared, reference: Arrays, allowed: Norms) -> Diagnosis:
    found = _named(facts, compared.observed, reference, compared.parts, allowed)
    residual = _residual_if_not_cleared(compared, reference, allowed)
    if residual is not None:
        return Diagnosis((NOT_CLEARED,), {"residual": residual})
    if compared.missing:
        return Diagnosis((MISSING, *found.names), found.figures)
    if found.names == (SCALED,) and abs(found.figures["factor"] * facts.world_size / facts.total - 1) < 1e-4:
        return Diagnosis((NOT_DIVIDED,), found.figures)
    if found.names == (SCALED,) and 0 < found.figures["factor"] < 1 and is_round(compared.norm):
        return Diagnosis((CLIPPED,), found.figures)
    return found


def _named(facts: WindowFacts, observed: Arrays, reference: Arrays, parts: Parts, allowed: Norms) -> Diagnosis:
    """On one rank, a division by a microbatch's own count over all ranks is the mean of that microbatch."""
    found = diagnose(observed, reference, facts, parts, allowed, (ACCUMULATION_FORGOTTEN,))
    if facts.world_size == 1 and ACCUMULATION_FORGOTTEN.name in found.names:
        return replace(found, names=tuple(name for name in found.names if name != "one_microbatch_counted"))
    return found


def _residual_if_not_cleared(compared: Compared, reference: Arrays, allowed: Norms) -> float | None:
    """What is left of the gradient found without that of the window before, and without the objective's, as a fraction
    of its length; None where that is more than rounding leaves in a gradient of this length.
    """
    left_over = {name: compared.left_over.get(name, numpy.zeros_like(array)) for name, array in reference.items()}
    if not whole(norms(left_over).values()) > whole(allowed.values()):
        return None
    expected = {name: array + left_over[name] for name, array in reference.items()}
    distance, length = whole(errors(compared.observed, expected).values()), whole(norms(expected).values())
    of_reference = whole(norms(reference).values())
    rounding = 2 * whole(allowed.values()) * max(1.0, length / of_reference if of_reference else 1.0)
    return distance / length if distance <= rounding else None


def _require_sums(facts: WindowFacts, compared: Compared, allowed: Norms) -> None:
    """Raises AuditError where the gradient is what a formula leaves if every loss sum was a mean."""
    sums = {
        place: {name: float(facts.units[place[0]][place[1]]) * array for name, array in part.items()}
        for place, part in compared.parts.items()
    }
    reference = weighted_sum(dict.fromkeys(sums, float(1 / facts.total)), sums)
    differences = {name: float(numpy.linalg.norm(compared.observed[name] - reference[name])) for name in reference}
    found = _named(facts, compared.observed, reference, sums, allowed)
    is_right = largest_ratio(differences, {name: 2 * value for name, value in allowed.items()})[0] <= 1
    if is_right or (found.names and found.names != (SCALED,)):
        named = "the right one" if is_right else " or ".join(found.names)
        raise AuditError(
            "loss_sum seems to return a mean: if every loss sum of this window is taken as one, the gradient is "
            f"{named}, and otherwise no known formula's: let it return the sum of the losses and their number"
        )


def _concluded(
    facts: WindowFacts,
    found: Diagnosis,
    differs: bool,
    power: Mapping[str, float],
    seen: Seen,
    tolerances: Tolerances,
) -> tuple[str, str]:
    """Outcome and, where it is needed, its reason."""
    if seen.doubts:
        return INCONCLUSIVE, "; ".join(seen.doubts)
    if causes := _deciding(seen, differs):
        return FAIL, "; ".join(causes.values())
    if differs and found.names and found.names[0] in UNDECIDED:
        return INCONCLUSIVE, UNDECIDED[found.names[0]].format(factor=found.figures["factor"])
    if differs:
        return FAIL, ""
    if not excluded_by(facts):
        return INCONCLUSIVE, ALONE
    alike = [formula.name for formula in excluded_by(facts) if alike_on(facts, RIGHT, formula)]
    if alike:
        return INCONCLUSIVE, f"counts make {', '.join(alike)} the same as the mean over all units in this window"
    near = [name for name, distance in power.items() if distance < tolerances.power]
    if near:
        return (
            INCONCLUSIVE,
            f"{', '.join(near)} would be fewer than {tolerances.power:g} tolerances away in this window",
        )
    return PASS, ""


def _criterion(tolerances: Tolerances) -> str:
    return (
        "each parameter's error against the objective's gradient, computed in float64 in one process, is at most "
        f"{tolerances.native:g} times that of one process in the dtype of the run"
    )


def _deciding(seen: Seen, differs: bool) -> dict[str, str]:
    return {name: sentence for name, sentence in seen.causes.items() if differs or name in ALWAYS_WRONG}


def _clipped_while_scaled(compared: Compared, allowed: Norms) -> str | None:
    """Says so where the gradient was much longer or shorter when it was clipped than the objective's is, so that it was
    shortened by more or less than the objective's would be. A limit that was scaled with it is none that people choose.
    """
    for one in compared.undone:
        expected = whole(compared.reference[name] * one.before.get(name, 1.0) for name in one.names)
        if not expected or not math.isfinite(one.length):
            continue
        ratio = one.length / expected
        rounding = 2 * whole(allowed[name] for name in one.names) / whole(compared.reference[n] for n in one.names)
        if abs(math.log(ratio or math.inf)) <= SAME_LENGTH + rounding:
            continue
        scale = 2.0 ** round(math.log2(ratio))
        scale = scale if abs(ratio / scale - 1) <= SAME_LENGTH + rounding else ratio
        if is_round(one.max_norm / scale) and not is_round(one.max_norm):
            continue
        return f"the gradient had {ratio:.6g} times the objective's length when it was clipped to {one.max_norm:.4g}"
    return None


def _first_cause(causes: Mapping[str, str]) -> dict[str, Any] | None:
    for name, sentence in causes.items():
        return {"parameter": None, "problem": sentence, "cause": name}
    return None
