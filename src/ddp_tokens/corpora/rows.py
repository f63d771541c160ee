"""One row of a corpus, and what it adds to the denominator."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # reading the Snakefile needs no NumPy
    from numpy.typing import NDArray

UNSUPERVISED = -100
TOKEN = "token"  # what a supervised unit is called where the kind of work has no other name for it
# index -> float32 (channels, height, width)
Images = Callable[[int], "NDArray[Any]"]
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Row:
    """`tokens` and `labels` have one entry per position; a label of -100 is not supervised.

    `text`: what a person reads, where the tokens are words. Of an image a row holds the recipe: one label, no tokens,
    and `index`, from which `images` makes or reads the pixels.
    """

    id: str
    split: str
    tokens: tuple[int, ...]
    labels: tuple[int, ...]
    text: str | None = None
    index: int | None = None
    images: Images | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_record(cls, record: dict[str, Any], images: Images | None = None) -> "Row":
        tokens, labels = (tuple(record.get(name, ())) for name in ("tokens", "labels"))
        return cls(record["id"], record["split"], tokens, labels, record.get("text"), record.get("index"), images)

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "images" and value not in (None, ())}

    def image(self) -> "NDArray[Any]":
        """float32 (channels, height, width). Raises ValueError of a row that is no image."""
        if self.images is None or self.index is None:
            raise ValueError(f"row '{self.id}' holds no image")
        return self.images(self.index)

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
