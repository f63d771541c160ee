"""Files written whole or not at all, and read with an error that names them."""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ddp_tokens.errors import EvidenceError


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """An OSError of the block that names no file, as that of a write to a full disk, names this one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path | str) -> Iterator[IO[bytes]]:
    """Yield a temporary file that takes the name `path`, synced to disk, once the block ends without error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), open(temporary, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(path: Path | str) -> None:
    """Make the names inside a directory durable (fsync of the file alone does not)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path | str, data: bytes) -> None:
    with replacing(path) as stream:
        stream.write(data)


def write_text(path: Path | str, text: str) -> None:
    write_bytes(path, text.encode())


def to_json(value: Any, sort_keys: bool = True) -> str:
    return json.dumps(value, indent=2, sort_keys=sort_keys, allow_nan=False) + "\n"


def write_json(path: Path | str, value: Any) -> None:
    write_text(path, to_json(value))


def write_json_list(path: Path | str, document: Mapping[str, Any], field: str, items: Iterable[Any]) -> None:
    """The bytes that write_json writes of `document` with the list of the items under `field`, which sorts last. The
    items are written as they come: there may be more than fit in memory.
    """
    before, after = to_json({**document, field: []}).rsplit("[]", 1)
    separator = "["
    with replacing(path) as stream:
        stream.write(before.encode())
        for item in items:
            indented = to_json(item).rstrip().replace("\n", "\n    ")  # inside a string a line break is written as \\n
            stream.write(f"{separator}\n    {indented}".encode())
            separator = ","
        stream.write(("[]" if separator == "[" else "\n  ]").encode())
        stream.write(after.encode())


def write_json_lines(path: Path | str, records: Iterable[dict[str, Any]]) -> None:
    write_text(path, "".join(json_line(record) for record in records))


def json_line(record: dict[str, Any]) -> str:
    return json.dumps(record, sort_keys=True, allow_nan=False) + "\n"


def read_json(path: Path | str) -> Any:
    """Raise EvidenceError, naming the file, when it is missing or is not JSON; see from_json."""
    try:
        return from_json(Path(path).read_text())
    except FileNotFoundError:
        raise EvidenceError(f"{path} does not exist; run the step that makes it") from None
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{path} is not valid JSON ({error}); delete it and make it again") from None


def from_json(text: str) -> Any:
    """Raise ValueError for what to_json does not write and json.loads takes: NaN, infinities, a field twice."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=_each_once)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the field {name} stands there twice")
            seen.add(name)
    return fields


def read_json_lines(path: Path | str) -> list[dict[str, Any]]:
    """Raise EvidenceError, naming file and line, when a line is not JSON."""
    try:
        lines = Path(path).read_text().splitlines()
    except FileNotFoundError:
        raise EvidenceError(f"{path} does not exist; run the step that makes it") from None
    return [parsed_line(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def parsed_line(line: str, where: str) -> dict[str, Any]:
    """Raise EvidenceError, saying `where`, when it is not JSON."""
    try:
        record: dict[str, Any] = from_json(line)
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"{where}: not valid JSON ({error})") from None
    return record


def sha256(path: Path | str) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sha256_of_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_of_json(value: Any) -> str:
    """The same for equal values, whether they were just computed or read from a file."""
    return sha256_of_bytes(to_json(value).encode())


def digests(paths: Iterable[Path | str]) -> dict[str, str]:
    """Path -> SHA-256, sorted by path: the `evidence` of a verdict."""
    return {str(path): sha256(path) for path in sorted(paths, key=str)}
