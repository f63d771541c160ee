"""What each rank did and how long it took, one JSON line per update. No torch.

logs/ranks/RUN/rank-R.jsonl    each start goes on where an earlier one stopped, and begins with a line of its own

A line of an update holds `step`, `rank_units` (supervised units of this rank in the window), `units` (of all ranks),
`loss_sum` (of this rank), and seconds on the host's clock, which together are the update:

- `communication_s`: inside collectives that stand alone (the count, the loss sum), waiting for slower ranks included.
- `reducing_backward_s`: the backward of the last microbatch. DDP reduces gradients while it computes; the two overlap,
  so they are not told apart.
- `compute_s`: all the rest: collate, forward, the other backwards, clipping, the optimizer.

On a GPU the host's clock shows when the host waits, not which kernel it waits for.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_tokens.files import json_line, naming
from ddp_tokens.progress import COMMUNICATION, REDUCING_BACKWARD, WrittenProgress

MICROSECONDS = 6


def log_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.jsonl"


class RankLog:
    """The file is opened for each line: nothing is held back. The next start ends a line that a kill cut off."""

    def __init__(self, folder: Path, rank: int, step: int, world_size: int) -> None:
        self.path = log_file(folder, rank)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        cut_off = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        line = json_line({"started": started, "pid": os.getpid(), "after_step": step, "world_size": world_size})
        self._append("\n" * cut_off + line)

    def update(self, record: Mapping[str, Any], own: Mapping[str, Any], progress: WrittenProgress) -> None:
        """`record`: the update's global record. `own`: this rank's. Call it right after the update."""
        whole = time.perf_counter() - progress.since_update
        communication, backward = (progress.seconds[kind] for kind in (COMMUNICATION, REDUCING_BACKWARD))
        seconds = {
            "compute_s": whole - communication - backward,
            "communication_s": communication,
            "reducing_backward_s": backward,
        }
        counts = {
            "step": record["step"],
            "rank_units": own["units"],
            "units": record["units"],
            "loss_sum": own["loss_sum"],
        }
        self._append(json_line(counts | {name: round(value, MICROSECONDS) for name, value in seconds.items()}))

    def _append(self, text: str) -> None:
        with naming(self.path), open(self.path, "a") as stream:
            stream.write(text)
