"""Windows with one thing wrong in each, written as people write them and not by the check's formulas."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.controls import terms
from ddp_tokens.controls.counted_cases import OVER, WITHOUT_WEIGHTS
from ddp_tokens.corpora.rows import supervised_in, supervised_positions
from ddp_tokens.distributed import global_count
from ddp_tokens.gradients import Microbatches, Way, mean_of_means, token_mean
from ddp_tokens.inputs import Prepared
from ddp_tokens.normalization import TOKEN_MEAN, global_token_loss
from ddp_tokens.other_units import Rows, counted_by, unweighted
from ddp_tokens.plan import microbatches_of
from ddp_tokens.window import accumulate, count_window
from ddp_tokens.workloads import Workload
from ddp_tokens.world import World

LOSS_SCALE = 1024.0
LEARNING_RATE = 0.1
Normalize = Callable[[torch.Tensor], torch.Tensor]


def dividing(
    denominators: Callable[[Microbatches, Sequence[Any], World], Sequence[float]],
) -> Way:
    """A way that divides the loss sum of each microbatch by a number of its own."""

    def way(
        model: DistributedDataParallel, workload: Workload, microbatches: Microbatches, name: str, world: World
    ) -> None:
        batches = [workload.collate(rows, world.device) for rows in microbatches]
        numbers: Iterator[float] = iter(denominators(microbatches, batches, world))
        accumulate(model, workload, batches, lambda loss: loss / next(numbers))

    return way


def units_of(microbatches: Microbatches) -> list[int]:
    return [int(supervised_in(rows)) for rows in microbatches]


def all_units(microbatches: Microbatches) -> int:
    return global_count(sum(units_of(microbatches)))


def mean_of_microbatch_means(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
    return [units * len(microbatches) for units in units_of(microbatches)]


def one_microbatch_counted(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
    return [global_count(units) / world.size for units in units_of(microbatches)]


def microbatches_weigh_alike(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
    return [number * len(microbatches) for number in one_microbatch_counted(microbatches, batches, world)]


def world_size_forgotten(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
    return [all_units(microbatches)] * len(microbatches)


def world_size_twice(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
    return [all_units(microbatches) / world.size**2] * len(microbatches)


def extra_division_by_accumulation(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
    return [all_units(microbatches) / world.size * len(microbatches)] * len(microbatches)


def padding_counted(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
    positions = global_count(sum(batch.tokens.numel() for batch in batches))
    return [positions / world.size] * len(microbatches)


def ignored_labels_counted(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
    labels = global_count(sum(len(row.labels) for rows in microbatches for row in rows))
    return [labels / world.size] * len(microbatches)


def loss_scale_kept(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
    """As a gradient scaler leaves it whose unscale_ is never called."""
    return [all_units(microbatches) / world.size / LOSS_SCALE] * len(microbatches)


def short_window_as_full(accumulation: int, microbatches: Microbatches, _: Any, world: World) -> list[float]:
    """The units of an average microbatch, times the microbatches that a full window has."""
    average = all_units(microbatches) / len(microbatches)
    return [average / world.size * accumulation] * len(microbatches)


def stale_count() -> Callable[[Microbatches, Sequence[Any], World], list[float]]:
    """Counts the first window and divides every window by that."""
    remembered: list[int] = []

    def denominators(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
        if not remembered:
            remembered.append(all_units(microbatches))
        return [remembered[0] / world.size] * len(microbatches)

    return denominators


def right_normalize(microbatches: Microbatches, name: str, world: World) -> Normalize:
    _, total = count_window(microbatches, name, world.device)
    return partial(global_token_loss, global_count=total, world_size=world.size)


def backward(
    model: DistributedDataParallel, workload: Workload, batch: Any, normalize: Normalize, synchronized: bool = True
) -> None:
    with nullcontext() if synchronized else model.no_sync():
        loss, _ = workload.loss_sum(workload.forward(model, batch), batch)
        normalize(loss).backward()


def gradients_cleared_per_microbatch(
    model: DistributedDataParallel, workload: Workload, microbatches: Microbatches, name: str, world: World
) -> None:
    normalize = right_normalize(microbatches, name, world)
    for index, rows in enumerate(microbatches):
        model.zero_grad(set_to_none=True)
        batch = workload.collate(rows, world.device)
        backward(model, workload, batch, normalize, synchronized=index == len(microbatches) - 1)


def weights_updated_between_microbatches(
    model: DistributedDataParallel, workload: Workload, microbatches: Microbatches, name: str, world: World
) -> None:
    normalize = right_normalize(microbatches, name, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    model.zero_grad(set_to_none=True)
    for rows in microbatches:
        backward(model, workload, workload.collate(rows, world.device), normalize)
        optimizer.step()


def last_microbatch_only(
    model: DistributedDataParallel, workload: Workload, microbatches: Microbatches, name: str, world: World
) -> None:
    """The loss of the loop's last turn is the one that backward() is called on."""
    normalize = right_normalize(microbatches, name, world)
    model.zero_grad(set_to_none=True)
    for rows in microbatches:
        batch = workload.collate(rows, world.device)
        loss, _ = workload.loss_sum(workload.forward(model, batch), batch)
    normalize(loss).backward()


