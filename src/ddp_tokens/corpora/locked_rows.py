"""The rows of a locked corpus by id: all in memory where they are few, else found in the file when they are asked for.

A row as Python objects takes some eight times the bytes of its line, and every rank of every step reads the corpus.
"""

import os
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from json import JSONDecoder
from pathlib import Path
from typing import Any, cast

from ddp_tokens.corpora.rows import Row
from ddp_tokens.files import parsed_line, read_json_lines

IN_MEMORY = 16 * 2**20  # bytes of a file; about 40,000 rows of 40 tokens and labels
KEPT = 8 * 2**20  # bytes of the lines of the rows that were asked for last: the window of a rank
ID, DOCUMENT, AFTER_DOCUMENT = '{"id": ', '{"document": ', ', "id": '  # the fields of a line are sorted
DECODE = JSONDecoder().raw_decode
Made = Callable[[dict[str, Any]], Row]


def locked_rows(path: Path | str, made: Made) -> Mapping[str, Row]:
    """In file order. `made`: of a record. Raises EvidenceError, naming file and line, when a line is not JSON; of a
    large file, when the row is asked for.
    """
    if Path(path).stat().st_size > IN_MEMORY:
        return LockedRows(path, made)
    return {record["id"]: made(record) for record in read_json_lines(path)}


def changed(rows: Mapping[str, Row], change: Callable[[Row], Row]) -> Mapping[str, Row]:
    """Each row as `change` makes it: now, or when it is asked for."""
    if isinstance(rows, LockedRows):
        return rows.changed(change)
    return {name: change(row) for name, row in rows.items()}


class Index:
    """Where each line starts, and by the hash of its row's id the number of the line: 24 bytes per row.

    Lines are read by `pread`, from the file as it was opened: forked processes share its position, and `prepare`
    replaces it.
    """

    def __init__(self, path: Path | str) -> None:
        import numpy  # parsing the Snakefile, which needs none, imports this module

        self.path = path
        self.file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file)
        self.starts, hashes = array("Q", [0]), array("q")
        with open(self.file, "rb", closefd=False) as stream:
            for line in stream:
                self.starts.append(self.starts[-1] + len(line))
                hashes.append(hash(_id_of(line)))
        order = numpy.argsort(numpy.frombuffer(hashes, "q"), kind="stable")
        self.lines = array("Q", order.astype("Q").tobytes())
        self.hashes = array("q", numpy.frombuffer(hashes, "q")[order].tobytes())

    def __len__(self) -> int:
        return len(self.lines)

    def line(self, number: int) -> bytes:
        start, end = self.starts[number : number + 2]
        return os.pread(self.file, end - start, start)

    def find(self, row_id: str) -> bytes | None:
        """The line of a row, None where no row has the id."""
        place = bisect_left(self.hashes, hash(row_id))
        while place < len(self) and self.hashes[place] == hash(row_id):
            line = self.line(self.lines[place])
            if _id_of(line) == row_id:
                return line
            place += 1
        return None


class LockedRows(Mapping[str, Row]):
    """Reading through all of them keeps none."""

    def __init__(self, path: Path | str, made: Made, index: Index | None = None) -> None:
        self._index = index or Index(path)
        self._made = made
        self._kept: dict[str, tuple[Row, int]] = {}  # with the bytes of its line; what was asked for last comes last
        self._bytes = 0

    def changed(self, change: Callable[[Row], Row]) -> "LockedRows":
        made = self._made
        return LockedRows(self._index.path, lambda record: change(made(record)), self._index)

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, row_id: str) -> Row:
        kept = self._kept.pop(row_id, None)
        if kept is None:
            line = self._index.find(row_id) if isinstance(row_id, str) else None
            if line is None:
                raise KeyError(row_id)
            kept = self._row(line, f"row '{row_id}'"), len(line)
            self._bytes += len(line)
        self._kept[row_id] = kept
        while self._bytes > KEPT and len(self._kept) > 1:
            self._bytes -= self._kept.pop(next(iter(self._kept)))[1]
        return kept[0]

    def __contains__(self, row_id: object) -> bool:
        return isinstance(row_id, str) and (row_id in self._kept or self._index.find(row_id) is not None)

    def __iter__(self) -> Iterator[str]:
        return (_id_of(self._index.line(number)) for number in range(len(self)))

    def values(self) -> ValuesView[Row]:
        return _Values(self)

    def items(self) -> ItemsView[str, Row]:
        return _Items(self)

    def stream(self) -> Iterator[Row]:
        for number in range(len(self)):
            yield self._row(self._index.line(number), f"line {number + 1}")

    def _row(self, line: bytes, where: str) -> Row:
        return self._made(parsed_line(line.decode(), f"{self._index.path}, {where}"))


class _Values(ValuesView[Row]):
    _mapping: LockedRows

    def __iter__(self) -> Iterator[Row]:
        return self._mapping.stream()


class _Items(ItemsView[str, Row]):
    _mapping: LockedRows

    def __iter__(self) -> Iterator[tuple[str, Row]]:
        return ((row.id, row) for row in self._mapping.stream())


def _id_of(line: bytes) -> str:
    """Without reading what comes after it, which is most of the line."""
    text = line.decode()
    start = 0
    if text.startswith(DOCUMENT):
        start = DECODE(text, len(DOCUMENT))[1]
    before = AFTER_DOCUMENT if start else ID
    if text.startswith(before, start):
        return cast(str, DECODE(text, start + len(before))[0])
    return cast(str, DECODE(text, 0)[0]["id"])
