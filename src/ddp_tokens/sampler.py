"""The order of rows in an epoch, as torch's DistributedSampler deals them.

torch is imported where it is used: preparing an experiment that has no epochs does without it.
"""

from collections.abc import Callable, Sequence

Deal = Callable[[int], list[Sequence[int]]]


def sampler(rows: int, world_size: int, seed: int, drop_last: bool) -> Deal:
    """epoch -> by rank, indices of rows: each row once, ranks differ by at most one; with `drop_last` by none.

    Rank r holds the positions r, r + W, r + 2W and so on of the epoch's order, which is DistributedSampler's: the
    permutation of torch's generator of seed + epoch. Where rows do not divide evenly DistributedSampler repeats some,
    so that all ranks have as many; these repetitions are left out here: no row counts twice. DistributedSampler itself
    makes a Python list of all rows for each rank, five times as large as the tensor that is dealt here.
    """
    import torch

    end = rows // world_size * world_size if drop_last else rows

    def deal(epoch: int) -> list[Sequence[int]]:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed + epoch))
        return [memoryview(order[rank:end:world_size].numpy()) for rank in range(world_size)]

    return deal
