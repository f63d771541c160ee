"""What a run says while it trains, in lines: rank 0 on the terminal, every rank in a file of its own. No torch.

logs/ranks/RUN/rank-R.log    the lines with their times; each start goes on where an earlier one stopped
"""

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from ddp_tokens.config import Experiment
from ddp_tokens.epochs import place_in_epoch
from ddp_tokens.files import naming
from ddp_tokens.machine import name_of, this_machine
from ddp_tokens.metrics import MetricTracker, counted_in
from ddp_tokens.rank_log import is_cut_off

log = logging.getLogger("ddp_tokens.train")


class Terminal(logging.StreamHandler[TextIO]):
    """Lines stand above the progress bar, where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(f"{self.format(record)}\n", file=self.stream, end="")
            self.flush()
        except Exception:
            self.handleError(record)


class RankFile(logging.FileHandler):
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_cut_off(path):
            with naming(path), path.open("a") as stream:
                stream.write("\n")
        super().__init__(path)
        form = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
        form.converter = time.gmtime
        self.setFormatter(form)

    def handleError(self, record: logging.LogRecord) -> None:
        """A full disk is an error like that of any other file, and names this one."""
        with naming(self.baseFilename):
            raise


def log_on_terminal(is_main: bool) -> None:
    """Standard error. Other ranks than the main one leave it to that one, but for errors."""
    terminal = Terminal(sys.stderr)
    terminal.setLevel(logging.INFO if is_main else logging.ERROR)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[terminal])


def text_log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


@contextmanager
def logged_in(path: Path) -> Iterator[None]:
    """Everything that is logged in the block goes into this file too, and what ends the block before its end."""
    file = RankFile(path)
    logging.getLogger().addHandler(file)
    try:
        yield
    except BaseException as error:
        said = f"ended by {type(error).__name__}: {error}"
        with suppress(OSError):
            file.handle(logging.LogRecord(log.name, logging.ERROR, __file__, 0, said, None, None))
        raise
    finally:
        logging.getLogger().removeHandler(file)
        file.close()


def start_lines(experiment: Experiment, device: str, rank: int) -> list[str]:
    """What rank `rank` is and computes on; `device`: in words."""
    process = f"process {os.getpid()} on {name_of(this_machine())}"
    threads = counted(experiment.threads_per_rank, "thread")
    return [
        f"rank {rank} of {experiment.world_size} ({process}): {device}; backend "
        f"{experiment.resolved_backend}, {threads}, {precision_text(experiment)}"
    ]


def precision_text(experiment: Experiment) -> str:
    if not experiment.use_amp:
        return "float32"
    scaled = "losses are scaled" if experiment.resolved_amp_dtype == "float16" else "losses are not scaled"
    return f"mixed precision of float32 and {experiment.resolved_amp_dtype}, {scaled}"


def counted(number: float, what: str) -> str:
    """Of weights, which need not be whole, six digits."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:,.6g}"
    return f"{shown} {what}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Course:
    """A run's length, as it is told. `steps`: updates of the whole experiment; `until`: where this run ends; `windows`:
    of an epoch, None where there are none. `unit`: what a supervised unit is called.
    """

    steps: int
    until: int
    windows: int | None
    unit: str


class Lines:
    """A line every `interval` updates and at the last."""

    def __init__(self, course: Course, interval: int) -> None:
        self.course, self.interval = course, interval
        self._begin()

    def _begin(self) -> None:
        self.since, self.tracker = time.perf_counter(), MetricTracker()

    def update(self, record: Mapping[str, Any], lr: float) -> float | None:
        """`record`: the update's global record. Where a line is due, units per second since the last line."""
        self.tracker.add(record)
        step = record["step"]
        if step % self.interval and step != self.course.until:
            return None
        rate = self.tracker.units / (time.perf_counter() - self.since)
        log.info("%s", update_line(record, self.course, lr, rate, self.tracker.skipped))
        self._begin()
        return rate

    def epoch(self, summary: Mapping[str, Any]) -> None:
        log.info("%s", epoch_line(summary, self.course))


def update_line(record: Mapping[str, Any], course: Course, lr: float, rate: float, skipped: int | None) -> str:
    """`skipped`: updates since the last line, None where losses have no scale."""
    parts = [f"loss {record['loss']:.4f}{_of_terms(record)} over {counted(record['units'], course.unit)}"]
    if "correct" in record:
        parts.append(f"accuracy {record['correct'] / counted_in(record) * 100:.1f} %")
    parts.append(f"lr {lr:.4g}")
    if "gradient_norm" in record:
        norm = record["gradient_norm"]
        parts.append("gradient norm " + ("not finite" if norm is None else f"{norm:.4g}"))
    if "scale" in record:
        parts.append(f"loss scale {record['scale']:g}")
    if skipped:
        parts.append(f"{counted(skipped, 'update')} skipped")
    parts.append(f"{rate:,.{0 if rate >= 100 else 1}f} {course.unit}s per second")
    return f"update {record['step']} of {course.until}{_place(record['step'], course.windows)}: {', '.join(parts)}"


def epoch_line(summary: Mapping[str, Any], course: Course) -> str:
    """At the end of an epoch."""
    epochs = -(-course.steps // summary["windows"])
    parts = [
        f"loss {summary['loss']:.4f}{_of_terms(summary)} over {counted(summary['units'], course.unit)} in "
        f"{counted(summary['updates'], 'update')}"
    ]
    if "accuracy" in summary:
        parts.append(f"accuracy {summary['accuracy'] * 100:.1f} %")
    parts.append(f"lr {summary['lr']:.4g}")
    if "skipped" in summary:
        parts.append(f"{counted(summary['skipped'], 'update')} skipped")
    return f"epoch {summary['epoch']} of {epochs}: {', '.join(parts)}"


def _of_terms(record: Mapping[str, Any]) -> str:
    """The means that the loss is made of, where it has several terms."""
    means = ", ".join(f"{name} {term['mean']:.4f}" for name, term in record.get("terms", {}).items())
    return f" ({means})" if means else ""


def _place(step: int, windows: int | None) -> str:
    if windows is None:
        return ""
    epoch, window = place_in_epoch(step, windows)
    return f" (epoch {epoch + 1}, window {window + 1} of {windows})"
