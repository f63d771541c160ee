"""Score a checkpoint: sums and counts over the rows of a split, each row once, whatever the world size."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ddp_tokens.checkpoint_files import MODEL, verify
from ddp_tokens.config import Experiment
from ddp_tokens.corpora.lock import read_corpus, shape_in
from ddp_tokens.corpora.rows import TOKEN, Row
from ddp_tokens.determinism import make_deterministic
from ddp_tokens.distributed import sum_over_ranks
from ddp_tokens.errors import DivergedError
from ddp_tokens.inputs import counted_for_terms, initial_model
from ddp_tokens.samples import write_samples
from ddp_tokens.workloads import Workload, load, require_weight, unit_of, writer
from ddp_tokens.world import World

PERPLEXITY = "perplexity"
COUNTS = ("rows", "units", "correct")
WEIGHT, LOSS_UNIT = "weight", "loss_unit"


def evaluate_checkpoint(
    experiment: Experiment, rows_path: Path, lock_path: Path, checkpoint: Path, initial: Path
) -> dict[str, Any]:
    """Scores of the validation and the test rows, in one process; where the workload can write sequences, also
    `samples`, texts of the trained model, and `samples_at_start`, those of the weights in the file `initial`.
    """
    make_deterministic(experiment.threads_per_rank)
    verify(checkpoint)
    read, lock = read_corpus(rows_path, lock_path)
    rows = counted_for_terms(experiment, read, lock)
    workload = load(experiment.workload)

    def model_of(weights: Path) -> torch.nn.Module:
        return initial_model(experiment, workload, shape_in(lock), weights, experiment.device, torch.float32)

    model = model_of(checkpoint / MODEL)
    scores: dict[str, Any] = {"checkpoint": str(checkpoint)}
    for split in ("validation", "test"):
        of_split = [row for row in rows.values() if row.split == split]
        if of_split:
            world = World(device=experiment.device)
            scores[split] = evaluate(model, workload, of_split, experiment.batch, world)
    if (writes := writer(workload)) is not None:
        for name, of in (("samples", model), ("samples_at_start", model_of(initial))):
            scores[name] = write_samples(writes, of, rows.values(), lock, experiment.seed)
    return scores


def evaluate(
    model: torch.nn.Module, workload: Workload, rows: Sequence[Row], batch: int, world: World
) -> dict[str, Any]:
    """Sums over all rows and all ranks, then one division: never a mean of batch means.

    Rank r takes rows r, r + W, ...: no row is padded in or repeated to make shares equal. With more than one rank,
    every rank calls this and gets the same result: the scores, `unit`, what a supervised unit is called, `ranks`, and
    `batches`, what each batch of each rank counted, from which anyone can judge the scores. Perplexity is a score of
    tokens. Where supervised positions do not count the same, also `weight`, the loss's denominator, and `loss_unit`, of
    what it is the mean.
    """
    weighted = any(row.is_weighted for row in rows)
    shares = [rows[rank :: world.size] for rank in range(world.size)]
    own = score_batches(model, workload, shares[world.rank], batch, world)
    sums = ("loss_sum", WEIGHT) if weighted else ("loss_sum",)
    batches = gathered(own, [len(range(0, len(share), batch)) for share in shares], world, sums)
    totals = {name: sum(scores[name] for scores in batches) for name in COUNTS}
    loss_sum = sum(scores["loss_sum"] for scores in batches)
    unit, of_weights = unit_of(workload), {}
    if weighted:
        one = next(row for row in rows if row.is_weighted)
        of_weights = {WEIGHT: math.fsum(scores[WEIGHT] for scores in batches), LOSS_UNIT: unit_of(workload, one)}
    loss = loss_sum / of_weights.get(WEIGHT, totals["units"])
    plain = not weighted and not rows[0].criterion.label_smoothing
    return {
        **totals,
        "unit": unit,
        "loss_sum": loss_sum,
        "loss": loss,
        **of_weights,
        **({PERPLEXITY: perplexity(loss)} if unit == TOKEN and plain else {}),
        "accuracy": totals["correct"] / totals["units"],
        "ranks": world.size,
        "batches": batches,
    }


def perplexity(loss: float) -> float:
    """Among so many equally likely tokens a guess would cost as much.

    Raises DivergedError where the loss is no number, or too large for its exponential to be one.
    """
    try:
        found = math.exp(loss)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise DivergedError(f"the loss per token is {loss:.6g}, which has no perplexity: train with a smaller lr")
    return found


@torch.no_grad()
def score_batches(
    model: torch.nn.Module, workload: Workload, rows: Sequence[Row], batch: int, world: World
) -> list[dict[str, float]]:
    """Per batch of this rank: rows, supervised units, correct ones, and the sum of their losses. Dropout is off."""
    model.eval()
    scores = []
    for start in range(0, len(rows), batch):
        of_batch = rows[start : start + batch]
        collated = workload.collate(of_batch, world.device)
        found = workload.metrics(workload.forward(model, collated), collated)
        require_weight(workload, found, of_batch)
        scores.append({"rows": len(of_batch), WEIGHT: found["units"], **found})
    return scores


def gathered(
    own: Sequence[Mapping[str, float]],
    batches_of_ranks: Sequence[int],
    world: World,
    sums: Sequence[str] = ("loss_sum",),
) -> list[dict[str, Any]]:
    """The batches of all ranks, in the order of ranks, on every rank. One all-reduce.

    Each rank adds its values to places that are 0 on all others, so they arrive bit for bit.
    """
    names = (*COUNTS, *sums)
    places = [0.0] * (len(names) * sum(batches_of_ranks))
    first = len(names) * sum(batches_of_ranks[: world.rank])
    values = [float(scores[name]) for scores in own for name in names]
    places[first : first + len(values)] = values
    summed = iter(sum_over_ranks(places, world.device))
    return [
        {"rank": rank, **{name: int(next(summed)) for name in COUNTS}, **{name: next(summed) for name in sums}}
        for rank, number in enumerate(batches_of_ranks)
        for _ in range(number)
    ]
