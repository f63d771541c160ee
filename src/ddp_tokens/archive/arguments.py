"""What the tools that read archives are called with."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from ddp_tokens.archive.entries import GIB
from ddp_tokens.archive.reading import LIMIT_BYTES


def add_archives(parser: argparse.ArgumentParser, names: Sequence[str] = ("archive",)) -> None:
    """A path for each name, under that name, and `limit`, the bytes that each may unpack to, from --limit-gib."""
    for name in names:
        parser.add_argument(name, type=Path, metavar=f"{name.upper()}.zip")
    parser.add_argument(
        "--limit-gib",
        dest="limit",
        type=_bytes,
        default=LIMIT_BYTES,
        metavar="N",
        help=f"refuse what would unpack to more (default: {LIMIT_BYTES // GIB})",
    )


def _bytes(gib: str) -> int:
    try:
        number = float(gib)
    except ValueError:
        number = 0.0
    if not 0 < number < 2**30:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {gib}")
    return int(number * GIB)
