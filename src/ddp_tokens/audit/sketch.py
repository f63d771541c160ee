"""Short linear images of gradients, so that every microbatch's gradient can be kept where there is room for one.

A sketch adds coordinates up in BUCKETS sums, each with a random sign. It is linear, so the sketch of a sum of gradients
is the sum of their sketches: if gradients are combined by a formula, so are their sketches, exactly. It keeps the norm
of any vector with a relative standard deviation of sqrt(1 / (2 * BUCKETS)), 3 % (Charikar, Chen and Farach-Colton 2002,
"Finding frequent items in data streams"), and of one that repeats itself from block to block with at most 4 %, which is
enough for what is told in multiples of tolerances. Gradients that are no longer than BUCKETS are their own sketch.

BUCKETS is a prime number, so that the coordinates of one column of a layer spread over the buckets, however wide the
layer is, unless as a multiple of BUCKETS: a gradient may well have all its length in the column of one large input.
"""

from functools import cache

import torch

BUCKETS = 521
ROWS = 512  # of a block, which is what is added to the buckets at a time: 2 MiB of float64
SEED = 20


def sketch(vector: torch.Tensor) -> torch.Tensor:
    """float64, on the CPU, of at most BUCKETS values. `vector`: any shape, any floating type."""
    flat = vector.detach().reshape(-1)
    if flat.numel() <= BUCKETS:
        return flat.double().cpu().clone()
    total = torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device)
    signs = _signs(SEED, flat.device)
    of_blocks, turns = _of_blocks(SEED + 1, -(-flat.numel() // (ROWS * BUCKETS)))
    for index, block in enumerate(flat.split(ROWS * BUCKETS)):
        whole = block.numel() // BUCKETS
        folded = (block[: whole * BUCKETS].view(-1, BUCKETS) * signs[:whole]).sum(0)
        rest = block[whole * BUCKETS :]
        if len(rest):
            folded[: len(rest)] += rest * signs[whole, : len(rest)]
        total += of_blocks[index] * folded.roll(turns[index])
    return total.cpu()


@cache
def _signs(seed: int, device: torch.device) -> torch.Tensor:
    """Of the coordinates of a block. Whatever torch.set_default_device says, they are drawn on the CPU."""
    drawn = torch.randint(0, 2, (ROWS, BUCKETS), generator=torch.Generator().manual_seed(seed), device="cpu")
    return (drawn.double() * 2 - 1).to(device)


@cache
def _of_blocks(seed: int, number: int) -> tuple[list[int], list[int]]:
    """Of each block its sign, and by how many buckets it is turned."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (number,), generator=generator, device="cpu") * 2 - 1
    turns = torch.randint(0, BUCKETS, (number,), generator=generator, device="cpu")
    return signs.tolist(), turns.tolist()
