"""Rows of Parquet files and of Arrow streams, piece by piece. The only module that needs pyarrow."""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddp_tokens.errors import CorpusError

try:
    import pyarrow
    from pyarrow import ipc, parquet
except ImportError:
    pyarrow = None

PIECE = 1024  # rows that are Python objects at a time
BUFFER = 2**20  # bytes of a column that are read at a time


def of_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Raises CorpusError: no pyarrow, no Parquet file, a column twice."""
    with _refusing(path, "a Parquet file"), open(path, "rb") as stream:
        file = parquet.ParquetFile(stream, buffer_size=BUFFER)
        _require_once(path, file.schema_arrow.names)
        for batch in file.iter_batches(PIECE, use_threads=False):
            yield from _rows(batch)


def of_stream(path: Path) -> Iterator[dict[str, Any]]:
    """Of a file as datasets writes it. It is mapped, and what was read is given back to the system at once: otherwise
    a process would seem to hold the whole file.

    Raises CorpusError: no pyarrow, no Arrow stream, a column twice.
    """
    with _refusing(path, "an Arrow stream"):
        with open(path, "rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)  # closed with the last batch of it
        reader = ipc.open_stream(pyarrow.BufferReader(pyarrow.py_buffer(mapped)))
        _require_once(path, reader.schema.names)
        for batch in reader:
            for start in range(0, batch.num_rows, PIECE):
                yield from _rows(batch.slice(start, PIECE))
                mapped.madvise(mmap.MADV_DONTNEED)


@contextmanager
def _refusing(path: Path, what: str) -> Iterator[None]:
    if pyarrow is None:
        raise CorpusError(f"{path} needs the package pyarrow, which is not installed: `make data` installs it")
    try:
        yield
    except OSError as error:
        raise CorpusError(f"{path} cannot be read as {what}: {error.strerror or _first_line(error)}") from None
    except (pyarrow.ArrowException, ValueError) as error:
        raise CorpusError(f"{path} cannot be read as {what}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _require_once(path: Path, names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise CorpusError(f"{path} has two columns '{twice}': take one away")


def _rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Raises pyarrow.ArrowInvalid where a damaged file would lead outside of its own memory."""
    batch.validate(full=True)
    names, columns = batch.schema.names, [_values(column) for column in batch.columns]
    for row in range(batch.num_rows):
        yield {name: column[row] for name, column in zip(names, columns, strict=True)}


def _values(column: Any) -> list[Any]:
    """As Python's own values. Lists of numbers are read at once: one by one takes ten times as long."""
    types, kind = pyarrow.types, column.type
    if not (types.is_list(kind) or types.is_large_list(kind)):
        return list(column.to_pylist())
    if not (types.is_integer(kind.value_type) or types.is_floating(kind.value_type)):
        return list(column.to_pylist())
    offsets = column.offsets.to_pylist()
    numbers = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if numbers.null_count:
        return list(column.to_pylist())
    flat, there = numbers.to_numpy().tolist(), column.is_valid().to_pylist()
    ends = [offset - offsets[0] for offset in offsets]
    return [flat[start:end] if is_there else None for start, end, is_there in zip(ends, ends[1:], there, strict=False)]
