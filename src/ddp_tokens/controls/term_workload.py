"""token_labels with three terms: labels per token, a penalty of pooled logits per sequence, the weights' squares."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import cast

import torch

from ddp_tokens import labelled
from ddp_tokens.config import Model
from ddp_tokens.controls.term_cases import TERMS
from ddp_tokens.corpora.lock import ImageShape, Shape
from ddp_tokens.corpora.rows import UNSUPERVISED, Row
from ddp_tokens.labelled import Batch, of_tokens
from ddp_tokens.workloads import token_labels
from ddp_tokens.workloads.token_labels import TokenLabeller

Outputs = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class InSequences(Batch):
    """`sequence`: int64 (rows, longest), the number of the sequence that a supervised position is in, else -1.
    `sequences`: how many have such a position.
    """

    sequence: torch.Tensor
    sequences: int


class Regularized(torch.nn.Module):
    def __init__(self, labeller: TokenLabeller) -> None:
        super().__init__()
        self.labeller = labeller

    def forward(self, *inputs: torch.Tensor) -> Outputs:
        """Logits, and half the sum of the squares of all weights, computed here so that DDP sees them used."""
        squares = torch.stack([(parameter**2).sum() for parameter in self.parameters()])
        return self.labeller(*inputs), squares.sum() / 2


class InTerms:
    TERMS = TERMS

    def build_model(self, settings: Model, shape: Shape | ImageShape) -> torch.nn.Module:
        return Regularized(TokenLabeller(*of_tokens("token_labels", settings, shape)))

    def collate(self, rows: Sequence[Row], device: torch.device | str = "cpu") -> InSequences:
        batch = labelled.collate(rows)
        sequence, number = torch.full_like(batch.labels, -1), 0
        for index, row in enumerate(rows):
            for start, end in pairwise((*(row.starts or (0,)), len(row.labels))):
                supervised = batch.labels[index, start:end] != UNSUPERVISED
                sequence[index, start:end][supervised] = number
                number += bool(supervised.any())
        known = {field.name: getattr(batch, field.name) for field in fields(batch)}
        return InSequences(**known, sequence=sequence, sequences=number).to(device)

    def forward(self, model: torch.nn.Module, batch: InSequences) -> Outputs:
        return cast(Outputs, token_labels.forward(model, batch))

    def loss_terms(self, outputs: Outputs, batch: InSequences) -> dict[str, tuple[torch.Tensor, float]]:
        logits, squares = outputs
        labels, units = labelled.loss_sum(logits, batch)
        return {
            "labels": (labels, units),
            "pooled": (pooled_squares(logits, batch), batch.sequences),
            "weights": (squares, 1),
        }

    def metrics(self, outputs: Outputs, batch: InSequences) -> dict[str, float]:
        return labelled.metrics(outputs[0], batch)


def pooled_squares(logits: torch.Tensor, batch: InSequences) -> torch.Tensor:
    """The sum over sequences of half the squared mean of their supervised positions' logits; a scalar."""
    inside = batch.sequence >= 0
    of_sequence = batch.sequence[inside]
    shape = (batch.sequences, logits.shape[-1])
    sums = torch.zeros(shape, dtype=logits.dtype, device=logits.device).index_add(0, of_sequence, logits[inside])
    counts = torch.bincount(of_sequence, minlength=batch.sequences)
    return ((sums / counts[:, None]) ** 2).sum() / 2
