"""What can be counted in a window for each term of an objective. No torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddp_tokens.corpora.rows import Row
from ddp_tokens.objective_settings import DOCUMENT, TOKEN
from ddp_tokens.plan import Plan, rows_of_window
from ddp_tokens.terms import Term, counted, sequences_in, with_shares
from ddp_tokens.window_facts import Counts, WindowFacts, exact, window_facts

Window = list[list[list[Row]]]  # [rank][microbatch][row]
# Of the terms that a workload counts itself, by name and case: `units` by rank and microbatch, and `previous_units`.
ByWorkload = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class TermsFacts(WindowFacts):
    """`units`, `labels`, `positions`: of one term after the other, by rank. `of`: those of each term."""

    terms: tuple[Term, ...] = ()
    of: tuple[WindowFacts, ...] = ()

    @property
    def world_size(self) -> int:
        return self.of[0].world_size

    @property
    def microbatches(self) -> int:
        return self.of[0].microbatches

    @property
    def told_units_per_rank(self) -> Any:
        """By term."""
        return {term.name: of.told_units_per_rank for term, of in zip(self.terms, self.of, strict=True)}


def terms_facts(terms: Sequence[Term], of: Sequence[WindowFacts]) -> TermsFacts:
    """`of`: each term's own facts of the same window."""
    units, labels, positions = (
        tuple(of_rank for facts in of for of_rank in getattr(facts, name)) for name in ("units", "labels", "positions")
    )
    return TermsFacts(units, labels, positions, of[0].accumulation, terms=tuple(terms), of=tuple(of))


def facts_of_terms(
    plan: Plan,
    cases: Mapping[str, int],
    rows: Mapping[str, Row],
    terms: Sequence[Term],
    by_workload: ByWorkload,
) -> dict[str, TermsFacts]:
    """By case, of the plan's windows."""
    rows = with_shares(rows, terms)
    found = {}
    for case, index in cases.items():
        of = [
            _told(plan, index, rows, by_workload[term.name][case])
            if term.name in by_workload
            else _counted(plan, index, rows, term)
            for term in terms
        ]
        found[case] = terms_facts(terms, of)
    return found


def _counted(plan: Plan, index: int, rows: Mapping[str, Row], term: Term) -> WindowFacts:
    """By the term's unit. A term that counts once has no label, and so none that is not supervised, and no padding."""
    if term.unit == TOKEN:
        return replace(window_facts(plan, index, rows, TOKEN), others={})

    def units(batch: Sequence[Row]) -> float:
        return counted([term], batch)[0]

    def groups(batch: Sequence[Row]) -> float:
        countable = not term.is_once and term.unit != DOCUMENT
        return sum(sequences_in(term.unit, row) for row in batch) if countable else units(batch)

    return _facts(plan, index, rows, units, groups)


def _facts(
    plan: Plan,
    index: int,
    rows: Mapping[str, Row],
    units: Callable[[Sequence[Row]], float],
    groups: Callable[[Sequence[Row]], float],
) -> WindowFacts:
    labels = _each_batch(groups, rows_of_window(plan[index], rows))
    return WindowFacts(
        units=_each_batch(units, rows_of_window(plan[index], rows)),
        labels=labels,
        positions=labels,
        accumulation=max(len(of_rank) for window in plan for of_rank in window),
        previous_units=sum(map(sum, _each_batch(units, rows_of_window(plan[index - 1], rows)))) if index else None,
    )


def _told(plan: Plan, index: int, rows: Mapping[str, Row], told: Mapping[str, Any]) -> WindowFacts:
    units: Counts = tuple(tuple(exact(number) for number in of_rank) for of_rank in told["units"])
    before = told["previous_units"]
    return WindowFacts(
        *(units, units, units),
        accumulation=max(len(of_rank) for window in plan for of_rank in window),
        previous_units=None if before is None else exact(before),
    )


def _each_batch(count: Callable[[Sequence[Row]], float], window: Window) -> Counts:
    return tuple(tuple(exact(count(batch)) for batch in of_rank) for of_rank in window)
