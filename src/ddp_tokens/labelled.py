"""Rows with a label per position as padded batches; the sum of their losses. What several kinds of work share."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy
import torch
from torch.nn import functional

from ddp_tokens import batches
from ddp_tokens.config import Model, Transformer
from ddp_tokens.corpora.lock import ImageShape, Shape
from ddp_tokens.corpora.rows import PLAIN, UNSUPERVISED, Criterion, Row, supervised_in
from ddp_tokens.errors import WorkloadError

PADDING = -1  # the segment of positions without a token


@dataclass(frozen=True)
class Batch(batches.Batch):
    """`tokens`, `labels`: int64 (rows, longest); `padding`: bool (rows, longest), True where there is no token.

    `weights`: float64 (rows, longest), None where each is 1. `units`: what the rows add to the denominator.
    `segments`: int64 (rows, longest), the number of the sequence that a position belongs to, -1 where there is no
    token, and `places`, its place in that sequence; both None where no row is packed.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    padding: torch.Tensor
    units: float
    weights: torch.Tensor | None = None
    criterion: Criterion = PLAIN
    segments: torch.Tensor | None = None
    places: torch.Tensor | None = None


def of_tokens(workload: str, settings: Model, shape: Shape | ImageShape) -> tuple[Transformer, Shape]:
    """What a model of tokens is built from. Raises WorkloadError for another kind of model, or for rows of images."""
    if not isinstance(settings, Transformer) or not isinstance(shape, Shape):
        raise WorkloadError(f"workload {workload} needs model.kind transformer and a corpus of tokens")
    return settings, shape


def collate(rows: Sequence[Row], device: torch.device | str = "cpu") -> Batch:
    longest = max(len(row.tokens) for row in rows)
    tokens = _padded([row.tokens for row in rows], longest, 0)
    labels = _padded([row.labels for row in rows], longest, UNSUPERVISED)
    lengths = torch.tensor([len(row.tokens) for row in rows])
    padding = torch.arange(longest) >= lengths[:, None]
    weights = weights_of(rows, longest)
    packed = sequences_of(rows, longest)
    return Batch(tokens, labels, padding, supervised_in(rows), weights, rows[0].criterion, *packed).to(device)


def sequences_of(rows: Sequence[Row], longest: int) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """`segments` and `places` of a batch."""
    if all(row.starts is None for row in rows):
        return None, None
    segments = torch.full((len(rows), longest), PADDING)
    places = torch.zeros_like(segments)
    for index, row in enumerate(rows):
        for number, (start, end) in enumerate(pairwise((*(row.starts or (0,)), len(row.tokens)))):
            segments[index, start:end] = number
            places[index, start:end] = torch.arange(end - start)
    return segments, places


def same_sequence(segments: torch.Tensor) -> torch.Tensor:
    """bool (rows, longest, longest): whether the position of the row and that of the column are of one sequence. What
    is padding is one for itself, so that no position sees nothing, of which attention would make NaN.
    """
    return segments[:, :, None] == segments[:, None, :]


def weights_of(rows: Sequence[Row], longest: int) -> torch.Tensor | None:
    """float64 (rows, longest), 0 where there is no position; None where each position has the weight 1."""
    if all(row.weights is None for row in rows):
        return None
    given = [row.weights or (1.0,) * len(row.labels) for row in rows]
    return torch.tensor([[*each, *[0.0] * (longest - len(each))] for each in given], dtype=torch.float64)


def _padded(sequences: Sequence[tuple[int, ...]], longest: int, filler: int) -> torch.Tensor:
    """int64 (sequences, longest). Through NumPy, which reads nested tuples four times as fast as torch does."""
    return torch.from_numpy(numpy.array([each + (filler,) * (longest - len(each)) for each in sequences]))


def loss_sum(outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
    """`outputs`: logits, (rows, longest, classes)."""
    return weighted_cross_entropy(outputs, batch.labels, batch.weights, batch.criterion), batch.units


def weighted_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None, criterion: Criterion
) -> torch.Tensor:
    """The sum over supervised positions of weight times torch's cross entropy with class weights and label smoothing.

    `logits`: (..., classes); `labels`, `weights`: (...).
    """
    of_classes = criterion.class_weights
    losses = functional.cross_entropy(
        logits.flatten(0, -2),
        labels.flatten(),
        weight=None if of_classes is None else torch.tensor(of_classes, dtype=logits.dtype, device=logits.device),
        ignore_index=UNSUPERVISED,
        reduction="sum" if weights is None else "none",
        label_smoothing=criterion.label_smoothing,
    )
    return losses if weights is None else (losses * weights.flatten().to(losses.dtype)).sum()


def metrics(outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
    counted = positions_that_count(batch.labels, batch.weights, batch.criterion)
    correct = (outputs.argmax(-1) == batch.labels) & counted
    total, weight = loss_sum(outputs, batch)
    scores = {"loss_sum": float(total), "correct": int(correct.sum()), "units": int(counted.sum())}
    return scores | ({"weight": weight} if is_weighted(batch.weights, batch.criterion) else {})


def positions_that_count(labels: torch.Tensor, weights: torch.Tensor | None, criterion: Criterion) -> torch.Tensor:
    """Bool, as `labels`: supervised, and of a weight above 0."""
    counted = labels != UNSUPERVISED
    if weights is not None:
        counted &= weights > 0
    if criterion.class_weights is not None:
        counted &= torch.tensor(criterion.class_weights, device=labels.device)[labels.clamp(min=0)] > 0
    return counted


def is_weighted(weights: torch.Tensor | None, criterion: Criterion) -> bool:
    """Is the denominator another number than that of the supervised positions?"""
    return weights is not None or criterion.class_weights is not None
