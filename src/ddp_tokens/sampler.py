"""The order of rows in an epoch, as torch's DistributedSampler deals them.

torch is imported where it is used: preparing an experiment that has no epochs does without it.
"""

from collections.abc import Callable

Deal = Callable[[int], list[list[int]]]


def sampler(rows: int, world_size: int, seed: int, drop_last: bool) -> Deal:
    """epoch -> by rank, indices of rows: each row once, ranks differ by at most one; with `drop_last` by none.

    Where rows do not divide evenly the sampler repeats some, so that all ranks have as many. Rank r holds the positions
    r, r + W, r + 2W and so on of the order that is dealt; what it has from position `rows` on is such a repetition, and
    is left out here: no row counts twice.
    """
    from torch.utils.data import DistributedSampler

    samplers = [
        DistributedSampler(range(rows), world_size, rank, shuffle=True, seed=seed, drop_last=drop_last)
        for rank in range(world_size)
    ]

    def deal(epoch: int) -> list[list[int]]:
        dealt = []
        for rank, of_rank in enumerate(samplers):
            of_rank.set_epoch(epoch)
            own = list(of_rank)
            dealt.append(own[: len(range(rank, rows, world_size))])
        return dealt

    return deal
