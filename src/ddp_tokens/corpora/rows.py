"""One row of a corpus, and what it adds to the denominator."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # reading the Snakefile needs no NumPy
    from numpy.typing import NDArray

UNSUPERVISED = -100
TOKEN = "token"  # what a supervised unit is called where the kind of work has no other name for it
# index -> float32 (channels, height, width)
Images = Callable[[int], "NDArray[Any]"]
SPLITS = ("train", "validation", "test")
SEQUENCES = ("tokens", "labels", "weights", "starts")
RECORDED = ("id", "split", "tokens", "labels", "text", "index", "weights", "document", "starts")


@dataclass(frozen=True)
class Criterion:
    """Of the loss at a position, as in torch's CrossEntropyLoss. `class_weights`: by class; None: 1 each."""

    class_weights: tuple[float, ...] | None = None
    label_smoothing: float = 0.0

    def weight(self, label: int) -> float:
        return 1.0 if self.class_weights is None else self.class_weights[label]


PLAIN = Criterion()


@dataclass(frozen=True)
class Row:
    """`tokens` and `labels` have one entry per position; a label of -100 is not supervised.

    `text`: what a person reads, where the tokens are words. Of an image a row holds the recipe: one label, no tokens,
    and `index`, from which `images` makes or reads the pixels.
    `weights`: one per position, by which its loss is multiplied; None: 1 each. `document`: what the row is a part of.
    `starts`: of a packed row, the positions at which its sequences start, from 0 on.
    `criterion`, `units` and `unit`: what the objective makes of the row that was `given`, see corpora.objective;
    `units` is None where the row adds the weights of its supervised positions to the denominator. `share`: what the row
    holds of its document, where a term of the loss counts documents.
    """

    id: str
    split: str
    tokens: tuple[int, ...]
    labels: tuple[int, ...]
    text: str | None = None
    index: int | None = None
    images: Images | None = field(default=None, compare=False, repr=False)
    weights: tuple[float, ...] | None = None
    document: str | None = None
    starts: tuple[int, ...] | None = None
    criterion: Criterion = PLAIN
    units: float | None = None
    unit: str = TOKEN
    share: float | None = None
    given: "Row | None" = field(default=None, compare=False, repr=False)

    @classmethod
    def from_record(cls, record: dict[str, Any], images: Images | None = None) -> "Row":
        """Of what `record` gave."""
        sequences = {name: tuple(record[name]) for name in SEQUENCES if name in record}
        return cls(**{"tokens": (), "labels": (), **record, **sequences}, images=images)

    def record(self) -> dict[str, Any]:
        return {name: value for name in RECORDED if (value := getattr(self, name)) not in (None, ())}

    def image(self) -> "NDArray[Any]":
        """float32 (channels, height, width). Raises ValueError of a row that is no image."""
        if self.images is None or self.index is None:
            raise ValueError(f"row '{self.id}' holds no image")
        return self.images(self.index)

    def unsupervised(self) -> "Row":
        """The same tokens with no label that counts."""
        share = None if self.share is None else 0.0
        return replace(self, labels=(UNSUPERVISED,) * len(self.labels), units=None, given=None, share=share)

    @property
    def is_weighted(self) -> bool:
        """Does it add something else to the denominator than the number of its supervised positions?"""
        return self.weights is not None or self.criterion.class_weights is not None

    @property
    def raw(self) -> "Row":
        """As no objective has counted it."""
        return self if self.given is None else self.given


def next_tokens(tokens: tuple[int, ...], starts: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """Labels for a language model: at each position the token that comes next, at the last of each sequence none."""
    labels = [*tokens[1:], UNSUPERVISED]
    for start in (starts or ())[1:]:
        labels[start - 1] = UNSUPERVISED
    return tuple(labels)


def longest_sequence(row: Row) -> int:
    """In tokens: of a packed row, of its longest sequence."""
    if row.starts is None:
        return len(row.tokens)
    return max(end - start for start, end in pairwise((*row.starts, len(row.tokens))))


def position_weights(row: Row) -> list[float]:
    """By position, what its loss counts: weight times class weight; 0 where it is not supervised."""
    weights = row.weights or (1.0,) * len(row.labels)
    return [
        0.0 if label == UNSUPERVISED else weight * row.criterion.weight(label)
        for label, weight in zip(row.labels, weights, strict=True)
    ]


def supervised_positions(row: Row) -> int:
    """How many positions count at all."""
    if not row.is_weighted:
        return sum(label != UNSUPERVISED for label in row.labels)
    return sum(weight > 0 for weight in position_weights(row))


def supervised(row: Row) -> float:
    """Units that this row adds to the denominator: a whole number wherever nothing is weighted."""
    if row.units is not None:
        return row.units
    if not row.is_weighted:
        return sum(label != UNSUPERVISED for label in row.labels)
    return math.fsum(position_weights(row))


def supervised_in(rows: Iterable[Row]) -> float:
    return sum(supervised(row) for row in rows)
