"""The training loop: one, for every experiment."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Experiment, Optimizer, Sgd
from ddp_tokens.corpora.rows import Row, supervised_positions
from ddp_tokens.errors import DivergedError
from ddp_tokens.loading import Batches, Loading, windows_of_rank
from ddp_tokens.objectives import objective_of
from ddp_tokens.plan import Plan, microbatches_of
from ddp_tokens.precision import Precision, precision_of
from ddp_tokens.progress import DATA, UNWATCHED, Progress
from ddp_tokens.schedule import Schedule, schedule_of
from ddp_tokens.start_files import SCALER, SCHEDULE
from ddp_tokens.strategies import optimizer_of, share_buffers, updating
from ddp_tokens.strategy_settings import DDP
from ddp_tokens.tensors import whole
from ddp_tokens.workloads import Workload, counter
from ddp_tokens.world import World


def build_optimizer(model: torch.nn.Module, settings: Optimizer, strategy: str = DDP) -> torch.optim.Optimizer:
    """For the wrapped model."""
    common = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if isinstance(settings, Sgd):
        return optimizer_of(model, torch.optim.SGD, common | {"momentum": settings.momentum}, strategy)
    return optimizer_of(model, torch.optim.AdamW, common | {"betas": settings.betas, "eps": settings.eps}, strategy)


@dataclass(frozen=True)
class How:
    """How windows become updates. What of it has a state is in the training state's `extras` too."""

    clip_norm: float | None = None
    precision: Precision = field(default_factory=Precision)
    schedule: Schedule | None = None
    loading: Loading = field(default_factory=Loading)


def how_of(
    experiment: Experiment,
    optimizer: torch.optim.Optimizer,
    windows_per_epoch: Callable[[Experiment], int],
    device: str,
) -> How:
    """`windows_per_epoch`: of the plan, see Prepared."""
    return How(
        experiment.optimizer.clip_norm,
        precision_of(experiment, device),
        schedule_of(experiment, optimizer, windows_per_epoch),
        Loading(experiment.workers, experiment.augmentation, experiment.seed, experiment.timeout_s),
    )


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer, how: How) -> TrainingState:
    """`model`: the bare module."""
    state = TrainingState(model, optimizer)
    if how.schedule is not None:
        state.extras[SCHEDULE] = how.schedule.scheduler
    if how.precision.scaler.is_enabled():
        state.extras[SCALER] = how.precision.scaler
    return state


def train(
    model: torch.nn.Module,
    state: TrainingState,
    workload: Workload,
    plan: Plan,
    rows: Mapping[str, Row],
    world: World,
    until: int,
    how: How | None = None,
    progress: Progress = UNWATCHED,
) -> Generator[dict[str, Any], None, None]:
    """Make updates state.step + 1 to `until`; append to both histories; yield each global record.

    A global record holds `step`, `units` (the denominator), `loss_sum` and `loss`, the mean over all supervised units
    of the window, and besides, each where there is such a thing: `terms`, by name their `sum`, `units`, `mean` and
    `coefficient`, of which `loss` is made then, where `units` and `loss_sum` are those of the first; `correct`, of the
    units, or where these are weighted of the positions `counted`; `lr`, with a schedule; `gradient_norm`, that of the
    window before clipping and without the loss scale, None where it overflowed; `scale`, of the losses, and `skipped`,
    whether an overflow kept the update from being made. A rank's record holds its row ids per microbatch and its sums.
    Raises on every rank alike: EmptyWindowError, before any backward, when a window has no supervised unit;
    before the update is applied, WorkloadError when the workload sums over other units than the corpus counts, and
    DivergedError when the loss or, with `clip_norm`, the gradient's norm is not a number. With a loss scale, only the
    update tells whether it overflowed: DivergedError comes after one that was made with such a norm, or that was
    skipped although its loss was not scaled up.
    """
    model.train()
    how = how or How()
    objective = objective_of(workload)
    windows = windows_of_rank(Batches(workload, plan, rows, world, how.loading), state.step + 1, until)
    for step in range(state.step + 1, until + 1):
        progress.begins_update(step)
        window, name = plan[step - 1], f"window {step}"
        own = microbatches_of(window, world.rank, rows)
        counts = objective.count(own, name, world.device)
        with progress.spent(DATA):
            batches = next(windows)
        right = _Right(workload)
        left = objective.accumulate(model, batches, counts, world, progress, how.precision, right.add)
        sums = objective.sums(name, left, right.count(own), counts, world)
        losses, of_positions = sums[: len(left.sums)], sums[len(left.sums) :]
        _require_finite("loss", sum(losses), step, how.precision.dtype == torch.float16)
        record = {"step": step} | objective.record(losses, counts)
        record |= _Right.told(of_positions, record["units"])
        with updating(model, state.optimizer, progress):
            record |= _update(model, state.optimizer, how, step)
        if step == until:
            share_buffers(model)
        state.rank_history.append({"step": step, "rows": window[world.rank]} | objective.record_of_rank(left, counts))
        state.history.append(record)
        yield record


