"""What the manifest says besides throughput: where an update's time goes, and how long it takes to learn. No torch."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ddp_tokens.errors import EvidenceError
from ddp_tokens.scaling_rows import MEASURE_AGAIN, Reached, StepParts
from ddp_tokens.step_figure import means_ms

NOT_COUNTED = "the workload does not count what is right in training"
MEANINGS = {
    "step_parts": "ms of an update, mean over the updates after the warm-up and over ranks, and percent of it: data is "
    "waiting for the next batch; forward with the loss, and DDP's broadcast of buffers; backward until the last bucket "
    "of gradients is ready; communication, collectives and waiting for slower ranks as far as no computing hides "
    "them; optimizer with clipping; other, the rest of the loop",
    "time_to_accuracy": "seconds from the initial weights until the share of right rows over the last updates, as many "
    "as scaling.windows, was scaling.accuracy; the median of the repeats, with the shortest and the longest",
}


def further(parts: Sequence[StepParts], reached: Sequence[Reached], accuracy: float) -> dict[str, Any]:
    """The manifest's fields step_parts, time_to_accuracy, and what both mean. Raises EvidenceError when updates are
    missing.
    """
    if not parts:
        raise EvidenceError(f"step_parts.jsonl holds no update; {MEASURE_AGAIN}")
    return {
        "step_parts": {f"{processes}proc": _told(of) for processes, of in means_ms(parts).items()},
        "time_to_accuracy": _times(reached, accuracy),
        "further_meanings": MEANINGS,
    }


def _told(parts: Mapping[str, float]) -> dict[str, Any]:
    whole = sum(parts.values())
    percent = {part: 100 * milliseconds / whole for part, milliseconds in parts.items()}
    return {"update_ms": whole, "ms": dict(parts), "percent": percent}


def _times(reached: Sequence[Reached], accuracy: float) -> dict[str, Any]:
    """Of each number of processes; `reached` false where a run came to the plan's end without it."""
    if not reached:
        return {"accuracy": None, "reason": NOT_COUNTED}
    found: dict[str, Any] = {"accuracy": accuracy}
    for processes in sorted({run.processes for run in reached}):
        runs = [run for run in reached if run.processes == processes]
        seconds = [run.seconds for run in runs]
        found[f"{processes}proc"] = {
            "reached": all(run.reached for run in runs),
            "repeats": len(runs),
            "updates": median(run.updates for run in runs),
            "seconds": median(seconds),
            "seconds_min": min(seconds),
            "seconds_max": max(seconds),
        }
    return found
