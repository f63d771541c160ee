"""ddp_tokens.dual with a rank that goes wrong: the variable FAULT says how, and in which function of dual_rank."""

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from ddp_tokens import dual, dual_rank

FAULTY_RANK = "1"


def main(arguments: Sequence[str]) -> int:
    what, _, where = os.environ["FAULT"].partition(" ")
    if os.environ["RANK"] == FAULTY_RANK:
        inject(what, where)
    return dual.main(arguments)


def inject(what: str, where: str) -> None:
    """Instead of dual_rank's function `where`, which the rank would call next."""

    def faulty(*given: Any) -> Any:
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "raise":
            raise ArithmeticError("the rank went wrong")
        if what == "sleep_through_sigterm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while what in ("hang", "sleep_through_sigterm"):
            time.sleep(3600)
        return [24.0, 24.0]

    setattr(dual_rank, where, faulty)
