"""What ranks tell of a window that is right, to be changed in one place by each test."""

import copy


def microbatch(units=4, gradients_there=False, collectives=(0, 0, 0, 0), rows=("a", "b"), **changes):
    return {
        "loss_sum": 8.0,
        "units": units,
        "positions": 10,
        "labels": 8,
        "rows": list(rows),
        "has_backward": True,
        "gradients_due": gradients_there,
        "gradients_there": gradients_there,
        "versions": 5,
        "collectives": list(collectives),
    } | changes


def of_rank(rank=0, units=(4, 6), **changes):
    """Two microbatches, of which the second is reduced; each rank has rows of its own."""
    ones = [
        microbatch(
            count,
            gradients_there=index > 0,
            collectives=(0, 0, 0, 2 * index),
            rows=(f"{rank}{index}a", f"{rank}{index}b"),
        )
        for index, count in enumerate(units)
    ]
    return {
        "microbatches": ones,
        "problem": None,
        "without_backward": 0,
        "versions": 5,
        "weights": 11,
        "gradients": 13,
        "is_sharded": False,
        "is_surely_sum": True,
        "clippings": [],
        "doubts": [],
        "not_compared": [],
        "notes": [],
        "bytes": 100,
    } | changes


def told(*units, **changes):
    """By rank. `changes`: of the last one."""
    ranks = [of_rank(rank, count) for rank, count in enumerate(units or ((4, 6), (9, 1)))]
    ranks[-1] |= copy.deepcopy(changes)
    return ranks


def clipping(**changes):
    return {"norm": 3.1234567, "max_norm": 1.0, "factor": 0.32, "after": 2} | changes
