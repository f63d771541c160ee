"""The terms of an objective, as the reference's parts tell them, and what may be expected of a window of them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ddp_tokens.errors import EvidenceError, WorkloadError
from ddp_tokens.formulas import excluded_by
from ddp_tokens.layout import TERMS
from ddp_tokens.term_facts import ByWorkload, TermsFacts
from ddp_tokens.term_formulas import alike_on, between_terms, made_in_every_term, right_on
from ddp_tokens.terms import Term, require_terms


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


def undecidable(facts: TermsFacts) -> bool:
    """Is a mistake that is to be excluded right on this window, made in every term or between terms? Made in a single
    term it may be, as a mean of means is of sequences where each rank has as many; a verdict says where.
    """
    everywhere = [
        *(made_in_every_term(formula, facts) for formula in excluded_by(facts)),
        *between_terms(facts),
    ]
    return any(alike_on(facts, right_on(facts), formula) for formula in everywhere)
