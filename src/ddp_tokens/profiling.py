"""A profile of a few updates, by rank: torch's trace, and a table of the operators that cost most.

logs/profile/RUN/rank-R.json.gz           Chrome trace: opens in https://ui.perfetto.dev and chrome://tracing
logs/profile/RUN/rank-R.operators.json    its table

A start of a run passes over its first two updates, which warm up, and profiles the next three; with fewer than five
updates to make it passes over one, or none of one, and profiles up to three of the others. A start that goes on after
an interruption writes anew. The profiler watches and computes nothing, so the run's results are the same bits.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, schedule

from ddp_tokens.files import naming, write_json
from ddp_tokens.layout import operators_file, trace_file
from ddp_tokens.world import World

PASSED_OVER, PROFILED, LISTED = 2, 3, 20
# Kineto tells on standard error when it starts and stops. On a GPU it may have errors to tell, so there it stays on.
SILENT = ("KINETO_LOG_LEVEL", "6")


def profiled_updates(step: int, until: int) -> range:
    """Those that a start after update `step` profiles."""
    passed_over = min(PASSED_OVER, max(1, until - step - PROFILED), until - step - 1)
    first = step + 1 + passed_over
    return range(first, min(first + PROFILED, until + 1))


class Profiling:
    """Begins with the object. Call `update` after each update, and `close` at the end, in good and bad cases."""

    def __init__(self, folder: Path, world: World, step: int, until: int) -> None:
        self.folder, self.world = folder, world
        self.updates = profiled_updates(step, until)
        self.done: list[int] = []
        warm_up = self.updates[0] - step - 1
        if world.device == "cpu":
            os.environ.setdefault(*SILENT)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Profiler won't be using warmup")  # a run of one update
            phases = schedule(wait=max(0, warm_up - 1), warmup=min(1, warm_up), active=len(self.updates), repeat=1)
        watched = [ProfilerActivity.CPU]
        if world.device.startswith("cuda"):
            watched.append(ProfilerActivity.CUDA)
        self._profile: profile | None = profile(
            activities=watched,
            schedule=phases,
            on_trace_ready=self._write,
        )
        self._profile.start()

    def update(self, step: int) -> None:
        if self._profile is None:
            return
        if step in self.updates:
            self.done.append(step)
        self._profile.step()
        if step == self.updates[-1]:
            self.close()

    def close(self) -> None:
        """Writes what there is where the run is stopped in the midst of the profiled updates."""
        running, self._profile = self._profile, None
        if running is not None:
            running.stop()

    def _write(self, running: profile) -> None:
        if not self.done:
            return
        trace = trace_file(self.folder, self.world.rank)
        trace.parent.mkdir(parents=True, exist_ok=True)
        unfinished = trace.with_name(f".{trace.name}")
        with naming(unfinished):
            running.export_chrome_trace(str(unfinished))
        os.replace(unfinished, trace)
        about = {"rank": self.world.rank, "updates": self.done, "device": self.world.device}
        write_json(
            operators_file(self.folder, self.world.rank),
            about | operators_table(running.key_averages(), self.world.device.startswith("cuda")),
        )


def operators_table(averages: Sequence[Any], on_cuda: bool) -> dict[str, Any]:
    """The operators that cost most by their own time: on the GPU where there is one, else on the CPU.

    `averages`: as torch gives them. Ranges that Python marks (the parts of an update, the optimizer) hold operators and
    are none; a kernel's time is that of the operator that launched it.
    """
    operators = [event for event in averages if not event.is_user_annotation and "CPU" in str(event.device_type)]
    own = "self_device_time_total" if on_cuda else "self_cpu_time_total"
    total = sum(getattr(event, own) for event in operators)
    costly = sorted(operators, key=lambda event: (-getattr(event, own), event.key))
    rows = [_row(event, getattr(event, own) / total if total else 0.0, on_cuda) for event in costly[:LISTED]]
    return {"operators": rows, "all_operators": len(operators), "all_self_ms": _ms(total)}


def _row(event: Any, share: float, on_cuda: bool) -> dict[str, Any]:
    row = {
        "name": event.key,
        "calls": event.count,
        "self_cpu_ms": _ms(event.self_cpu_time_total),
        "total_cpu_ms": _ms(event.cpu_time_total),
    }
    if on_cuda:
        row |= {
            "self_cuda_ms": _ms(event.self_device_time_total),
            "total_cuda_ms": _ms(event.device_time_total),
        }
    return row | {"share": round(share, 4)}


def _ms(microseconds: float) -> float:
    return round(microseconds / 1000, 3)
