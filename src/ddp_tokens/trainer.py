"""The training loop: one, for every experiment."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.config import Optimizer
from ddp_tokens.corpora.rows import Row
from ddp_tokens.distributed import sum_over_ranks
from ddp_tokens.errors import DivergedError
from ddp_tokens.normalization import global_token_loss
from ddp_tokens.plan import Plan, microbatches_of
from ddp_tokens.window import accumulate, count_window
from ddp_tokens.workloads import Workload
from ddp_tokens.world import World


def build_optimizer(model: torch.nn.Module, settings: Optimizer) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)


def train(
    model: DistributedDataParallel,
    state: TrainingState,
    workload: Workload,
    plan: Plan,
    rows: Mapping[str, Row],
    world: World,
    until: int,
) -> Iterator[dict[str, Any]]:
    """Make updates state.step + 1 to `until`; append to both histories; yield each global record.

    A global record holds `step`, `units` (the denominator), `loss_sum` and `loss`, the mean over all supervised units
    of the window. A rank's record holds its row ids per microbatch, its units and its loss sum.
    Raises on every rank alike: EmptyWindowError, before any backward, when a window has no supervised unit;
    DivergedError, before the update is applied, when its loss is not a number.
    """
    model.train()
    for step in range(state.step + 1, until + 1):
        window = plan[step - 1]
        microbatches = microbatches_of(window, world.rank, rows)
        local, total = count_window(microbatches, f"window {step}", world.device)
        batches = [workload.collate(microbatch, world.device) for microbatch in microbatches]
        local_loss = accumulate(
            model, workload, batches, partial(global_token_loss, global_count=total, world_size=world.size)
        )
        [loss_sum] = sum_over_ranks([local_loss], world.device)
        if not math.isfinite(loss_sum):
            raise DivergedError(f"the loss of update {step} is {loss_sum}: lower the learning rate or look at the rows")
        state.optimizer.step()
        record = {"step": step, "units": total, "loss_sum": loss_sum, "loss": loss_sum / total}
        state.rank_history.append({"step": step, "rows": window[world.rank], "units": local, "loss_sum": local_loss})
        state.history.append(record)
        yield record
