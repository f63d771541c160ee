"""An objective of several terms: each is a sum over units of its own, divided by their number in the window. No torch.

    L = sum_t  c_t * S_t / N_t,

S_t: the sum of term t over all microbatches of all ranks; N_t: its denominator, counted likewise. A term that counts
`once` adds the same R in each microbatch, and 1 to its denominator: S / N is R then, whatever the number of ranks and
of microbatches. So it is the same arithmetic as any other term: a rank calls backward() on sum_t c_t * W * S_t / N_t.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ddp_tokens.corpora.locked_rows import changed
from ddp_tokens.corpora.objective import document_of, require_one_split, weights_of_documents
from ddp_tokens.corpora.rows import Row, position_weights, supervised
from ddp_tokens.errors import WorkloadError
from ddp_tokens.objective_settings import DOCUMENT, SAMPLE, SEQUENCE, TOKEN

ONCE = "once"
UNITS_OF_TERMS = (TOKEN, SEQUENCE, SAMPLE, DOCUMENT, ONCE)
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# What a workload may define: a row's units, by name of the terms that it counts itself.
CountsRow = Callable[[Row], Mapping[str, float]]
PLURALS = {TOKEN: "tokens", SEQUENCE: "sequences", SAMPLE: "samples", DOCUMENT: "documents"}


@dataclass(frozen=True)
class Term:
    """`unit`: what counts once in its denominator: token, sequence, sample, document, or `once` of a regularizer.
    `coefficient`: by which its mean is multiplied.
    """

    name: str
    unit: str
    coefficient: float = 1.0

    @property
    def is_once(self) -> bool:
        return self.unit == ONCE


def require_terms(terms: Any, source: str) -> tuple[Term, ...]:
    """`terms` as they are usable; `source`: whose they are. Raises WorkloadError naming the term that is not."""
    if not isinstance(terms, tuple | list) or not terms or not all(isinstance(term, Term) for term in terms):
        raise WorkloadError(f"{source}: TERMS is {terms!r}: let it be a tuple of one Term(name, unit) or more")
    names = [term.name for term in terms]
    for term in terms:
        if not isinstance(term.name, str) or not NAME.fullmatch(term.name):
            raise WorkloadError(f"{source}: {term.name!r} names no term: take letters, digits and _, a letter first")
        if names.count(term.name) > 1:
            raise WorkloadError(f"{source}: two terms are named '{term.name}': give each a name of its own")
        if term.unit not in UNITS_OF_TERMS:
            raise WorkloadError(
                f"{source}: the unit of term '{term.name}' is {term.unit!r}: take one of {', '.join(UNITS_OF_TERMS)}"
            )
        if not _is_coefficient(term.coefficient):
            raise WorkloadError(
                f"{source}: the coefficient of term '{term.name}' is {term.coefficient!r}: take a finite number other "
                "than 0, or leave the term out"
            )
    if all(term.is_once for term in terms):
        raise WorkloadError(f"{source}: every term counts once, so nothing is learnt from rows: add a term that does")
    return tuple(terms)


def _is_coefficient(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value != 0


def require_unit(terms: Sequence[Term], unit: str) -> None:
    """`unit`: of the experiment. Raises WorkloadError where rows are weighted by it, which no term asked for."""
    if terms and unit != TOKEN:
        raise WorkloadError(
            f"the experiment's unit is {unit}, but the workload's terms have units of their own "
            f"({_listed(terms)}): leave the setting unit away"
        )


def _listed(terms: Sequence[Term]) -> str:
    return ", ".join(f"{term.name}: {term.unit}" for term in terms)


def units_of_row(unit: str, row: Row) -> float:
    """What a row adds to a denominator that counts `unit`: of documents, its `share`, which `with_shares` gives it."""
    if unit == TOKEN:
        return supervised(row)
    weights = position_weights(row)
    if unit == DOCUMENT:
        assert row.share is not None
        return row.share
    starts = row.starts if unit == SEQUENCE and row.starts else (0,)
    return sum(any(weights[start:end]) for start, end in pairwise((*starts, len(weights))))


def sequences_in(unit: str, row: Row) -> int:
    """All groups of positions that could count, supervised or not."""
    return len(row.starts) if unit == SEQUENCE and row.starts else 1


def with_shares(rows: Mapping[str, Row], terms: Iterable[Term]) -> Mapping[str, Row]:
    """The rows of a corpus, each with the share that it holds of its document, where a term counts documents.

    Raises CorpusError where a row names none, and where a document has rows in two splits.
    """
    if not counts_documents(terms) or not rows:
        return rows
    criterion = next(iter(rows.values())).criterion
    whole = weights_of_documents((row.raw for row in _in_one_split(rows.values())), criterion)
    return changed(rows, lambda row: replace(row, share=_share(row, whole[document_of(row)])))


def counts_documents(terms: Iterable[Term]) -> bool:
    return any(term.unit == DOCUMENT for term in terms)


def _in_one_split(rows: Iterable[Row]) -> Iterator[Row]:
    splits: dict[str, str] = {}
    for row in rows:
        require_one_split(row, splits, "a term per document")
        yield row


def _share(row: Row, whole: float) -> float:
    return math.fsum(position_weights(row)) / whole if whole else 0.0


def counted(terms: Sequence[Term], rows: Sequence[Row], by_workload: CountsRow | None = None) -> tuple[float, ...]:
    """What a microbatch adds to each term's denominator.

    `by_workload`: counts the terms that it names itself. Raises WorkloadError where that is no number of units.
    """
    own = [_own_of(terms, row, by_workload) if by_workload else {} for row in rows]

    def units(term: Term, row: Row, of: Mapping[str, float]) -> float:
        return of[term.name] if term.name in of else units_of_row(term.unit, row)

    return tuple(
        1 if term.is_once else sum(units(term, row, of) for row, of in zip(rows, own, strict=True)) for term in terms
    )


def _own_of(terms: Sequence[Term], row: Row, by_workload: CountsRow) -> Mapping[str, float]:
    found: Any = by_workload(row)
    countable = [term.name for term in terms if not term.is_once]
    if not isinstance(found, Mapping):
        raise WorkloadError(
            f"denominators returns {what(found)} for row '{row.id}': let it return a mapping from the name of a term "
            f"({', '.join(countable)}) to what the row counts there"
        )
    for name in found:
        if name not in countable:
            raise WorkloadError(
                f"denominators counts '{name}' of row '{row.id}': it may count {', '.join(countable)} and nothing else"
            )
    return {
        name: require_denominator(
            int(number) if isinstance(number, bool) else number,  # whether the row counts
            f"denominators, row '{row.id}', term '{name}': the denominator",
            "count units in the row",
        )
        for name, number in found.items()
    }


def require_denominator(number: Any, where: str, remedy: str) -> float:
    """The number, out of a tensor too. Raises WorkloadError, from `where` to `remedy`, of what is no number of units or
    depends on the weights.
    """
    if getattr(number, "requires_grad", False):
        raise WorkloadError(
            f"{where} depends on the model's weights (it requires grad), so that dividing by it would not leave the "
            f"gradient of the mean: {remedy}"
        )
    plain = number.item() if hasattr(number, "item") and math.prod(number.shape) == 1 else number  # of torch, NumPy
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise WorkloadError(f"{where} is {what(number)}, no number: {remedy}")
    if not 0 <= plain < math.inf:
        raise WorkloadError(
            f"{where} is {plain}, where a number of units, or a sum of weights, is at least 0 and finite: {remedy}"
        )
    return plain


def what(value: Any) -> str:
    """None, or a value by its type."""
    return "None" if value is None else f"a {type(value).__name__}"


def in_words(terms: Sequence[Term]) -> str:
    """The objective in one sentence."""
    told = [f"{_times(term)}{_in_words(term)}" for term in terms]
    if len(told) == 1:
        return f"the loss is {told[0]}"
    return f"the loss is the sum of {', '.join(told[:-1])} and {told[-1]}"


def _in_words(term: Term) -> str:
    if term.is_once:
        return f"'{term.name}', which counts once per update, whatever the ranks and microbatches"
    return f"the mean of '{term.name}' over all {PLURALS[term.unit]} of the window"


def _times(term: Term) -> str:
    return "" if term.coefficient == 1 else f"{term.coefficient:g} times "


def as_formula(terms: Sequence[Term]) -> str:
    """The objective as a formula in plain text."""
    told = [f"{'' if term.coefficient == 1 else f'{term.coefficient:g} * '}{_as_formula(term)}" for term in terms]
    return f"L = {' + '.join(told)}".replace("+ -", "- ")


def _as_formula(term: Term) -> str:
    if term.is_once:
        return term.name
    units = PLURALS[term.unit]
    return f"(sum of {term.name} over {units}) / (number of {units})"


def exact_coefficient(term: Term) -> Fraction:
    return Fraction(term.coefficient)


def record(term: Term) -> dict[str, Any]:
    """As JSON."""
    return {"name": term.name, "unit": term.unit, "coefficient": term.coefficient}
