"""What a run tells while it trains: lines, per-rank records, and where they are wanted event files and a profile."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import torch
from tqdm import tqdm

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Experiment
from ddp_tokens.devices import described_device
from ddp_tokens.epochs import ends_epoch
from ddp_tokens.event_files import OF_UPDATES, EventFiles
from ddp_tokens.layout import Layout
from ddp_tokens.metrics import counted_in, epoch_summary
from ddp_tokens.profiling import Profiling
from ddp_tokens.progress import WrittenProgress
from ddp_tokens.rank_log import RankLog
from ddp_tokens.training_log import Course, Lines, start_lines
from ddp_tokens.world import World

Record = dict[str, Any]
log = logging.getLogger(__name__)


class Telling:
    """Of one rank and one start of a run; nothing that it does changes what is trained. Use it in a `with`."""

    def __init__(
        self,
        experiment: Experiment,
        at: Layout,
        run: str,
        course: Course,
        state: TrainingState,
        world: World,
        progress: WrittenProgress,
    ) -> None:
        self.course, self.state, self.world, self.progress = course, state, world, progress
        for line in start_lines(experiment, described_device(world.device), world.rank):
            log.info("%s", line)
        self.rank_log = RankLog(at.rank_logs(run), world.rank, state.step, world.size)
        self.lines = Lines(course, experiment.log_interval)
        self.events = EventFiles(at.event_files(run), state.step) if experiment.tensorboard and world.is_main else None
        self.profiling = None
        if experiment.profile:
            progress.marked = torch.profiler.record_function
            self.profiling = Profiling(at.profile(run), world, state.step, course.until)

    def shown(self, updates: Iterable[Record]) -> Iterator[Record]:
        """The updates, with a progress bar where rank 0 has a terminal."""
        disable = None if self.world.is_main else True
        bar: Iterator[Record] = iter(
            tqdm(updates, total=self.course.until, initial=self.state.step, disable=disable, unit="update")
        )
        return bar

    def update(self, record: Record) -> None:
        """Call it right after the update; `record`: the global one."""
        step, lr = record["step"], record.get("lr", self.state.lr)
        self.rank_log.update(record, self.state.rank_history[-1], self.progress)
        rate = self.lines.update(record, lr)
        if self.events:
            self.events.update(step, values_of(record, lr) | {f"{self.course.unit}s_per_second": rate})
        if self.course.windows and ends_epoch(step, self.course.windows):
            self._epoch(step, self.course.windows, lr)
        if self.profiling:
            self.profiling.update(step)

    def _epoch(self, step: int, windows: int, lr: float) -> None:
        """From the history, so that it is whole after a resume inside the epoch."""
        summary = epoch_summary(step // windows, windows, self.state.history[-windows:], lr)
        self.lines.epoch(summary)
        if self.events:
            self.events.epoch(step, summary)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.events:
            self.events.close()
        if self.profiling and kind is None:
            self.profiling.close()


def values_of(record: Mapping[str, Any], lr: float) -> Record:
    """What event files show of an update."""
    values = {"lr": lr} | dict(record)
    if "correct" in record:
        values["accuracy"] = record["correct"] / counted_in(record)
    return {name: values[name] for name in OF_UPDATES if name in values}
