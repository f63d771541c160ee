"""What counts once in the mean, brought into the rows: after this every row states its weights and its units. No torch.

With l_i the loss at a supervised position and w_i its weight times the weight of its class, the objective is

    sum_i v_i l_i / sum_i v_i,     v_i = w_i                     where the unit is a token,
                                   v_i = w_i / sum_{j in g(i)} w_j   where it is the group g(i) of positions:

a packed row's sequence, a sample (a row), or a document (all rows that name it). So each group counts once, with the
mean of its positions, and sum_i v_i is the number of groups.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from ddp_tokens.config import Experiment
from ddp_tokens.corpora.rows import PLAIN, UNSUPERVISED, Criterion, Row, position_weights, supervised_positions
from ddp_tokens.errors import PREPARE_AGAIN, CorpusError
from ddp_tokens.objective_settings import DOCUMENT, SAMPLE, SEQUENCE, TOKEN

WEIGHTED = "weighted"
MEANS = {
    TOKEN: ("every supervised token counts the same", "L = (sum over tokens i of l_i) / (number of tokens)"),
    WEIGHTED: (
        "every supervised token counts by its weight",
        "L = (sum over tokens i of w_i l_i) / (sum over tokens i of w_i)",
    ),
    SEQUENCE: (
        "every sequence counts the same, with the mean of its supervised tokens",
        "L = (sum over sequences s of mean_{i in s} l_i) / (number of sequences)",
    ),
    DOCUMENT: (
        "every document counts the same, with the mean of its supervised tokens, wherever its rows are computed",
        "L = (sum over documents d of mean_{i in d} l_i) / (number of documents)",
    ),
    SAMPLE: (
        "every sample (row) counts the same, with the mean of its supervised positions",
        "L = (sum over samples x of mean_{i in x} l_i) / (number of samples)",
    ),
}


@dataclass(frozen=True)
class Objective:
    """`documents`: of each document, the weights of all of its supervised positions together."""

    unit: str = TOKEN
    criterion: Criterion = PLAIN
    documents: Mapping[str, float] = field(default_factory=dict)

    def counted(self, row: Row) -> Row:
        """The row with the weights and units that the objective gives it."""
        row = replace(row, criterion=self.criterion, given=row, unit=self.unit)
        if self.unit == TOKEN:
            return row
        weights = position_weights(row)
        if self.unit == DOCUMENT:
            own, whole = math.fsum(weights), self.documents[document_of(row)]
            return _shared(row, [(0, len(weights), whole)], own / whole if whole else 0.0)
        groups = [(start, end, math.fsum(weights[start:end])) for start, end in _groups(row, self.unit)]
        return _shared(row, groups, sum(whole > 0 for *_, whole in groups))

    def in_words(self, position: str = TOKEN, own_weights: bool = False) -> str:
        """With its formula, where l_i is the loss at the supervised position i, which is called `position`.
        `own_weights`: rows have weights.
        """
        criterion = self.criterion
        weighted = own_weights or criterion.class_weights is not None
        words, formula = MEANS[WEIGHTED if weighted and self.unit == TOKEN else self.unit]
        words, formula = words.replace("token", position), formula.replace("token", position)
        if weighted and self.unit != TOKEN:
            words = f"{words}, by their weights w_i"
            for group in ("s", "d", "x"):
                formula = formula.replace(
                    f"mean_{{i in {group}}} l_i", f"(sum_{{i in {group}}} w_i l_i) / (sum_{{i in {group}}} w_i)"
                )
        return f"{words}: {formula}{self.with_what(own_weights)}"

    def with_what(self, own_weights: bool = False) -> str:
        """What changes the loss at a position, and its weight; empty where nothing does."""
        criterion = self.criterion
        more = ["the rows' own weights"] if own_weights else []
        more += [f"class weights {list(criterion.class_weights)}"] if criterion.class_weights else []
        more += [f"label smoothing {criterion.label_smoothing:g}"] if criterion.label_smoothing else []
        return f", with {' and '.join(more)}" if more else ""

    def record(self) -> dict[str, Any]:
        """For the lock; nothing where it is the mean over tokens."""
        told = {"unit": self.unit, **vars(self.criterion)}
        return {} if told == {"unit": TOKEN, **vars(PLAIN)} else {"objective": told}


def unit_in(lock: Mapping[str, Any]) -> str:
    return str(lock.get("objective", {"unit": TOKEN})["unit"])


def objective_in(lock: Mapping[str, Any], rows: Iterable[Row], unit: str | None = None) -> Objective:
    """As it was locked, or with another `unit`; `rows`: all of the corpus, read only where the unit is a document."""
    told = lock.get("objective", {"unit": TOKEN, **vars(PLAIN)})
    unit, weights = unit or unit_in(lock), told["class_weights"]
    criterion = Criterion(None if weights is None else tuple(weights), told["label_smoothing"])
    return Objective(unit, criterion, weights_of_documents(rows, criterion) if unit == DOCUMENT else {})


def objective_of(experiment: Experiment) -> Objective:
    """Its documents are not known before the rows are read."""
    return Objective(experiment.unit, Criterion(experiment.class_weights, experiment.label_smoothing))


def require_same_objective(objective: Objective, lock: Mapping[str, Any], lock_path: Path | str) -> None:
    """Raises CorpusError where the rows were prepared for another objective."""
    of_lock = objective_in(lock, ())
    for name, there, here in (("unit", of_lock.unit, objective.unit), *_criteria(of_lock, objective)):
        if there != here:
            raise CorpusError(f"{lock_path} was made for {name} {there}, not {here}: {PREPARE_AGAIN}")


def _criteria(one: Objective, other: Objective) -> Iterator[tuple[str, Any, Any]]:
    for name, value in vars(one.criterion).items():
        yield name, value, vars(other.criterion)[name]


def weights_of_documents(rows: Iterable[Row], criterion: Criterion) -> dict[str, float]:
    """The sums are rounded once, whatever the order of the rows; of each document a few numbers are in memory."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        row, sums = replace(row, criterion=criterion), found[document_of(row)]
        is_weighted = row.weights is not None or criterion.class_weights is not None
        for weight in position_weights(row) if is_weighted else [float(supervised_positions(row))]:
            _add_exactly(sums, weight)
    return {name: math.fsum(sums) for name, sums in found.items()}


