"""What every file in workflow_scripts/ shares: what it logs, and its errors, go to the rule's log."""

import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddp_tokens.errors import UserError
from ddp_tokens.files import write_text
from ddp_tokens.options import USER_ERROR
from ddp_tokens.sources import PACKAGE
from ddp_tokens.watching import end_with, snakemake_of


@contextmanager
def logged(log: str) -> Iterator[None]:
    """Leave in the rule's log what the step logged, from INFO on, and what stopped it: one sentence for a UserError,
    the traceback for anything else.

    The process ends with Snakemake, also when that is killed: it must not write into what the next call builds.
    """
    end_with(snakemake_of(os.environ))
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with _lines_logged() as lines:
        try:
            yield
        except UserError as error:
            write_text(log, "".join([*lines, f"{error}\n"]))
            raise SystemExit(USER_ERROR) from None
        except Exception:
            write_text(log, "".join([*lines, traceback.format_exc()]))
            raise SystemExit(1) from None
        write_text(log, "".join(lines))


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
