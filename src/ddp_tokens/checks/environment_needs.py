"""What an experiment takes at the very least of memory, disk and shared memory, in bytes: by measurement and by count.

Measured on two CPU cores with torch 2.13 and the experiments `minimum`, `grammar` and `images_small`. What a run takes
beyond that, activations and rows above all, is not counted: less than this is too little, more may be too.
"""

from ddp_tokens.config import Experiment, GeneratedCorpus, Images, OwnImages

MIB = 2**20
# Safetensors of `minimum`, taken where an experiment's own initial weights are not made yet.
MINIMUM_WEIGHTS = 1_133_360
# What starts the ranks, and each rank. Proportional set sizes of all processes of a run of `minimum`, summed, at their
# peak: 412, 477 and 570 MiB with 1, 2 and 4 forked ranks; 505, 770 and 1,306 MiB under torchrun, where each imports
# torch. A line through each three lies within 3 % of them.
FORKED = (355 * MIB, 54 * MIB)
SEPARATE = (240 * MIB, 265 * MIB)
WORKER = 75 * MIB  # two loader workers of `images_small` took 86 MiB each, of which 75 came on top
# results/minimum after a rebuild was 42.9, 55.7 and 81.7 MB on 1, 2 and 4 ranks, of which the weights, 36, 47 and 69
# times, make 40.8, 53.3 and 78.2.
BESIDE_WEIGHTS = 2_400_000
PREFETCHED = 2  # batches per worker, as torch's DataLoader has it
TOKEN_BYTES = 8 + 8 + 1  # of each position in a batch: token and label as int64, padding as bool
PIXEL_BYTES = 4  # float32
COMPARED = 2  # windows whose gradients are dumped: the first, and the most unequal
NCCL_SHARED = 2**30  # NCCL's guide asks for --shm-size=1g in containers


def states(experiment: Experiment) -> int:
    """Numbers that the optimizer keeps for each weight: SGD a momentum or none, AdamW two."""
    optimizer = experiment.optimizer
    return 2 if optimizer.kind == "adamw" else int(optimizer.momentum > 0)


def copies_on_disk(experiment: Experiment) -> int:
    """How many times the weights' size, in float32, lies on the disk at most while an experiment is built.

    Initial weights 1. Reference: float32 1 and float64 2 in each compared window, and each microbatch of each rank in
    float64. Gradients of both formulas: float32 1 and float64 2 in each window. Each of three runs: a checkpoint, and
    the last weights of each rank. Two runs at a time keep working checkpoints, one more while it is being written.
    """
    checkpoint = 1 + states(experiment)
    reference = COMPARED * (3 + 2 * experiment.world_size * experiment.accumulation)
    gradients = 2 * COMPARED * 3
    runs = 3 * (checkpoint + experiment.world_size)
    working = 2 * (experiment.keep + 1) * checkpoint
    return 1 + reference + gradients + runs + working


def disk(experiment: Experiment, weights: int) -> int:
    return copies_on_disk(experiment) * weights + BESIDE_WEIGHTS


def memory(experiment: Experiment, weights: int) -> int:
    """Of one run's processes on this host. On the CPU larger weights than those of `minimum` add themselves, their
    gradients, DDP's buckets and the optimizer's states, on each rank.
    """
    launcher, rank = FORKED if experiment.resolved_launcher == "fork" else SEPARATE
    larger = max(0, weights - MINIMUM_WEIGHTS) if experiment.device == "cpu" else 0
    of_rank = rank + experiment.workers * WORKER + (3 + states(experiment)) * larger
    return launcher + experiment.ranks_per_node * of_rank


def shared_memory(experiment: Experiment) -> int | None:
    """For the batches that loader workers hand over; None where only the rows tell how large a batch is."""
    if not experiment.workers:
        return 0
    row = row_bytes(experiment)
    if row is None:
        return None
    return experiment.ranks_per_node * experiment.workers * PREFETCHED * experiment.batch * row


def row_bytes(experiment: Experiment) -> int | None:
    """Of the longest row, or of an image, in a batch."""
    corpus = experiment.corpus
    if isinstance(corpus, GeneratedCorpus):
        return corpus.max_length * TOKEN_BYTES
    if isinstance(corpus, Images):
        return corpus.channels * corpus.size**2 * PIXEL_BYTES
    if isinstance(corpus, OwnImages) and corpus.size is not None:
        return (corpus.channels or 3) * corpus.size**2 * PIXEL_BYTES
    return None
