"""A zip with the same bytes for the same contents: names sorted, times and permissions fixed, nothing compressed.

Almost all of it is tensors, which hardly shrink; and another zlib would compress to other bytes.
"""

import shutil
import stat
import zipfile
from pathlib import Path

from ddp_tokens.archive.contents import Contents
from ddp_tokens.files import replacing

FIRST_TIME = (1980, 1, 1, 0, 0, 0)
READABLE = stat.S_IFREG | 0o644


def write_zip(path: Path, contents: Contents) -> None:
    with replacing(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, source in sorted(contents.items()):
            _add(archive, name, source)


def _add(archive: zipfile.ZipFile, name: str, source: bytes | Path) -> None:
    entry = zipfile.ZipInfo(name, FIRST_TIME)
    entry.create_system = 3  # Unix, wherever it is written
    entry.external_attr = READABLE << 16
    if isinstance(source, bytes):
        archive.writestr(entry, source)
        return
    entry.file_size = source.stat().st_size
    with open(source, "rb") as origin, archive.open(entry, "w") as target:
        shutil.copyfileobj(origin, target, 1 << 20)
