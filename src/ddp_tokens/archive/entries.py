"""The entries of a zip that somebody else may have made: all refused or accepted before one of them is read.

zipfile reads the list of entries, and nothing more: it takes what another program would unpack differently.
"""

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ddp_tokens.archive.layout import INPUTS
from ddp_tokens.archive.names import clash_in, problem_of
from ddp_tokens.errors import ArchiveError

MOST_ENTRIES = 100_000
PIECE = 1 << 20
MIB, GIB = 2**20, 2**30
# An archive's own zip packs nothing; of what another program packs again, Snakemake's provenance shrinks most, to a
# 17th, text to a 10th, tensors hardly, those with nearly only zeros more. Deflate can pack 1,032 bytes as one.
MOST_TIMES = 200
# Those that are parsed or shown whole, which can take 40 times as much memory (and 3 times where they are honest).
READ_WHOLE = (".json", ".yaml", ".yml", ".csv", ".html", ".md", ".svg")
LARGEST_READ = GIB // 4
ENCRYPTED = 0x1 | 0x40
UTF8 = 0x800
METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
LOCAL = struct.Struct("<4s5H3I2H")  # signature, version, flags, method, time, date, CRC, two sizes, two lengths
SIGNATURE = b"PK\x03\x04"
# What reading a list of entries that is damaged can end as.
DAMAGED = (zipfile.BadZipFile, struct.error, ValueError, OSError, EOFError, RuntimeError, ArithmeticError)
AGAIN = "get it again from where it came"
MAKE_AGAIN = "do not unpack it, and ask whoever made it"
PACK_LESS = "where you trust whoever made it, zip its files again uncompressed (zip -0)"


@dataclass(frozen=True)
class Entry:
    """A file of the zip. `at`: where its bytes begin, `packed` of them, which make up `size`."""

    name: str
    at: int
    packed: int
    size: int
    crc: int
    deflated: bool


def entries_of(path: Path, stream: IO[bytes], limit: int) -> list[Entry]:
    """Files only, sorted by name. Raises ArchiveError."""
    try:
        with zipfile.ZipFile(stream) as archive:
            listed, end = archive.infolist(), archive.start_dir
    except DAMAGED as error:
        raise ArchiveError(f"{path} is no zip file, or is damaged or cut off ({error}): {AGAIN}") from None
    _require_few(path, listed, limit)
    for info in listed:
        problem = _problem_of(info)
        if problem:
            raise ArchiveError(f"{path}: {_shown(info)} {problem}: {MAKE_AGAIN}")
        _require_small(path, info)
    _require_packed_little(path, sum(info.compress_size for info in listed), sum(info.file_size for info in listed))
    clash = clash_in(info.filename for info in listed)
    if clash is not None:
        raise ArchiveError(f"{path}: {clash!r} is there twice, as two files or as a file and a folder: {MAKE_AGAIN}")
    found = _placed(path, stream, listed, end)
    return sorted((entry for entry in found if not entry.name.endswith("/")), key=lambda entry: entry.name)


def pieces_of(path: Path, stream: IO[bytes], entry: Entry) -> Iterator[bytes]:
    """What the entry holds, checked against its size and CRC with the last piece. Raises ArchiveError."""
    crc, size = 0, 0
    for piece in _unpacked(path, stream, entry):
        crc, size = zlib.crc32(piece, crc), size + len(piece)
        if size > entry.size:
            raise _damaged(path, entry, f"it holds more than the {entry.size:,} bytes that it states")
        yield piece
    if size < entry.size:
        raise _damaged(path, entry, f"it holds {size:,} of the {entry.size:,} bytes that it states")
    if crc != entry.crc:
        raise _damaged(path, entry, "its CRC is not the one that it states")


def _unpacked(path: Path, stream: IO[bytes], entry: Entry) -> Iterator[bytes]:
    at, end = entry.at, entry.at + entry.packed
    unpack = zlib.decompressobj(-zlib.MAX_WBITS) if entry.deflated else None
    while at < end:
        stream.seek(at)  # each time: several entries may be read in turn
        packed = stream.read(min(PIECE, end - at))
        if not packed:
            raise _damaged(path, entry, "the zip file ends inside it")
        at += len(packed)
        if unpack is None:
            yield packed
            continue
        try:
            piece = b"-"
            while piece and not unpack.eof:  # with no input left, there may be more to come
                piece = unpack.decompress(packed, PIECE)
                yield piece
                packed = unpack.unconsumed_tail
        except zlib.error as error:
            raise _damaged(path, entry, str(error)) from None
        if packed or unpack.unused_data:
            raise _damaged(path, entry, "something stands behind its end")
    if unpack is not None and not unpack.eof:
        raise _damaged(path, entry, "it has no end")


