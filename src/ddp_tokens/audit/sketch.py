"""Short linear images of gradients, so that every microbatch's gradient can be kept where there is room for one.

A sketch adds coordinates up in BUCKETS sums, each with a random sign. It is linear, so the sketch of a sum of gradients
is the sum of their sketches: if gradients are combined by a formula, so are their sketches, exactly. It keeps the norm
of any vector with a relative standard deviation of sqrt(1 / (2 * BUCKETS)), 3 % (Charikar, Chen and Farach-Colton 2002,
"Finding frequent items in data streams"), which is enough for what is told in multiples of tolerances. Gradients that
are no longer than BUCKETS are their own sketch.
"""

import torch

BUCKETS = 512
ROWS = 512  # that are added to the buckets at a time: 2 MiB of float64
SEED = 20


def sketch(vector: torch.Tensor) -> torch.Tensor:
    """float64, on the CPU, of at most BUCKETS values. `vector`: any shape, any floating type."""
    flat = vector.detach().reshape(-1)
    if flat.numel() <= BUCKETS:
        return flat.double().cpu().clone()
    total = torch.zeros(BUCKETS, dtype=torch.float64, device=flat.device)
    signs, of_blocks, shifts = _drawn(flat.device, -(-flat.numel() // (ROWS * BUCKETS)))
    for index, block in enumerate(flat.split(ROWS * BUCKETS)):
        whole = block.numel() // BUCKETS * BUCKETS
        folded = (block[:whole].view(-1, BUCKETS) * signs[: whole // BUCKETS]).sum(0)
        if whole < block.numel():
            rest = block[whole:] * signs[whole // BUCKETS, : block.numel() - whole]
            folded[: rest.numel()] += rest
        total += of_blocks[index] * folded.roll(shifts[index])
    return total.cpu()


def _drawn(device: torch.device, blocks: int) -> tuple[torch.Tensor, list[int], list[int]]:
    """Signs of the coordinates of a block, of each block, and by how many buckets each block is moved on."""
    generator = torch.Generator().manual_seed(SEED)
    signs = torch.randint(0, 2, (ROWS, BUCKETS), generator=generator).double() * 2 - 1
    of_blocks = torch.randint(0, 2, (blocks,), generator=generator) * 2 - 1
    shifts = torch.randint(0, BUCKETS, (blocks,), generator=generator)
    return signs.to(device), of_blocks.tolist(), shifts.tolist()
