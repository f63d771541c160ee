"""Score a checkpoint: sums and counts over the rows of a split, each row once, whatever the world size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ddp_tokens.checkpoint_files import MODEL, verify
from ddp_tokens.config import Experiment
from ddp_tokens.corpora.lock import read_corpus, shape_in
from ddp_tokens.corpora.rows import Row
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import sum_over_ranks
from ddp_tokens.inputs import initial_model
from ddp_tokens.workloads import Workload, load
from ddp_tokens.world import World


def evaluate_checkpoint(experiment: Experiment, rows_path: Path, lock_path: Path, checkpoint: Path) -> dict[str, Any]:
    """Scores of the validation and the test rows, in one process."""
    make_deterministic(experiment.threads_per_rank)
    verify(checkpoint)
    rows, lock = read_corpus(rows_path, lock_path)
    workload = load(experiment.workload)
    weights = checkpoint / MODEL
    model = initial_model(experiment, workload, shape_in(lock), weights, experiment.device, torch.float32)
    scores: dict[str, Any] = {"checkpoint": str(checkpoint)}
    for split in ("validation", "test"):
        of_split = [row for row in rows.values() if row.split == split]
        if of_split:
            world = World(device=experiment.device)
            scores[split] = evaluate(model, workload, of_split, experiment.batch, world)
    return scores


@torch.no_grad()
def evaluate(
    model: torch.nn.Module, workload: Workload, rows: Sequence[Row], batch: int, world: World
) -> dict[str, float]:
    """Sums over all rows and all ranks, then one division: never a mean of batch means.

    Rank r takes rows r, r + W, ...: no row is padded in or repeated to make shares equal. With more than one rank,
    every rank calls this and gets the same result.
    """
    model.eval()
    share = rows[world.rank :: world.size]
    totals = {"loss_sum": 0.0, "correct": 0.0, "units": 0.0}
    for start in range(0, len(share), batch):
        collated = workload.collate(share[start : start + batch], world.device)
        for name, value in workload.metrics(workload.forward(model, collated), collated).items():
            totals[name] += value
    loss_sum, correct, units, counted = sum_over_ranks([*totals.values(), len(share)], world.device)
    return {
        "rows": int(counted),
        "units": int(units),
        "correct": int(correct),
        "loss_sum": loss_sum,
        "loss_per_token": loss_sum / units,
        "accuracy_per_token": correct / units,
    }
