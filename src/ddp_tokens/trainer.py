"""The training loop: one, for every experiment."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Optimizer, Sgd
from ddp_tokens.corpora.rows import Row
from ddp_tokens.errors import DivergedError
from ddp_tokens.normalization import global_token_loss
from ddp_tokens.plan import Plan, microbatches_of
from ddp_tokens.progress import UNWATCHED, Progress
from ddp_tokens.window import accumulate, count_window, sum_window
from ddp_tokens.workloads import Workload
from ddp_tokens.world import World


def build_optimizer(model: torch.nn.Module, settings: Optimizer) -> torch.optim.Optimizer:
    if isinstance(settings, Sgd):
        return torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    return torch.optim.AdamW(
        model.parameters(), lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
    )


def train(
    model: DistributedDataParallel,
    state: TrainingState,
    workload: Workload,
    plan: Plan,
    rows: Mapping[str, Row],
    world: World,
    until: int,
    clip_norm: float | None = None,
    progress: Progress = UNWATCHED,
) -> Iterator[dict[str, Any]]:
    """Make updates state.step + 1 to `until`; append to both histories; yield each global record.

    A global record holds `step`, `units` (the denominator), `loss_sum` and `loss`, the mean over all supervised units
    of the window, and with `clip_norm` the norm of the window's gradient before clipping, `gradient_norm`. A rank's
    record holds its row ids per microbatch, its units and its loss sum.
    Raises on every rank alike: EmptyWindowError, before any backward, when a window has no supervised unit;
    before the update is applied, WorkloadError when the workload sums over other units than the corpus counts, and
    DivergedError when the loss or, with `clip_norm`, the gradient's norm is not a number.
    """
    model.train()
    for step in range(state.step + 1, until + 1):
        progress.begins_update(step)
        window, name = plan[step - 1], f"window {step}"
        microbatches = microbatches_of(window, world.rank, rows)
        local, total = count_window(microbatches, name, world.device)
        batches = [workload.collate(microbatch, world.device) for microbatch in microbatches]
        normalize = partial(global_token_loss, global_count=total, world_size=world.size)
        local_loss, summed = accumulate(model, workload, batches, normalize, progress)
        loss_sum = sum_window(workload, name, local_loss, summed, local, world)
        _require_finite("loss", loss_sum, step)
        record = {"step": step, "units": total, "loss_sum": loss_sum, "loss": loss_sum / total}
        if clip_norm is not None:
            record["gradient_norm"] = _clip(model, clip_norm, step)
        state.optimizer.step()
        state.rank_history.append({"step": step, "rows": window[world.rank], "units": local, "loss_sum": local_loss})
        state.history.append(record)
        yield record


def _clip(model: DistributedDataParallel, clip_norm: float, step: int) -> float:
    """The norm before clipping. After the averaging every rank holds the same bits, and so decides alike."""
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm))
    _require_finite("gradient's norm", norm, step)
    return norm


def _require_finite(name: str, value: float, step: int) -> None:
    if not math.isfinite(value):
        raise DivergedError(f"the {name} of update {step} is {value}: lower the learning rate or look at the rows")
