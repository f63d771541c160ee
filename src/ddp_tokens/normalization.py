"""How a rank's loss sum becomes the loss that it calls backward() on. Plain arithmetic: floats or tensors alike.

DDP averages gradients over W ranks. With S_r the loss sum of rank r over the window and N the supervised units
of the window over all ranks, a rank that backpropagates W * S_r / N leaves, after the averaging,

    (1/W) * sum_r grad(W * S_r / N) = grad(sum_r S_r / N),

the gradient of the mean over all supervised units, whatever the units of each rank, and whatever the microbatches:
S_r is a sum, so its parts may be scaled and backpropagated one by one.
"""

from typing import Any

from ddp_tokens.errors import NormalizationError

TOKEN_MEAN = "token_mean"
MEAN_OF_MEANS = "mean_of_means"
FORMULAS = (TOKEN_MEAN, MEAN_OF_MEANS)


def global_token_loss(local_sum: Any, global_count: float, world_size: int) -> Any:
    """W * S_r / N, prepared for DDP's averaging; no metric by itself.

    `local_sum`: scalar, sum of the losses of this rank's supervised units (of a window or of one microbatch of it).
    `global_count`: supervised units of the whole window over all ranks; of weighted ones, the sum of their weights.
    Raises NormalizationError if it is 0 or less.
    """
    if global_count <= 0:
        raise NormalizationError(
            f"the denominator is {global_count}, but it must count at least one supervised unit over all ranks"
        )
    return local_sum * world_size / global_count


def mean_of_means_loss(local_sum: Any, local_count: float) -> Any:
    """S_r / N_r, the known mistake: DDP's averaging then weights each rank alike, whatever it holds. A control only."""
    return local_sum / local_count
