"""The formulas of an objective of several terms: what is right, and what can be done wrong, in terms or between them.

As in formulas.py a formula is the weights of what each microbatch's sum has as gradient, here of each term:

    sum_trm c[t][r][m] * G[t][r][m],    c[t][r][m] = c_t / N_t  where all is right.

So that everything that judges a window by its weights judges these too, [t][r] stands as one index t * W + r. A term
that counts once has the same gradient in every microbatch, so of its weights only their sum matters.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ddp_tokens import formulas
from ddp_tokens.formulas import NOT_A_NUMBER, RIGHT, Formula, Variants, Weights
from ddp_tokens.term_facts import TermsFacts
from ddp_tokens.terms import Term, as_formula
from ddp_tokens.window_facts import WindowFacts

Factors = Mapping[str, Fraction | int]
# The only ones of a window that can be made with a term that counts once alone: others have names of their own.
OF_ONCE = ("world_size_forgotten", "extra_division_by_accumulation")
EVERY, EVERY_OF_ROWS = "every term", "every term but those that count once"


def right_on(facts: WindowFacts) -> Formula:
    """What is right on this window."""
    if not isinstance(facts, TermsFacts):
        return RIGHT
    return replace(RIGHT, variants=lambda _: {"": _right_weights(facts)})


def _right_weights(facts: TermsFacts) -> Weights:
    return _joined([_scaled(_right_of(of), term) for term, of in zip(facts.terms, facts.of, strict=True)])


def _right_of(of: WindowFacts) -> Weights:
    return tuple(tuple(Fraction(1) / of.total for _ in of_rank) for of_rank in of.units)


def _scaled(weights: Weights, term: Term) -> Weights:
    return tuple(tuple(weight * Fraction(term.coefficient) for weight in of_rank) for of_rank in weights)


def _joined(of_terms: Sequence[Weights]) -> Weights:
    return tuple(of_rank for weights in of_terms for of_rank in weights)


def _with(facts: TermsFacts, changed: Mapping[int, Weights]) -> Weights:
    """The right weights, but those of some terms, with their coefficients."""
    return _joined(
        [
            changed.get(place, _scaled(_right_of(of), term))
            for place, (term, of) in enumerate(zip(facts.terms, facts.of, strict=True))
        ]
    )


def _times(facts: TermsFacts, place: int, factor: Fraction | int) -> Weights:
    """One term's right weights, times a factor."""
    weights = _scaled(_right_of(facts.of[place]), facts.terms[place])
    return tuple(tuple(weight * factor for weight in of_rank) for of_rank in weights)


def lifted(formula: Formula, facts: TermsFacts) -> Formula:
    """A mistake of one loss, made in every term, in every one that is no regularizer, or in a single one.

    Left out: what is right in a single term, or all but the regularizers, as is a mean of means of what each rank holds
    as much of; and what has a name of its own, where a term counts once.
    """
    of_rows = [place for place, term in enumerate(facts.terms) if not term.is_once]
    groups = {EVERY: list(range(len(facts.terms)))} | ({EVERY_OF_ROWS: of_rows} if len(of_rows) > 1 else {})
    for place, term in enumerate(facts.terms):
        if not term.is_once or formula.name in OF_ONCE:
            groups[f"term {term.name}"] = [place]
    found: Variants = {}
    for where, places in groups.items():
        for detail, weights in _made_in(formula, facts, places).items():
            if where == EVERY or weights is None or not _is_right(facts, weights):
                found[f"{detail}, in {where}" if detail else f"in {where}"] = weights
    return replace(formula, variants=lambda _: _distinct(facts, found))


def made_in_every_term(formula: Formula, facts: WindowFacts) -> Formula:
    """The same, as a loop makes it that does with each term alike; the formula itself where there is one loss."""
    if not isinstance(facts, TermsFacts):
        return formula
    everywhere = list(range(len(facts.terms)))
    return replace(formula, variants=lambda _: _made_in(formula, facts, everywhere))


