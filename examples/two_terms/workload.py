"""A loss of two terms: a label at every position, and besides which symbol a sequence has most often.

The first is a mean over tokens, the second a mean over the sequences that have one symbol more often than all others.
Each has a denominator of its own, counted over the whole window and all ranks.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ddp_tokens import labelled
from ddp_tokens.corpora.rows import UNSUPERVISED, Row, supervised
from ddp_tokens.errors import WorkloadError
from ddp_tokens.terms import Term

Outputs = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Batch(labelled.Batch):
    """`most_frequent`: int64 (rows,), the symbol that is; UNSUPERVISED where none counts."""

    most_frequent: torch.Tensor


def most_frequent(row: Row) -> int:
    """UNSUPERVISED where several symbols are, and in a row of which no label counts."""
    if not supervised(row):
        return UNSUPERVISED
    (first, times), *others = Counter(row.tokens).most_common(2)
    return UNSUPERVISED if others and others[0][1] == times else first


class Model(nn.Module):
    """Reads a sequence from left to right; one head for each position, one for the mean over all positions."""

    def __init__(self, width: int, vocabulary: int, positions: int, classes: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(positions, width)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.label = nn.Linear(width, classes)
        self.symbol = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor, padding: torch.Tensor) -> Outputs:
        """Logits (rows, longest, classes), and (rows, vocabulary)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden, _ = self.reader(self.tokens(tokens) + self.places(places))
        inside = (~padding)[..., None].to(hidden.dtype)
        return self.label(hidden), self.symbol((hidden * inside).sum(1) / inside.sum(1))


class TwoTerms:
    TERMS = (Term("labels", "token"), Term("most_frequent", "sequence", 0.3))

    def build_model(self, settings: Any, shape: Any) -> nn.Module:
        return Model(settings.settings["width"], shape.vocabulary, shape.positions, shape.classes)

    def collate(self, rows: Sequence[Row], device: torch.device | str = "cpu") -> Batch:
        packed = next((row.id for row in rows if row.starts is not None), None)
        if packed is not None:
            raise WorkloadError(f"row '{packed}' is packed, and here a row is one sequence: give each a row of its own")
        return Batch(**vars(labelled.collate(rows)), most_frequent=torch.tensor([*map(most_frequent, rows)])).to(device)

    def denominators(self, row: Row) -> dict[str, float]:
        """Of the second term, which has no target in every sequence; its unit alone would count them all."""
        return {"most_frequent": most_frequent(row) != UNSUPERVISED}

    def forward(self, model: nn.Module, batch: Batch) -> Outputs:
        return model(batch.tokens, batch.padding)

    def loss_terms(self, outputs: Outputs, batch: Batch) -> dict[str, tuple[torch.Tensor, float]]:
        """Of each term its SUM and how many units it has here, never a mean. The coefficients are in TERMS."""
        labels, symbols = outputs
        of_rows = functional.cross_entropy(symbols, batch.most_frequent, ignore_index=UNSUPERVISED, reduction="sum")
        rows = int((batch.most_frequent != UNSUPERVISED).sum())
        return {"labels": labelled.loss_sum(labels, batch), "most_frequent": (of_rows, rows)}

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, float]:
        """Of the labels: they are what the model is for."""
        return labelled.metrics(outputs[0], batch)