def first_microbatch_only(
    model: DistributedDataParallel, workload: Workload, microbatches: Microbatches, name: str, world: World
) -> None:
    """The optimizer takes its step after the first microbatch, with the window's denominator."""
    normalize = right_normalize(microbatches, name, world)
    accumulate(model, workload, [workload.collate(microbatches[0], world.device)], normalize)


def all_reduce_skipped(
    model: DistributedDataParallel, workload: Workload, microbatches: Microbatches, name: str, world: World
) -> None:
    with model.no_sync():
        token_mean(model, workload, microbatches, name, world)


def synchronized_forward_left(
    model: DistributedDataParallel, workload: Workload, microbatches: Microbatches, name: str, world: World
) -> None:
    """A forward for a metric, outside of no_sync and never followed by its backward: it arms DDP's reducer."""
    workload.forward(model, workload.collate(microbatches[0], world.device))
    token_mean(model, workload, microbatches, name, world)


def forward_outside_no_sync(
    model: DistributedDataParallel, workload: Workload, microbatches: Microbatches, name: str, world: World
) -> None:
    normalize = right_normalize(microbatches, name, world)
    model.zero_grad(set_to_none=True)
    for index, rows in enumerate(microbatches):
        batch = workload.collate(rows, world.device)
        loss, _ = workload.loss_sum(workload.forward(model, batch), batch)
        with nullcontext() if index == len(microbatches) - 1 else model.no_sync():
            normalize(loss).backward()


def another_ranks_rows(prepared: Prepared, index: int) -> Way:
    """Rank 1 is fed the rows of rank 0."""

    def way(model: DistributedDataParallel, workload: Workload, _: Microbatches, name: str, world: World) -> None:
        taken = microbatches_of(prepared.plan[index], 0 if world.rank == 1 else world.rank, prepared.rows)
        token_mean(model, workload, taken, name, world)

    return way


def counted_otherwise(prepared: Prepared, index: int, change: Callable[[Rows], Rows]) -> Way:
    """The whole window is counted by another objective: a document's rows are on several ranks."""

    def way(model: DistributedDataParallel, workload: Workload, _: Microbatches, name: str, world: World) -> None:
        planned = prepared.plan[index]
        window = change([microbatches_of(planned, rank, prepared.rows) for rank in range(len(planned))])
        token_mean(model, workload, window[world.rank], name, world)

    return way


def weights_left_out(microbatches: Microbatches, batches: Sequence[Any], world: World) -> list[float]:
    """The weighted sum, over the number of supervised positions."""
    positions = sum(supervised_positions(row) for rows in microbatches for row in rows)
    return [global_count(positions) / world.size] * len(microbatches)


def ways(prepared: Prepared, index: int) -> Mapping[str, Way]:
    """Every way by name, for the window `index` of the plan."""
    accumulation = max(len(of_rank) for window in prepared.plan for of_rank in window)
    divided = (
        mean_of_microbatch_means,
        one_microbatch_counted,
        microbatches_weigh_alike,
        world_size_forgotten,
        world_size_twice,
        extra_division_by_accumulation,
        padding_counted,
        ignored_labels_counted,
        loss_scale_kept,
        weights_left_out,
    )
    as_written = (
        mean_of_means,
        gradients_cleared_per_microbatch,
        weights_updated_between_microbatches,
        last_microbatch_only,
        first_microbatch_only,
        all_reduce_skipped,
        synchronized_forward_left,
        forward_outside_no_sync,
    )
    return {
        TOKEN_MEAN: token_mean,
        **{function.__name__: dividing(function) for function in divided},
        **{function.__name__: function for function in as_written},
        "short_window_as_full": dividing(partial(short_window_as_full, accumulation)),
        "stale_count": dividing(stale_count()),
        **{name: counted_otherwise(prepared, index, partial(counted_by, unit=unit)) for unit, name in OVER.items()},
        WITHOUT_WEIGHTS: counted_otherwise(
            prepared, index, lambda window: counted_by(unweighted(window), prepared.unit)
        ),
        "another_ranks_rows": another_ranks_rows(prepared, index),
        **terms.WAYS,
    }