class _Right:
    """How many supervised units of a window are right, on this rank, where the workload counts them."""

    def __init__(self, workload: Workload) -> None:
        self.counter = counter(workload)
        self.counts: list[torch.Tensor] = []

    def add(self, outputs: Any, batch: Any) -> None:
        if self.counter is not None:
            with torch.no_grad():
                self.counts.append(self.counter.correct(outputs, batch))

    def count(self, own: Sequence[Sequence[Row]]) -> list[float]:
        """Two numbers, how many and of how many positions, or none where nobody counts."""
        if not self.counts:
            return []
        positions = sum(supervised_positions(row) for microbatch in own for row in microbatch)
        return [float(torch.stack(self.counts).sum()), float(positions)]

    @staticmethod
    def told(of_ranks: Sequence[float], units: float) -> dict[str, int]:
        """For the record, from the two numbers over all ranks."""
        if not of_ranks:
            return {}
        correct, counted = map(int, of_ranks)
        return {"correct": correct} | ({"counted": counted} if counted != units else {})


def _update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, how: How, step: int) -> dict[str, Any]:
    """What the record tells of it. An overflow on one rank is in the gradient of all, so all skip the same update."""
    scaler, told = how.precision.scaler, {}
    if how.schedule is not None:
        told["lr"] = optimizer.param_groups[0]["lr"]
    scaler.unscale_(optimizer)
    norm = _clip(model, how.clip_norm)
    if not scaler.is_enabled():
        _require_finite("gradient's norm", norm, step)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if how.clip_norm is not None:
        told["gradient_norm"] = norm if math.isfinite(norm) else None
    if scaler.is_enabled():
        told |= {"scale": scale, "skipped": scaler.get_scale() < scale}
        _require_worth_scaling(scale, told["skipped"], norm, step)
    if how.schedule is not None:
        how.schedule.after(step)
    return told


def _clip(model: torch.nn.Module, clip_norm: float | None) -> float:
    """The norm before clipping; 0 where nothing is clipped.

    After the averaging every rank holds the same bits, and so decides alike.
    """
    if clip_norm is None:
        return 0.0
    return float(whole(torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)))


def _require_finite(name: str, value: float, step: int, in_float16: bool = False) -> None:
    if not math.isfinite(value):
        or_take = ", or set amp_dtype to bfloat16, which has a wider range" * in_float16
        raise DivergedError(
            f"the {name} of update {step} is {value}: lower the learning rate or look at the rows{or_take}"
        )


def _require_worth_scaling(scale: float, skipped: bool, norm: float, step: int) -> None:
    """A gradient that overflows as it is will not do better: without this, every further update would be skipped."""
    if not skipped:
        _require_finite("gradient's norm", norm, step)
    elif scale <= 1:
        raise DivergedError(
            f"the gradient of update {step} overflows float16 although its loss is not scaled up (scale {scale:g}): "
            "lower the learning rate, look at the rows, or set amp_dtype to bfloat16"
        )
