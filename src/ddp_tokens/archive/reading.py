"""An archive that somebody else may have made or changed: refused before anything is unpacked, or read safely."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import IO, Any

from ddp_tokens.archive.entries import AGAIN, GIB, LARGEST_READ, MAKE_AGAIN, Entry, entries_of, pieces_of
from ddp_tokens.archive.layout import CONTROLS, DOCUMENT, FORMAT, Document
from ddp_tokens.archive.names import problem_of
from ddp_tokens.archive.told import shown
from ddp_tokens.errors import ArchiveError
from ddp_tokens.files import from_json, replacing

LIMIT_BYTES = 16 * GIB
EXPERIMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Archive:
    """`names`: of all files, sorted. `document`: what archive.json says."""

    path: Path
    names: tuple[str, ...]
    document: Document
    _entries: Mapping[str, Entry]
    _stream: IO[bytes]

    def read(self, name: str) -> bytes:
        """Of a small file. Raises ArchiveError when it is not there, is damaged, or is no small file."""
        return _read(self.path, self._stream, self._entries, name)

    def sha256(self) -> dict[str, str]:
        """Name -> digest of what the archive holds under it, SHA256SUMS included."""
        found = {}
        for name in self.names:
            digest = hashlib.sha256()
            for piece in pieces_of(self.path, self._stream, self._entries[name]):
                digest.update(piece)
            found[name] = digest.hexdigest()
        return found

    def extract(self, folder: Path, below: str = "") -> None:
        """All files whose names begin with `below`, under the same names in `folder`.

        Raises ArchiveError when one is damaged, or would be written through a link or over what is no file; those that
        were written before it stay, each of them whole.
        """
        names = [name for name in self.names if name.startswith(below)]
        for name in names:
            self._require_writable(folder, name)
        for name in names:
            with replacing(folder / name) as stream:
                for piece in pieces_of(self.path, self._stream, self._entries[name]):
                    stream.write(piece)

    def _require_writable(self, folder: Path, name: str) -> None:
        *above, target = [folder.joinpath(*name.split("/")[:end]) for end in range(1, name.count("/") + 2)]
        for path in (*above, target):
            if path.is_symlink():
                raise ArchiveError(f"{self.path}: {name} would be written through the link {path}: {_ELSEWHERE}")
        for path in above:
            if path.exists() and not path.is_dir():
                raise ArchiveError(f"{self.path}: {name} cannot be written, {path} is no folder: {_ELSEWHERE}")
        if target.exists() and not target.is_file():
            raise ArchiveError(f"{self.path}: {name} cannot be written, {target} is no file: {_ELSEWHERE}")


_ELSEWHERE = "unpack it into an empty folder"


@contextmanager
def open_archive(path: Path, limit: int = LIMIT_BYTES) -> Iterator[Archive]:
    """Raises ArchiveError, with one sentence, for what is no archive of a format that is known, or is not safe.

    `limit`: bytes that all files together may have.
    """
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise ArchiveError(f"{path} {what}: name the zip file of an archive")
    try:
        stream = open(path, "rb")  # noqa: SIM115 - closed below; only what opening it raises is meant here
    except OSError as error:
        raise ArchiveError(f"{path} cannot be read ({error.strerror}): make it readable") from None
    with stream:
        entries = {entry.name: entry for entry in entries_of(path, stream, limit)}
        if DOCUMENT not in entries:
            raise ArchiveError(f"{path} holds no {DOCUMENT}: {_what_to_name(entries)}")
        document = _document(path, _read(path, stream, entries, DOCUMENT), entries)
        yield Archive(path, tuple(entries), document, entries, stream)


def _what_to_name(entries: Iterable[str]) -> str:
    folder = next((name for name in sorted(entries) if name.endswith(f"/{DOCUMENT}") and name.count("/") == 1), None)
    if folder is None:
        return "name an archive that this project has made"
    return f"it is in its folder {shown(folder.partition('/')[0])}: zip what is in that folder, without the folder"


def _read(path: Path, stream: IO[bytes], entries: Mapping[str, Entry], name: str) -> bytes:
    if name not in entries:
        raise ArchiveError(f"{path} holds no {name}: {AGAIN}")
    if entries[name].size > LARGEST_READ:
        raise ArchiveError(f"{path}: {name} has {entries[name].size:,} bytes, too many for such a file: {MAKE_AGAIN}")
    return b"".join(pieces_of(path, stream, entries[name]))


def _document(path: Path, data: bytes, entries: Mapping[str, Entry]) -> Document:
    try:
        values = from_json(data.decode())
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{path}: {DOCUMENT} is not valid JSON ({shown(str(error))}): {AGAIN}") from None
    if not isinstance(values, dict):
        raise ArchiveError(f"{path}: {DOCUMENT} holds no fields: {AGAIN}")
    _require_known_format(path, values)
    needed = [of.name for of in fields(Document) if of.default is MISSING and of.default_factory is MISSING]
    missing = [name for name in needed if name not in values]
    if missing:
        raise ArchiveError(f"{path}: {DOCUMENT} lacks {', '.join(missing)}: {AGAIN}")
    document = Document(**{of.name: values[of.name] for of in fields(Document) if of.name in values})
    problem = _problem_of(document) or _problem_of_omitted(document.omitted, entries)
    if problem:
        raise ArchiveError(f"{path}: {DOCUMENT}: {problem}: {AGAIN}")
    return document


def _require_known_format(path: Path, values: Mapping[str, Any]) -> None:
    found = values.get("format")
    if type(found) is not int or found < 1:
        raise ArchiveError(f"{path}: {DOCUMENT} states no format: name an archive that this project has made")
    if found > FORMAT:
        found = min(found, 1000)  # so that it can be read
        version = values.get("version")
        named = f" {version}" if isinstance(version, str) and EXPERIMENT.fullmatch(version) else " that it was made by"
        raise ArchiveError(
            f"{path} was made by a newer version of this project, in format {found}; this version reads {FORMAT}: "
            f"install version{named}"
        )


def _problem_of(document: Document) -> str | None:
    if not _is(EXPERIMENT, document.experiment) or document.experiment == CONTROLS:
        return "field 'experiment' is no name of an experiment"
    if not _is(SHA256, document.comparison_digest):
        return "field 'comparison_digest' is no SHA-256"
    kinds = {"as_expected": (bool, "true or false"), "version": (str, "a text"), "source": (dict, "a mapping")}
    for name, (kind, told) in kinds.items():
        if not isinstance(getattr(document, name), kind):
            return f"field '{name}' must be {told}"
    return None


def _problem_of_omitted(omitted: Any, entries: Mapping[str, Entry]) -> str | None:
    if not isinstance(omitted, dict):
        return "field 'omitted' must be a mapping"
    for name, of in omitted.items():
        if problem_of(name) or name.endswith("/"):
            return f"field 'omitted': {name!r} is no path of a file"
        if name in entries:
            return f"field 'omitted': {name!r} is in the archive"
        known = isinstance(of, dict) and _is(SHA256, of.get("sha256")) and isinstance(of.get("made_by"), str)
        if not known or type(of.get("bytes")) is not int or of["bytes"] < 0:
            return f"field 'omitted': {name!r} lacks sha256, bytes or made_by"
    return None


def _is(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
