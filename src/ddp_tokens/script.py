"""What every file in workflow_scripts/ shares: its errors go to the rule's log."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddp_tokens.errors import UserError
from ddp_tokens.files import write_text
from ddp_tokens.options import USER_ERROR
from ddp_tokens.watching import end_with, snakemake_of


@contextmanager
def logged(log: str) -> Iterator[None]:
    """Leave in the rule's log what stopped the step: one sentence for a UserError, the traceback for anything else.

    The process ends with Snakemake, also when that is killed: it must not write into what the next call builds.
    """
    end_with(snakemake_of(os.environ))
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except UserError as error:
        write_text(log, f"{error}\n")
        raise SystemExit(USER_ERROR) from None
    except Exception:
        write_text(log, traceback.format_exc())
        raise SystemExit(1) from None
    write_text(log, "")