def _add_exactly(sums: list[float], value: float) -> None:
    """`sums` do not overlap, and add up to all values without rounding, as inside math.fsum (Shewchuk 1997)."""
    kept = 0
    for other in sums:
        larger, smaller = (value, other) if abs(value) >= abs(other) else (other, value)
        value = larger + smaller
        rest = smaller - (value - larger)
        if rest:
            sums[kept] = rest
            kept += 1
    sums[kept:] = [value]


def document_of(row: Row) -> str:
    """Raises CorpusError where the row names none."""
    if row.document is None:
        raise CorpusError(f"row '{row.id}' has no field document, which unit document needs: give it to every row")
    return row.document


def require_one_split(row: Row, splits: dict[str, str], why: str) -> None:
    """`splits`: of each document, by the rows before, to which it is added. Raises CorpusError where it has another."""
    name = document_of(row)
    split = splits.setdefault(name, row.split)
    if split != row.split:
        raise CorpusError(
            f"document '{name}' has rows in the splits {split} and {row.split} (row '{row.id}'), and with {why} all "
            "rows of a document count together: give them one split"
        )


def _groups(row: Row, unit: str) -> list[tuple[int, int]]:
    """Start and end of each group of positions."""
    starts = row.starts if unit == SEQUENCE and row.starts else (0,)
    return list(pairwise((*starts, len(row.labels))))


def _shared(row: Row, groups: Iterable[tuple[int, int, float]], units: float) -> Row:
    """`groups`: start, end, and the weight of the whole that these positions belong to."""
    given = row.weights or (1.0,) * len(row.labels)
    weights = [0.0] * len(given)
    for start, end, whole in groups:
        for place in range(start, end):
            if row.labels[place] != UNSUPERVISED and whole > 0:
                weights[place] = given[place] / whole
    return replace(row, weights=tuple(weights), units=units)
