"""What every file in workflow_scripts/ shares: its errors go to the rule's log."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddp_tokens.errors import UserError
from ddp_tokens.files import write_text
from ddp_tokens.options import USER_ERROR


@contextmanager
def logged(log: str) -> Iterator[None]:
    """Leave in the rule's log what stopped the step: one sentence for a UserError, the traceback for anything else."""
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
