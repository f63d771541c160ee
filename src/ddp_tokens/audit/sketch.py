"""Short linear images of gradients, so that every microbatch's gradient can be kept where there is room for one.

A sketch adds coordinates up in BUCKETS sums, each with a random sign. It is linear, so the sketch of a sum of gradients
is the sum of their sketches: if gradients are combined by a formula, so are their sketches, exactly. It keeps the norm
of any vector with a relative standard deviation of sqrt(1 / (2 * BUCKETS)), 3 % (Charikar, Chen and Farach-Colton 2002,
"Finding frequent items in data streams"), and of one that repeats itself from block to block with at most 4 %, which is
enough for what is told in multiples of tolerances. Gradients that are no longer than BUCKETS are their own sketch.

Coordinates of one row never meet in a bucket, and those of two rows meet by chance only: each row is turned by a number
of its own, since a gradient may well have all its length in one column, that of an input which is larger than others.
"""

import torch
from torch.nn.functional import pad

BUCKETS = 512
ROWS = 512  # of a block, which is what is added to the buckets at a time: 2 MiB of float64
SEED = 20


def sketch(vector: torch.Tensor) -> torch.Tensor:
    """float64, on the CPU, of at most BUCKETS values. `vector`: any shape, any floating type."""
    flat = vector.detach().reshape(-1)
    if flat.numel() <= BUCKETS:
        return flat.double().cpu().clone()
    total = torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device)
    places, signs, of_blocks, turns = _drawn(flat.device, -(-flat.numel() // (ROWS * BUCKETS)))
    for index, block in enumerate(flat.split(ROWS * BUCKETS)):
        rows = pad(block, (0, -block.numel() % BUCKETS)).view(-1, BUCKETS)
        folded = (rows.gather(1, places[: len(rows)]) * signs[: len(rows)]).sum(0)
        total += of_blocks[index] * folded.roll(turns[index])
    return total.cpu()


def _drawn(device: torch.device, blocks: int) -> tuple[torch.Tensor, torch.Tensor, list[int], list[int]]:
    """Of a block: which column of a row comes to each bucket, and with which sign. Of each block: its sign, and by how
    many buckets it is turned. Whatever torch.set_default_device says, they are drawn on the CPU.
    """
    generator = torch.Generator().manual_seed(SEED)

    def draw(below: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, below, shape, generator=generator, device="cpu")

    signs = draw(2, ROWS, BUCKETS).double() * 2 - 1
    places = (torch.arange(BUCKETS, device="cpu") - draw(BUCKETS, ROWS, 1)) % BUCKETS
    of_blocks = draw(2, blocks) * 2 - 1
    return places.to(device), signs.to(device), of_blocks.tolist(), draw(BUCKETS, blocks).tolist()