def _made_in(formula: Formula, facts: TermsFacts, places: Sequence[int]) -> Variants:
    """Where the mistake has a choice, as of a rank, it is the same in each of these terms."""
    of_places = {place: formula.variants(facts.of[place]) for place in places}
    found: Variants = {}
    for name in of_places[places[0]]:
        if name == NOT_A_NUMBER:
            continue
        weights = {place: variants.get(name) for place, variants in of_places.items()}
        scaled = {place: _scaled(own, facts.terms[place]) for place, own in weights.items() if own is not None}
        if len(scaled) == len(places):
            found[name] = _with(facts, scaled)
    if any(NOT_A_NUMBER in variants for variants in of_places.values()):
        found[NOT_A_NUMBER] = None
    return found


def _distinct(facts: TermsFacts, variants: Variants) -> Variants:
    """The first of those that are the same on this window."""
    found: Variants = {}
    known: list[list[Fraction]] = []
    for name, weights in variants.items():
        if weights is not None:
            own = _that_matters(facts, weights)
            if own in known:
                continue
            known.append(own)
        found[name] = weights
    return found


def _shared_denominator(facts: TermsFacts) -> Variants:
    """Terms of another unit, divided by what one term counts; where both units are the same, that is right."""

    def by(source: int, places: Sequence[int]) -> Weights:
        total = facts.of[source].total
        return _with(facts, {place: _times(facts, place, facts.of[place].total / Fraction(total)) for place in places})

    found: Variants = {}
    for source, term in enumerate(facts.terms):
        others = [place for place, other in enumerate(facts.terms) if other.unit != term.unit]
        of_rows = [place for place in others if not facts.terms[place].is_once]
        groups = {f"term {facts.terms[place].name}": [place] for place in others}
        groups |= {EVERY: others, EVERY_OF_ROWS: of_rows}
        for where, places in groups.items():
            if places:
                found[f"the units of term {term.name} divide {where}"] = by(source, places)
    return _distinct(facts, found)


def _of_once(factors: Callable[[int, Fraction | int], Factors]) -> Callable[[TermsFacts], Variants]:
    """`factors(W, microbatches of all ranks)`: what the value is multiplied with, by how that is done."""

    def variants(facts: TermsFacts) -> Variants:
        return {
            f"{detail}, in term {term.name}" if detail else f"in term {term.name}": _with(
                facts, {place: _times(facts, place, factor)}
            )
            for place, term in enumerate(facts.terms)
            if term.is_once
            for detail, factor in factors(facts.world_size, facts.of[place].total).items()
            if factor != 1
        }

    return variants


def _in_microbatches(world_size: int, microbatches: Fraction | int) -> Factors:
    if microbatches == world_size:
        return {}
    return {"once per microbatch": Fraction(microbatches) / world_size, "once per microbatch, times W": microbatches}


def _coefficient_forgotten(facts: TermsFacts) -> Variants:
    places = [place for place, term in enumerate(facts.terms) if term.coefficient != 1]

    def without(some: Sequence[int]) -> Weights:
        return _with(facts, {place: _right_of(facts.of[place]) for place in some})

    found: Variants = {f"in term {facts.terms[place].name}": without([place]) for place in places}
    if len(places) > 1:
        found[f"in {EVERY}"] = without(places)
    return found


def _term_forgotten(facts: TermsFacts) -> Variants:
    if len(facts.terms) == 1:
        return {}
    return {
        f"term {term.name}": _with(facts, {place: _times(facts, place, 0)}) for place, term in enumerate(facts.terms)
    }


@dataclass(frozen=True)
class _Between:
    """A mistake that needs several terms, or one that counts once."""

    name: str
    meaning: str
    variants: Callable[[TermsFacts], Variants]

    def on(self, facts: TermsFacts) -> Formula:
        return Formula(self.name, self.meaning, lambda _: self.variants(facts))


