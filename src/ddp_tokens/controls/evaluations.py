"""Evaluations as people write them: the right one and two known mistakes. Signature and result are those of evaluate.

Each still says what its batches counted, as an honest log would: the mistake is in what is made of it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DistributedSampler

from ddp_tokens.controls import evaluation_cases
from ddp_tokens.corpora.rows import Row
from ddp_tokens.distributed import sum_over_ranks
from ddp_tokens.evaluation import evaluate, gathered, perplexity, score_batches
from ddp_tokens.workloads import Workload, unit_of
from ddp_tokens.world import World

Evaluate = Callable[[torch.nn.Module, Workload, Sequence[Row], int, World], dict[str, Any]]


def mean_of_batch_means(
    model: torch.nn.Module, workload: Workload, rows: Sequence[Row], batch: int, world: World
) -> dict[str, Any]:
    """Wrong: the loss of each batch is averaged as it comes, and these averages are averaged over batches and ranks."""
    own = score_batches(model, workload, rows[world.rank :: world.size], batch, world)
    losses = [scores["loss_sum"] / scores["units"] for scores in own if scores["units"]]
    accuracies = [scores["correct"] / scores["units"] for scores in own if scores["units"]]
    loss, accuracy, batches = sum_over_ranks([sum(losses), sum(accuracies), len(losses)], world.device)
    right = evaluate(model, workload, rows, batch, world)
    return right | {
        "loss": loss / batches,
        "perplexity": perplexity(loss / batches),
        "accuracy": accuracy / batches,
    }


def padded_sampler(
    model: torch.nn.Module, workload: Workload, rows: Sequence[Row], batch: int, world: World
) -> dict[str, Any]:
    """Wrong: torch's DistributedSampler repeats rows until all ranks have the same number."""
    sampler: DistributedSampler[Row] = DistributedSampler(rows, world.size, world.rank, shuffle=False)
    share = [rows[index] for index in sampler]
    own = score_batches(model, workload, share, batch, world)
    totals = {name: sum(scores[name] for scores in own) for name in ("units", "correct", "loss_sum")}
    units, correct, loss_sum, counted = sum_over_ranks([*totals.values(), len(share)], world.device)
    return {
        "rows": int(counted),
        "units": int(units),
        "unit": unit_of(workload),
        "correct": int(correct),
        "loss_sum": loss_sum,
        "loss": loss_sum / units,
        "perplexity": perplexity(loss_sum / units),
        "accuracy": correct / units,
        "ranks": world.size,
        "batches": gathered(own, [len(own)] * world.size, world),
    }


WAYS: Mapping[str, Evaluate] = {
    evaluation_cases.RIGHT_WAY: evaluate,
    evaluation_cases.MEAN_OF_BATCH_MEANS: mean_of_batch_means,
    evaluation_cases.PADDED_SAMPLER: padded_sampler,
}
