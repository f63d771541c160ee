"""A window as it would be counted if something else counted once: what a mistaken unit leaves. Pure, no torch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddp_tokens.corpora.objective import Objective, weights_of_documents
from ddp_tokens.corpora.rows import Criterion, Row, position_weights, supervised_in
from ddp_tokens.objective_settings import DOCUMENT, UNITS

UNWEIGHTED = "unweighted"
Rows = Sequence[Sequence[Sequence[Row]]]  # [rank][microbatch][row]


def other_windows(window: Rows, unit: str) -> dict[str, Rows]:
    """By unit, the window whose rows are counted by it; UNWEIGHTED: by the same unit, without weights. Left out: what
    gives each position the same share of the mean as `unit`, which is that of the window, or as one before; and
    documents, where a row names none.
    """
    found: dict[str, Rows] = {}
    shares = [list(_shares(window))]
    documents = all(row.document is not None for row in rows_in(window))
    for other in (UNWEIGHTED, *UNITS):
        if other == unit or (other == DOCUMENT and not documents):
            continue
        counted = counted_by(unweighted(window), unit) if other == UNWEIGHTED else counted_by(window, other)
        own = list(_shares(counted))
        if not any(are_close(own, known) for known in shares):
            found[other] = counted
            shares.append(own)
    return found


def counted_by(window: Rows, unit: str) -> Rows:
    """A document is what the window holds of it."""
    first = next(rows_in(window))
    documents = weights_of_documents((row.raw for row in rows_in(window)), first.criterion) if unit == DOCUMENT else {}
    objective = Objective(unit, first.criterion, documents)
    return [[[objective.counted(row.raw) for row in rows] for rows in of_rank] for of_rank in window]


def unweighted(window: Rows) -> Rows:
    """Each supervised position of a row counts the same; label smoothing stays."""

    def plain(row: Row) -> Row:
        return replace(row.raw, weights=None, criterion=Criterion(None, row.criterion.label_smoothing))

    return [[[plain(row) for row in rows] for rows in of_rank] for of_rank in window]


def rows_in(window: Rows) -> Iterator[Row]:
    return (row for of_rank in window for rows in of_rank for row in rows)


def _shares(window: Rows) -> Iterator[float]:
    """Of each position, in the mean over the window."""
    total = supervised_in(rows_in(window))
    return (weight / total for row in rows_in(window) for weight in position_weights(row)) if total else iter(())


def are_close(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(map(_close, one, other))


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=0.0)
