"""Every checkpoint that there is, as a table for the terminal. It tells ages, so no file holds it."""

import time
from collections.abc import Sequence
from pathlib import Path

from ddp_tokens.checks.verdict import Verdict

COLUMNS = ("checkpoint", "step", "world size", "size", "age", "whole")
UNITS = (("d", 86400), ("h", 3600), ("min", 60))


def listed(directories: Sequence[Path], verdicts: Sequence[Verdict], now: float | None = None) -> list[list[str]]:
    """A row for each checkpoint. `now`: seconds since 1970, by default the present moment."""
    moment = time.time() if now is None else now
    return [_row(directory, verdict, moment) for directory, verdict in zip(directories, verdicts, strict=True)]


def _row(directory: Path, verdict: Verdict, now: float) -> list[str]:
    """What a damaged manifest doesn't say is left open."""
    observed = verdict.observed
    written = directory.stat().st_mtime
    problem = verdict.first_difference["problem"] if verdict.first_difference else None
    return [
        verdict.case,
        str(observed.get("step", "?")),
        str(observed.get("world_size", "?")),
        f"{observed['bytes'] / 1e6:.1f} MB",
        age(now - written),
        f"NO: {problem}" if problem else "yes",
    ]


def age(seconds: float) -> str:
    """In the largest unit of which there is a whole one."""
    for name, length in UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {name}"
    return f"{max(0, int(seconds))} s"
