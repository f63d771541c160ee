"""What each rank did and how long it took, one JSON line per update. No torch.

logs/ranks/RUN/rank-R.jsonl    each start goes on where an earlier one stopped, and begins with a line of its own

A line of an update holds `step`, `rank_units` (supervised units of this rank in the window), `units` (of all ranks),
`loss_sum` (of this rank), and seconds on the host's clock, which together are the update:

- `data_s`: waiting for the batches of the window, or making them where there are no workers.
- `forward_s`: forward passes and losses.
- `backward_s`: every backward but the last.
- `reducing_backward_s`: the backward of the last microbatch. DDP reduces gradients while it computes; the two overlap,
  so they are not told apart.
- `communication_s`: inside collectives that stand alone (the count, the loss sum), waiting for slower ranks included.
- `optimizer_s`: clipping, the update, the schedule.
- `other_s`: the rest, such as clearing gradients and counting what is right.

On a GPU the host's clock shows when the host waits, not which kernel it waits for.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_tokens.files import json_line, naming
from ddp_tokens.machine import name_of, this_machine
from ddp_tokens.progress import (
    BACKWARD,
    COMMUNICATION,
    DATA,
    FORWARD,
    OPTIMIZER,
    REDUCING_BACKWARD,
    WrittenProgress,
)

MICROSECONDS = 6
PARTS = (DATA, FORWARD, BACKWARD, REDUCING_BACKWARD, COMMUNICATION, OPTIMIZER)
OTHER = "other"


def log_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.jsonl"


def is_cut_off(log: Path) -> bool:
    """Does it end in the midst of a line? A kill does that."""
    return log.exists() and not log.read_bytes().endswith(b"\n")


class RankLog:
    """The file is opened for each line: nothing is held back. The next start ends a line that a kill cut off."""

    def __init__(self, folder: Path, rank: int, step: int, world_size: int) -> None:
        self.path = log_file(folder, rank)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        here = {"host": name_of(this_machine()), "pid": os.getpid()}
        line = json_line({"started": started, **here, "after_step": step, "world_size": world_size})
        self._append("\n" * is_cut_off(self.path) + line)

    def update(self, record: Mapping[str, Any], own: Mapping[str, Any], progress: WrittenProgress) -> None:
        """`record`: the update's global record. `own`: this rank's. Call it right after the update."""
        whole = time.perf_counter() - progress.since_update
        seconds = {f"{part}_s": progress.seconds[part] for part in PARTS}
        seconds[f"{OTHER}_s"] = whole - sum(seconds.values())
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
