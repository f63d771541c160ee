"""What every file in workflow_scripts/ shares: what it logs, and its errors, go to the rule's log."""

import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ddp_tokens.files import write_text
from ddp_tokens.options import USER_ERROR, for_users, sentence, theirs
from ddp_tokens.sources import PACKAGE
from ddp_tokens.watching import end_with, snakemake_of


@contextmanager
def logged(log: str) -> Iterator[None]:
    """Leave in the rule's log what the step logged, from INFO on, and what stopped it: one sentence for a UserError or
    a file that cannot be read or written, the traceback for anything else. Where there is no space for the log, both
    stand on standard error.

    The process ends with Snakemake, also when that is killed: it must not write into what the next call builds.
    """
    end_with(snakemake_of(os.environ))
    with _lines_logged() as lines:
        try:
            yield
        except Exception as error:
            why, code = _ended_by(error)
            _leave(log, [*lines, why])
            raise SystemExit(code) from None
        _leave(log, lines)


def _ended_by(error: Exception) -> tuple[str, int]:
    """What the log says of it, and the exit code."""
    told = for_users(error)
    if told is not None:
        return f"{theirs(told)}{sentence(told)}\n", USER_ERROR
    return traceback.format_exc(), 1


def _leave(log: str, lines: Sequence[str]) -> None:
    try:
        write_text(log, "".join(lines))
    except OSError as error:
        sys.stderr.write("".join([*lines, f"{sentence(error)}\n"]))


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.getMessage()}\n")


@contextmanager
def _lines_logged() -> Iterator[list[str]]:
    """What this package logs while the block runs, a line per record."""
    logger, collector = logging.getLogger(PACKAGE), _Collector()
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    try:
        yield collector.lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(collector)
