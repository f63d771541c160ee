"""One accumulation window: forward and backward of every microbatch, one synchronization, no update."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ddp_tokens.corpora.rows import Row, supervised_in
from ddp_tokens.distributed import denominator_over_ranks, sum_over_ranks
from ddp_tokens.errors import EmptyWindowError, WorkloadError
from ddp_tokens.precision import Precision
from ddp_tokens.progress import BACKWARD, FORWARD, REDUCING_BACKWARD, UNWATCHED, Progress
from ddp_tokens.strategies import GATHERING_BACKWARD, GATHERING_FORWARD, gathers, reduction_of, unsynchronized
from ddp_tokens.workloads import Workload, require_same_units
from ddp_tokens.world import World

BUFFERS = "forward, with the broadcast of the buffers"
FULL = Precision()
# Of a microbatch, from outputs and batch: the sums of its losses, and the units of each.
Summed = Callable[[Any, Any], tuple[tuple[torch.Tensor, ...], tuple[float, ...]]]
Observe = Callable[[Any, Any], None]


def seeing_nothing(outputs: Any, batch: Any) -> None:
    pass


def count_window(microbatches: Sequence[Sequence[Row]], window: str, device: str = "cpu") -> tuple[float, float]:
    """Supervised units of a window: (of this rank, over all ranks), whole numbers where nothing is weighted. One
    all-reduce, in float64.

    Raises EmptyWindowError on every rank alike when no rank has any: all ranks see the same sum, so none is left
    waiting in a collective that another never enters.
    """
    local = supervised_in(row for microbatch in microbatches for row in microbatch)
    total = denominator_over_ranks(local, device)
    if total == 0:
        raise EmptyWindowError(
            f"{window} holds no supervised unit on any rank, so it has no mean: remove its rows or label some of them"
        )
    return local, total


def accumulate(
    model: torch.nn.Module,
    workload: Workload,
    batches: Sequence[Any],
    normalize: Callable[[torch.Tensor], torch.Tensor],
    progress: Progress = UNWATCHED,
    precision: Precision = FULL,
    observe: Observe = seeing_nothing,
) -> tuple[float, float]:
    """Leave in each parameter's .grad the window's gradient, averaged over ranks.

    Returns this rank's loss sum, and the number of units that the workload says it summed over: for sums_of_window.

    `normalize` turns a microbatch's loss sum into what backward() is called on; it knows the window's denominator.
    """

    def summed(outputs: Any, batch: Any) -> tuple[tuple[torch.Tensor, ...], tuple[float, ...]]:
        loss, units = workload.loss_sum(outputs, batch)
        return (loss,), (units,)

    [loss_sum], [units] = accumulate_sums(
        *(model, workload, summed, batches, lambda sums: normalize(*sums), progress, precision, observe)
    )
    return loss_sum, units


def accumulate_sums(
    model: torch.nn.Module,
    workload: Workload,
    summed: Summed,
    batches: Sequence[Any],
    normalize: Callable[[tuple[torch.Tensor, ...]], torch.Tensor],
    progress: Progress = UNWATCHED,
    precision: Precision = FULL,
    observe: Observe = seeing_nothing,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The same of any number of sums, which `summed` makes of a microbatch and `normalize` of all of them one loss.

    `model`: as strategies.wrap gives it. Where it is sharded, all ranks need equally many batches.
    Where `precision` scales losses, the gradient is scaled too. `observe` is shown each microbatch's outputs and batch.
    Forward and backward both stand inside no_sync: DDP decides in forward whether the next backward synchronizes.
    """
    model.zero_grad(set_to_none=True)
    losses, units = [], []
    for index, batch in enumerate(batches):
        is_last = index == len(batches) - 1
        progress.begins_microbatch(index + 1)
        with nullcontext() if is_last else unsynchronized(model):
            with _going_forward(model, index, progress), precision.autocast():
                outputs = workload.forward(model, batch)
                sums, units_of_batch = summed(outputs, batch)
            for loss in sums:
                _require_precise(loss, precision, "loss_terms" if hasattr(workload, "TERMS") else "loss_sum")
            with _going_backward(model, is_last, progress):
                precision.scaler.scale(normalize(sums)).backward()
        observe(outputs, batch)
        losses.append(tuple(loss.detach() for loss in sums))
        units.append(units_of_batch)
    of_losses = tuple(float(torch.stack(each).double().sum()) for each in zip(*losses, strict=True))
    return of_losses, tuple(float(sum(each)) for each in zip(*units, strict=True))


def _require_precise(loss: torch.Tensor, precision: Precision, function: str) -> None:
    """Sums of half precision keep 8 or 11 bits: loss and gradient would depend on the order of the rows."""
    if loss.dtype == precision.dtype:
        raise WorkloadError(
            f"the workload sums its losses in {str(loss.dtype).removeprefix('torch.')} when use_amp is set: let its "
            f"{function} add up .float() values, as cross_entropy does by itself"
        )


def _going_forward(model: torch.nn.Module, index: int, progress: Progress) -> AbstractContextManager[None]:
    """Where a model has buffers, DDP broadcasts them in the first forward after a synchronizing backward."""
    if gathers(model):
        return progress.entered(GATHERING_FORWARD, FORWARD)
    if index == 0 and next(model.buffers(), None) is not None:
        return progress.entered(BUFFERS, FORWARD)
    return progress.spent(FORWARD)


def _going_backward(model: torch.nn.Module, is_last: bool, progress: Progress) -> AbstractContextManager[None]:
    if is_last:
        return progress.entered(reduction_of(model), REDUCING_BACKWARD)
    return progress.entered(GATHERING_BACKWARD, BACKWARD) if gathers(model) else progress.spent(BACKWARD)


def sums_of_window(
    workload: Workload, window: str, own: Sequence[float], summed: float, counted: float, world: World
) -> list[float]:
    """Each of `own` over all ranks. One all-reduce, which carries what each rank summed over and what its rows count.

    Raises WorkloadError on every rank alike when these differ on any rank: a gradient that was divided by other units
    than it sums over is wrong, so no update may be made of it.
    """
    units = [0.0] * (2 * world.size)
    units[2 * world.rank : 2 * world.rank + 2] = [summed, counted]
    totals = sum_over_ranks([*own, *units], world.device, "loss sum")
    of_ranks = totals[len(own) :]
    require_same_units(workload, window, list(zip(of_ranks[::2], of_ranks[1::2], strict=True)))
    return totals[: len(own)]
