"""The terms of an objective, as the reference's parts tell them, and what may be expected of a window of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ddp_tokens.checks.gradient_norms import Arrays
from ddp_tokens.errors import EvidenceError, WorkloadError
from ddp_tokens.formulas import Formula, Weights, excluded_by
from ddp_tokens.layout import TERMS
from ddp_tokens.term_facts import ByWorkload, TermsFacts
from ddp_tokens.term_formulas import alike_on, between_terms, made_in_every_term, right_on
from ddp_tokens.terms import Term, require_terms
from ddp_tokens.window_facts import WindowFacts

Parts = Mapping[tuple[int, int], Arrays]


@dataclass(frozen=True)
class Told:
    """`by_workload`: the numbers of those terms that the workload counts itself."""

    terms: tuple[Term, ...]
    by_workload: ByWorkload


def terms_told(parts: Path) -> Told | None:
    """None where the loss has one term, or where the file cannot be read, which is said when its arrays are.

    Raises EvidenceError, naming the file, where it tells no terms as they are declared.
    """
    try:
        with safe_open(parts, framework="numpy") as dump:
            if TERMS not in dump.keys():  # noqa: SIM118, no mapping
                return None
            text = dump.get_tensor(TERMS).tobytes()
    except (FileNotFoundError, SafetensorError):
        return None
    try:
        told: dict[str, Any] = json.loads(text)
        terms = require_terms([Term(**term) for term in told["terms"]], str(parts))
        return Told(terms, told["counted_by_workload"])
    except (ValueError, KeyError, TypeError, WorkloadError) as error:
        raise EvidenceError(f"{parts} does not tell the terms of the loss ({error}): run reference again") from None


def without_gradient(facts: WindowFacts, parts: Parts) -> list[int]:
    """Places of the terms whose gradient is 0 on this window, such as a square at 0: no mistake in them can be seen."""
    if not isinstance(facts, TermsFacts):
        return []
    reached = {
        place // facts.world_size
        for (place, _), gradients in parts.items()
        if any(array.any() for array in gradients.values())
    }
    return [place for place in range(len(facts.terms)) if place not in reached]


def excluded_beside(formulas: Sequence[Formula], facts: WindowFacts, blank: Sequence[int]) -> tuple[Formula, ...]:
    """The formulas, each without the variants that change nothing but the terms `blank`."""
    if not blank or not isinstance(facts, TermsFacts):
        return tuple(formulas)
    world_size = facts.world_size
    [right] = right_on(facts).variants(facts).values()

    def changes_another(weights: Weights | None) -> bool:
        if weights is None or right is None:
            return True
        rows = enumerate(zip(weights, right, strict=True))
        return any(own != meant for row, (own, meant) in rows if row // world_size not in blank)

    def beside(formula: Formula) -> Formula:
        kept = {name: own for name, own in formula.variants(facts).items() if changes_another(own)}
        return replace(formula, variants=lambda _: kept)

    return tuple(map(beside, formulas))


def undecidable(facts: TermsFacts) -> bool:
    """Is a mistake that is to be excluded right on this window, made in every term or between terms? Made in a single
    term it may be, as a mean of means is of sequences where each rank has as many; a verdict says where.
    """
    everywhere = [
        *(made_in_every_term(formula, facts) for formula in excluded_by(facts)),
        *between_terms(facts),
    ]
    return any(alike_on(facts, right_on(facts), formula) for formula in everywhere)
