"""What an all-reduce of so many bytes costs, on this machine and backend: what latency and bandwidth are fitted to."""

from collections.abc import Mapping
from time import perf_counter

import torch
import torch.distributed as dist

from ddp_tokens.distributed import barrier, within
from ddp_tokens.measured_loop import Measured, Record, gathered
from ddp_tokens.world import World

SMALLEST, LARGEST, STEP = 4 * 1024, 16 * 1024 * 1024, 4  # bytes: 4 KiB to 16 MiB, each four times the one before
WARM_UP, REPEATS = 3, 15
FLOAT32 = 4
SWEPT = (2, 4)  # numbers of processes


def sizes_of(gradient_bytes: int) -> list[int]:
    """The sizes of the sweep in bytes, smallest first: the gradient's own among them."""
    grown = [SMALLEST]
    while grown[-1] < LARGEST:
        grown.append(STEP * grown[-1])
    return sorted({*grown, gradient_bytes})


def sweep(of: Measured, groups: Mapping[int, dist.ProcessGroup], gradient_bytes: int) -> list[Record]:
    """One record per number of processes, size and repeat; `groups`: by number of processes. Every rank calls this."""
    return [
        record
        for processes in SWEPT
        if processes in groups
        for record in _of_group(of, processes, groups[processes], sizes_of(gradient_bytes))
    ]


def _of_group(of: Measured, processes: int, group: dist.ProcessGroup, sizes: list[int]) -> list[Record]:
    of.wait_for_all()
    rank = of.world.rank
    if rank >= processes:
        return []
    with within(group):
        own = [seconds for size in sizes for seconds in _seconds(size, group)]
        found = gathered(own, World(rank, rank, processes))
    records = []
    for place in range(len(own)):
        size, repeat = sizes[place // REPEATS], place % REPEATS + 1
        times = [of_rank[place] for of_rank in found]
        records.append({"processes": processes, "bytes": size, "repeat": repeat, "seconds": times})
    return records


def _seconds(size: int, group: dist.ProcessGroup) -> list[float]:
    """Of each repeat on this rank, from a barrier of the ranks to the end of the all-reduce here."""
    values, seconds = torch.zeros(size // FLOAT32), []
    for repeat in range(WARM_UP + REPEATS):
        barrier()
        began = perf_counter()
        dist.all_reduce(values, group=group)
        if repeat >= WARM_UP:
            seconds.append(perf_counter() - began)
    return seconds
