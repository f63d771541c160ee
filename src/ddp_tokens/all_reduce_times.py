"""The time of the gradient all-reduce of one window, measured in two ways.

"difference": backward() of the window's last microbatch, from a barrier of the ranks to its end on this rank, once
inside no_sync, which only computes, and once as DDP does it. The first is `compute_s`, the second minus the first
`communication_s`: all that synchronization adds, copies into buckets and waiting for slower ranks included, less what
is hidden behind computing. Noise can make it negative. Both backwards are of the same rows, with dropout drawn anew.

"hook": a communication hook in place of DDP's own all-reduce, in a second model. `communication_s` is the time in which
at least one bucket's all-reduce is under way, each from the moment when this rank has the bucket ready to its
completion: transfer, sums, and waiting for ranks that have it ready later, whether or not this rank goes on computing
meanwhile. `compute_s` is the same backward() from the barrier until its last bucket is ready.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.distributed import barrier
from ddp_tokens.progress import COMMUNICATION, REDUCING_BACKWARD, Progress
from ddp_tokens.scaling_rows import DIFFERENCE, HOOK
from ddp_tokens.term_losses import plain_loss
from ddp_tokens.workloads import Workload

VARIANTS = (DIFFERENCE, HOOK)
MEASURES = ("compute_s", "communication_s", "bytes", "buckets")


class BackwardTime(Progress):
    """Given to training, it times the backward that reduces gradients: from a barrier of the ranks, to its end here."""

    def __init__(self) -> None:
        self.began = self.seconds = 0.0

    @contextmanager
    def entered(self, collective: str, kind: str = COMMUNICATION) -> Iterator[None]:
        if kind != REDUCING_BACKWARD:
            yield
            return
        barrier()
        self.began = perf_counter()
        yield
        self.seconds = perf_counter() - self.began


def unsynchronized_backward_s(model: DistributedDataParallel, workload: Workload, batch: Any) -> float:
    """Seconds of the backward of one microbatch that only computes; its gradients are cleared."""
    model.zero_grad(set_to_none=True)
    with model.no_sync():
        loss = plain_loss(workload, workload.forward(model, batch), batch)
        barrier()
        began = perf_counter()
        loss.backward()
        seconds = perf_counter() - began
    model.zero_grad(set_to_none=True)
    return seconds


def bucket_bytes(model: DistributedDataParallel) -> list[int]:
    """Bytes of each bucket of the model's last reduction, as DDP tells them. The layout changes after the first."""
    # The only place where DDP tells its buckets; a hook would see them too, and change what is measured.
    told = model._get_ddp_logging_data()
    sizes = told.get("rebuilt_bucket_sizes") or told["bucket_sizes"]
    return [int(size) for size in sizes.split(", ")]


@dataclass
class BucketTimes:
    """Of the window under way: by bucket, its bytes and the moments, perf_counter(), when it was ready and reduced."""

    bytes: list[int] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    reduced: list[float] = field(default_factory=list)

    def clear(self) -> None:
        for moments in (self.bytes, self.ready, self.reduced):
            moments.clear()


def time_buckets(model: DistributedDataParallel, group: dist.ProcessGroup | None) -> BucketTimes:
    """Register the hook. It averages over the ranks of `group` as DDP does by itself: divided before, then summed."""
    times, ranks = BucketTimes(), dist.get_world_size(group)

    def hook(state: BucketTimes, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        index = len(state.ready)
        state.ready.append(perf_counter())
        state.reduced.append(0.0)
        buffer = bucket.buffer().div_(ranks)
        state.bytes.append(buffer.numel() * buffer.element_size())
        work = dist.all_reduce(buffer, group=group, async_op=True)

        def reduced(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            state.reduced[index] = perf_counter()
            return future.value()[0]

        return work.get_future().then(reduced)

    model.register_comm_hook(times, hook)
    return times


def covered_s(begun: Sequence[float], ended: Sequence[float]) -> float:
    """Seconds in which at least one of these intervals is under way: overlaps count once."""
    covered, until = 0.0, float("-inf")
    for begin, end in sorted(zip(begun, ended, strict=True)):
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def by_difference(
    model: DistributedDataParallel, workload: Workload, batch: Any, updates: Iterator[Any], time: BackwardTime
) -> tuple[float, ...]:
    """MEASURES of the next update; `batch`: this rank's last microbatch of it. `time` is what `updates` tells."""
    compute = unsynchronized_backward_s(model, workload, batch)
    next(updates)
    sizes = bucket_bytes(model)
    return compute, time.seconds - compute, sum(sizes), len(sizes)


def by_hook(times: BucketTimes, updates: Iterator[Any], time: BackwardTime) -> tuple[float, ...]:
    """MEASURES of the next update."""
    times.clear()
    next(updates)
    return max(times.ready) - time.began, covered_s(times.ready, times.reduced), sum(times.bytes), len(times.bytes)
