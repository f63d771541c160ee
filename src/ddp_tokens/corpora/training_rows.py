"""What a plan needs of the training rows, in columns: ten million rows fit in memory, which as `Row` objects do not."""

import random
from array import array
from bisect import bisect
from collections.abc import Callable, Iterable
from typing import Any

from ddp_tokens.corpora.rows import Row, supervised_positions

# Ids are any strings that JSON can hold, halves of surrogate pairs too. Their bytes sort as the strings do.
ENCODING = ("utf-8", "surrogatepass")


class TrainingRows:
    """Rows by index, in the order in which they were added: 16 bytes each, and the id.

    `lengths` and `supervised` are by index; `texts` holds those of rows that have one, which only sentences have that
    are made from a seed. `documents`: name -> number; `document_of`: its number by index, where all rows name one.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.lengths, self.supervised = array("I"), array("I")
        self.texts: dict[int, str] = {}
        self.documents: dict[str, int] = {}
        self.document_of = array("I")
        self._ids, self._starts = bytearray(), array("Q", [0])
        for row in rows:
            self.add(row)

    def __len__(self) -> int:
        return len(self.lengths)

    def add(self, row: Row) -> None:
        if row.text is not None:
            self.texts[len(self)] = row.text
        if row.document is not None:
            self.document_of.append(self.documents.setdefault(row.document, len(self.documents)))
        self.lengths.append(len(row.labels))
        self.supervised.append(supervised_positions(row))
        self._ids += row.id.encode(*ENCODING)
        self._starts.append(len(self._ids))

    def id(self, index: int) -> str:
        return self._ids[self._starts[index] : self._starts[index + 1]].decode(*ENCODING)

    def in_order_of_length(self) -> "array[int]":
        """All indices, by length and id, shortest first."""
        return sorted_indices(len(self), lambda index: (self.lengths[index], self.id(index)))


def sorted_indices(number: int, key: Callable[[int], Any], part: int = 1024) -> "array[int]":
    """0 to `number` - 1 in order of their keys, of which no two are equal.

    There may be more keys than fit in memory. So a sample of them, eight for each part, cuts the indices into parts of
    about `part`, and each part is sorted by itself.
    """
    cuts = sorted(map(key, random.Random(0).sample(range(number), 8 * (number // part))))[4::8]
    parts = [array("I") for _ in range(len(cuts) + 1)]
    for index in range(number):
        parts[bisect(cuts, key(index))].append(index)
    return array("I", (index for each in parts for index in sorted(each, key=key)))
