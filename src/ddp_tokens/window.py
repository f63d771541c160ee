"""One accumulation window: forward and backward of every microbatch, one synchronization, no update."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.corpora.rows import Row, supervised_in
from ddp_tokens.distributed import global_count
from ddp_tokens.errors import EmptyWindowError
from ddp_tokens.workloads import Workload


def count_window(microbatches: Sequence[Sequence[Row]], window: str, device: str = "cpu") -> tuple[int, int]:
    """Supervised units of a window: (of this rank, over all ranks). One all-reduce.

    Raises EmptyWindowError on every rank alike when no rank has any: all ranks see the same sum, so none is left
    waiting in a collective that another never enters.
    """
    local = supervised_in(row for microbatch in microbatches for row in microbatch)
    total = global_count(local, device)
    if total == 0:
        raise EmptyWindowError(
            f"{window} holds no supervised unit on any rank, so it has no mean: remove its rows or label some of them"
        )
    return local, total


def accumulate(
    model: DistributedDataParallel,
    workload: Workload,
    batches: Sequence[Any],
    normalize: Callable[[torch.Tensor], torch.Tensor],
) -> float:
    """Leave in each parameter's .grad the window's gradient, averaged over ranks; return this rank's loss sum.

    `normalize` turns a microbatch's loss sum into what backward() is called on; it knows the window's denominator.
    Forward and backward both stand inside no_sync: DDP decides in forward whether the next backward synchronizes.
    """
    model.zero_grad(set_to_none=True)
    losses = []
    for index, batch in enumerate(batches):
        with nullcontext() if index == len(batches) - 1 else model.no_sync():
            loss, _ = workload.loss_sum(workload.forward(model, batch), batch)
            normalize(loss).backward()
        losses.append(loss.detach())
    return float(torch.stack(losses).double().sum())
