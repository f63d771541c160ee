"""The windows of an experiment as one rank trains on them, how long its updates take, and plain DDP to compare with.

What the scripts in examples/ start from. Dropout is off, so that each trainer computes the same gradient or another one
for a reason.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Self

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from ddp_tokens.config import Experiment
from ddp_tokens.corpora.rows import supervised_in
from ddp_tokens.distributed import global_count
from ddp_tokens.errors import ConfigError, EvidenceError
from ddp_tokens.inputs import Prepared, initial_model, read_prepared
from ddp_tokens.layout import Layout
from ddp_tokens.normalization import global_token_loss
from ddp_tokens.plan import microbatches_of
from ddp_tokens.trainer import build_optimizer
from ddp_tokens.workloads import Workload, load
from ddp_tokens.world import World, require_size

AUDITED = 2  # windows, before the ones that are timed
TIMED = 20
Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Windows:
    """The first AUDITED + TIMED windows of the plan, on the CPU."""

    experiment: Experiment
    at: Layout
    prepared: Prepared
    workload: Workload
    world: World

    @classmethod
    def read(cls, experiment: Experiment, at: Layout, world: World) -> Self:
        """Raises ConfigError, CorpusError, PlanError or LaunchError where they are not there for these ranks."""
        require_size(world, experiment.world_size)
        if experiment.workload != "token_labels":
            raise ConfigError(
                f"{experiment.name}: workload is {experiment.workload}: examples label tokens; leave it out"
            )
        prepared = read_prepared(experiment, at)
        if len(prepared.plan) < AUDITED + TIMED:
            raise ConfigError(
                f"{at.plan} holds {len(prepared.plan)} windows, of {AUDITED + TIMED} that are needed: raise steps and "
                "prepare again"
            )
        return cls(experiment, at, prepared, load(experiment.workload), world)

    def model(self) -> torch.nn.Module:
        """A new one with the initial weights, without dropout: forward(tokens, padding) gives logits."""
        without = self.experiment.model.model_copy(update={"dropout": 0.0})
        experiment = self.experiment.model_copy(update={"model": without})
        return initial_model(experiment, self.workload, self.prepared.shape, self.at.initial, "cpu", torch.float32)

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, self.experiment.optimizer)

    def of_rank(self) -> Iterator[list[Batch]]:
        """For each window, this rank's microbatches."""
        for window in self.prepared.plan[: AUDITED + TIMED]:
            microbatches = microbatches_of(window, self.world.rank, self.prepared.rows)
            made = [self.workload.collate(rows) for rows in microbatches]
            yield [{"tokens": one.tokens, "padding": one.padding, "labels": one.labels} for one in made]

    def loader(self) -> DataLoader[Batch]:
        """This rank's microbatches of all windows, one by one."""
        batches = [batch for window in self.of_rank() for batch in window]
        return DataLoader(batches, batch_size=None, generator=torch.Generator())

    def units(self, index: int) -> int:
        """Supervised units of the window `index`, counted from 0, over all ranks."""
        window = self.prepared.plan[index]
        return int(supervised_in(self.prepared.rows[row] for of_rank in window for batch in of_rank for row in batch))

    def per_second(self, clock: "Clock") -> float:
        """Supervised tokens of the timed windows by the seconds that a clock has found them to take."""
        units = sum(self.units(index) for index in range(AUDITED, AUDITED + TIMED))
        return units / clock.seconds(AUDITED, AUDITED + TIMED)


class Clock(AbstractContextManager["Clock"]):
    """When each update ended of the first optimizer that makes one inside the block."""

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._of: torch.optim.Optimizer | None = None

    def __enter__(self) -> Self:
        self._hook = register_optimizer_step_post_hook(self._after)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def seconds(self, after: int, until: int) -> float:
        """From the end of update `after` to that of update `until`, counted from 1. Raises EvidenceError where there
        were other than `until`.
        """
        if len(self._ends) != until:
            raise EvidenceError(
                f"{len(self._ends)} updates were made where {until} were planned: train on all windows once"
            )
        return self._ends[until - 1] - self._ends[after - 1]

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._of = self._of or optimizer
        if self._of is optimizer:
            self._ends.append(perf_counter())


def train_bare(windows: Windows) -> Clock:
    """All windows by plain DDP with the exact formula, W * S_r / N. Every rank calls this, in a process group."""
    model = DistributedDataParallel(windows.model())
    optimizer = windows.optimizer(model)
    with Clock() as clock:
        for batches in windows.of_rank():
            total = global_count(sum(int((batch["labels"] != -100).sum()) for batch in batches))
            for batch in batches:
                with nullcontext() if batch is batches[-1] else model.no_sync():
                    logits = model(batch["tokens"], batch["padding"])
                    loss = loss_sum(logits, batch["labels"])
                    global_token_loss(loss, total, windows.world.size).backward()
            optimizer.step()
            optimizer.zero_grad()
    return clock


def loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of the supervised tokens, whose label is not -100."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
