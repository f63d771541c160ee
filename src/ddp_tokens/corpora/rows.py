"""One row of a corpus, and what it adds to the denominator."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

UNSUPERVISED = -100
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Row:
    """`tokens` and `labels` have one entry per position; a label of -100 is not supervised.

    `text`: what a person reads, where the tokens are words.
    """

    id: str
    split: str
    tokens: tuple[int, ...]
    labels: tuple[int, ...]
    text: str | None = None

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Row":
        return cls(record["id"], record["split"], tuple(record["tokens"]), tuple(record["labels"]), record.get("text"))

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def unsupervised(self) -> "Row":
        """The same tokens with no label that counts."""
        return replace(self, labels=(UNSUPERVISED,) * len(self.labels))


def next_tokens(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Labels for a language model: at each position the token that comes next, at the last none."""
    return (*tokens[1:], UNSUPERVISED)


def supervised(row: Row) -> int:
    """Units that this row adds to the denominator: positions whose label is not -100."""
    return sum(label != UNSUPERVISED for label in row.labels)


def supervised_in(rows: Iterable[Row]) -> int:
    return sum(supervised(row) for row in rows)