OF_TERMS = (
    _Between(
        "shared_denominator", "terms of different units are divided by the number of one of them", _shared_denominator
    ),
    _Between(
        "regularizer_times_world_size",
        "a term that counts once is counted W times",
        _of_once(lambda world_size, _: {"": world_size}),
    ),
    _Between(
        "regularizer_times_microbatches",
        "a term that counts once is counted in every microbatch",
        _of_once(_in_microbatches),
    ),
    _Between("coefficient_forgotten", "a term is added without its coefficient", _coefficient_forgotten),
    _Between("term_forgotten", "a term is left out of the loss", _term_forgotten),
)
MEANINGS = {between.name: between.meaning for between in OF_TERMS}


def between_terms(facts: TermsFacts) -> tuple[Formula, ...]:
    """Mistakes between terms that can be made on this window."""
    made = (between.on(facts) for between in OF_TERMS)
    return tuple(formula for formula in made if formula.variants(facts))


def excluded_by(facts: WindowFacts) -> tuple[Formula, ...]:
    """The mistakes that a comparison on this window is meant to exclude."""
    if not isinstance(facts, TermsFacts):
        return formulas.excluded_by(facts)
    return tuple(lifted(formula, facts) for formula in formulas.excluded_by(facts.of[0])) + between_terms(facts)


def possible_on(facts: WindowFacts) -> tuple[Formula, ...]:
    """Every mistake that can be made on this window."""
    if not isinstance(facts, TermsFacts):
        return formulas.possible_on(facts)
    return tuple(lifted(formula, facts) for formula in formulas.possible_on(facts.of[0])) + between_terms(facts)


def alike_on(facts: WindowFacts, one: Formula, other: Formula) -> bool:
    """Do both, in some variant, leave the same on this window? Exact: nothing is computed but fractions."""
    if not isinstance(facts, TermsFacts):
        return formulas.alike_on(facts, one, other)
    return any(mine == theirs for mine in _all_that_matters(facts, one) for theirs in _all_that_matters(facts, other))


def is_right_on(facts: WindowFacts, weights: Weights) -> bool:
    return _is_right(facts, weights) if isinstance(facts, TermsFacts) else formulas.is_right_on(facts, weights)


def _is_right(facts: TermsFacts, weights: Weights) -> bool:
    return _that_matters(facts, weights) == _that_matters(facts, _right_weights(facts))


def _all_that_matters(facts: TermsFacts, formula: Formula) -> Iterator[list[Fraction]]:
    return (_that_matters(facts, weights) for weights in formula.variants(facts).values() if weights is not None)


def _that_matters(facts: TermsFacts, weights: Weights) -> list[Fraction]:
    """Weights of microbatches that hold a unit of the term; of a term that counts once, only their sum."""
    found: list[Fraction] = []
    for place, (term, of) in enumerate(zip(facts.terms, facts.of, strict=True)):
        own = weights[place * facts.world_size : (place + 1) * facts.world_size]
        pairs = [pair for rank, of_rank in enumerate(own) for pair in zip(of_rank, of.units[rank], strict=True)]
        kept = [weight for weight, units in pairs if units]
        found += [sum(kept, Fraction(0))] if term.is_once else kept
    return found


def objective_told(facts: WindowFacts, blank: Sequence[int] = ()) -> dict[str, Any]:
    """For a verdict: the objective and, of each mistake in a single term, whether this window could show it. `blank`:
    places of the terms without a gradient.
    """
    if not isinstance(facts, TermsFacts):
        return {}
    unseen = [f"any mistake in term {facts.terms[place].name}, whose gradient is 0 here" for place in blank]
    return {"objective": as_formula(facts.terms), "not_seen_here": [*_right_in_one_term(facts), *unseen]}


def _right_in_one_term(facts: TermsFacts) -> Iterator[str]:
    """Mistakes that would be right in one term on this window, by its counts, and so cannot be told."""
    for formula in formulas.excluded_by(facts.of[0]):
        for place, term in enumerate(facts.terms):
            made = _made_in(formula, facts, [place]).values()
            if not term.is_once and any(weights is not None and _is_right(facts, weights) for weights in made):
                yield f"{formula.name} in term {term.name}"
