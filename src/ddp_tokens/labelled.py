"""Rows with a label per position as padded batches; the sum of their losses. What several kinds of work share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch.nn import functional

from ddp_tokens import batches
from ddp_tokens.config import Model, Transformer
from ddp_tokens.corpora.lock import ImageShape, Shape
from ddp_tokens.corpora.rows import UNSUPERVISED, Row, supervised_in
from ddp_tokens.errors import WorkloadError


@dataclass(frozen=True)
class Batch(batches.Batch):
    """`tokens`, `labels`: int64 (rows, longest); `padding`: bool (rows, longest), True where there is no token."""

    tokens: torch.Tensor
    labels: torch.Tensor
    padding: torch.Tensor
    units: int


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
    return Batch(tokens, labels, padding, supervised_in(rows)).to(device)


def _padded(sequences: Sequence[tuple[int, ...]], longest: int, filler: int) -> torch.Tensor:
    """int64 (sequences, longest). Through NumPy, which reads nested tuples four times as fast as torch does."""
    return torch.from_numpy(numpy.array([each + (filler,) * (longest - len(each)) for each in sequences]))


def loss_sum(outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, int]:
    """`outputs`: logits, (rows, longest, classes)."""
    total = functional.cross_entropy(
        outputs.flatten(0, 1), batch.labels.flatten(), ignore_index=UNSUPERVISED, reduction="sum"
    )
    return total, batch.units


def metrics(outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
    counted = batch.labels != UNSUPERVISED
    correct = (outputs.argmax(-1) == batch.labels) & counted
    total, units = loss_sum(outputs, batch)
    return {"loss_sum": float(total), "correct": int(correct.sum()), "units": units}