def _damaged(path: Path, entry: Entry, problem: str) -> ArchiveError:
    return ArchiveError(f"{path}: {entry.name} is damaged ({problem}): {AGAIN}")


def _require_few(path: Path, listed: Sequence[zipfile.ZipInfo], limit: int) -> None:
    if len(listed) > MOST_ENTRIES:
        raise ArchiveError(f"{path} has {len(listed):,} entries, more than {MOST_ENTRIES:,}: {MAKE_AGAIN}")
    size = sum(info.file_size for info in listed)
    if size > limit:
        raise ArchiveError(
            f"{path} would unpack to {size:,} bytes ({size / GIB:.2f} GiB), more than {limit / GIB:g} GiB: if you "
            f"expect it to be that large, allow it with --limit-gib {-(-size // GIB)}"
        )


def _require_small(path: Path, info: zipfile.ZipInfo) -> None:
    """By what the list says: no entry is read beyond it."""
    where = f"{path}: {_shown(info)}"
    _require_packed_little(where, info.compress_size, info.file_size)
    is_read = info.filename.lower().endswith(READ_WHOLE) and not info.filename.startswith(f"{INPUTS}/")
    if is_read and info.file_size > LARGEST_READ:
        large = f"has {info.file_size:,} bytes, more than the {LARGEST_READ // MIB} MiB of a file that is read at once"
        raise ArchiveError(f"{where} {large}: {MAKE_AGAIN}")


def _require_packed_little(where: Path | str, packed: int, size: int) -> None:
    """Of one entry, or of all together: many small ones are as much as a large one."""
    if size > MIB and size > MOST_TIMES * packed:
        raise ArchiveError(
            f"{where} would unpack {packed:,} bytes to {size:,}, more than {MOST_TIMES} times as many: {PACK_LESS}"
        )


def _shown(info: zipfile.ZipInfo) -> str:
    return repr(info.orig_filename[:200])


def _problem_of(info: zipfile.ZipInfo) -> str | None:
    """What is wrong with an entry by the list alone, as the end of a sentence."""
    problem = problem_of(info.orig_filename)
    if problem:
        return problem
    if info.filename != info.orig_filename:
        return f"is also called {info.filename!r}"
    if info.flag_bits & ENCRYPTED:
        return "is encrypted, and nothing in an archive of this project is"
    if info.compress_type not in METHODS:
        return f"is compressed by method {info.compress_type}, neither stored nor deflated"
    if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
        return f"is stored as {info.compress_size:,} bytes and states {info.file_size:,}"
    is_folder = info.filename.endswith("/")
    if is_folder and info.file_size:
        return "is a folder and holds bytes"
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        return "is a symbolic link"
    if kind not in (0, stat.S_IFDIR if is_folder else stat.S_IFREG):
        return "is neither a file nor a folder"
    return None


def _placed(path: Path, stream: IO[bytes], listed: Sequence[zipfile.ZipInfo], end: int) -> list[Entry]:
    """With where each begins. Raises ArchiveError where a header says otherwise than the list, or entries overlap: then
    a few bytes could unpack to any number.
    """
    found, free = [], 0
    for info in sorted(listed, key=lambda info: info.header_offset):
        if info.header_offset < free:
            raise ArchiveError(f"{path}: {_shown(info)} overlaps the entry before it: {MAKE_AGAIN}")
        at = _start_of(path, stream, info, end)
        free = at + info.compress_size
        if free > end:
            raise ArchiveError(f"{path}: {_shown(info)} does not end before the list of entries: {AGAIN}")
        deflated = info.compress_type == zipfile.ZIP_DEFLATED
        found.append(Entry(info.filename, at, info.compress_size, info.file_size, info.CRC, deflated))
    return found


def _start_of(path: Path, stream: IO[bytes], info: zipfile.ZipInfo, end: int) -> int:
    stream.seek(min(info.header_offset, end))  # no file can be as long as an offset may say
    header = stream.read(LOCAL.size)
    if len(header) == LOCAL.size:
        signature, _, flags, method, *_, name_length, extra_length = LOCAL.unpack(header)
        name = info.orig_filename.encode("utf-8" if info.flag_bits & UTF8 else "cp437")
        own = (signature, stream.read(name_length), method, flags & ENCRYPTED)
        if own == (SIGNATURE, name, info.compress_type, 0):
            return info.header_offset + LOCAL.size + int(name_length) + int(extra_length)
    raise ArchiveError(f"{path}: what stands before {_shown(info)} is not what the list of entries says: {AGAIN}")
