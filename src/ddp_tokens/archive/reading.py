"""An archive that somebody else may have made or changed: refused before anything is unpacked, or read safely."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddp_tokens.archive.layout import Document

LIMIT_BYTES = 16 * 2**30


@dataclass(frozen=True)
class Archive:
    """`names`: of all files, sorted. `document`: what archive.json says."""

    path: Path
    names: tuple[str, ...]
    document: Document
    _zip: zipfile.ZipFile

    def read(self, name: str) -> bytes:
        raise NotImplementedError

    def sha256(self) -> dict[str, str]:
        """Name -> digest of what the archive holds under it, SHA256SUMS included."""
        raise NotImplementedError

    def extract(self, folder: Path, below: str = "") -> None:
        """All files whose names begin with `below`, under the same names in `folder`."""
        raise NotImplementedError


@contextmanager
def open_archive(path: Path, limit: int = LIMIT_BYTES) -> Iterator[Archive]:
    """Raises ArchiveError, with one sentence, for what is no archive of a format that is known, or is not safe."""
    raise NotImplementedError
