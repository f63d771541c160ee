"""The profile as one page that needs nothing else: per rank the operators that cost most, and the trace. No torch."""

import base64
from pathlib import Path
from typing import Any

from ddp_tokens.config import Experiment
from ddp_tokens.files import read_json
from ddp_tokens.layout import Layout, operators_file, trace_file
from ddp_tokens.report import render

RUN = "continuous"
LARGEST_EMBEDDED = 5 * 2**20  # bytes of a trace; base64 makes a third more of it


def profile_page(experiment: Experiment, at: Layout) -> str:
    """Of the continuous run. Without `profile: true`, how to get one: what an earlier run has left is not shown."""
    ranks = range(experiment.world_size) if experiment.profile else []
    return render(
        "profile", experiment.name, wanted=experiment.profile, ranks=[_of_rank(at.profile(RUN), rank) for rank in ranks]
    )


def _of_rank(folder: Path, rank: int) -> dict[str, Any]:
    """`missing`: a file that is not there."""
    table, trace = operators_file(folder, rank), trace_file(folder, rank)
    missing = next((path for path in (table, trace) if not path.is_file()), None)
    about: dict[str, Any] = {"rank": rank, "missing": missing, "trace": trace}
    if missing is None:
        about |= read_json(table) | {"embedded": _embedded(trace), "file_name": f"{RUN}-{trace.name}"}
    return about


def _embedded(trace: Path) -> str | None:
    """As an address that holds the file itself; None where it would make the page too large."""
    if trace.stat().st_size > LARGEST_EMBEDDED:
        return None
    return f"data:application/gzip;base64,{base64.b64encode(trace.read_bytes()).decode()}"
