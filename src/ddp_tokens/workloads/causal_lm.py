"""Predict the next token of a sequence with MiniGPT, a small decoder-only Transformer.

Rows hold the shift already: the label at a position is the token that comes next, and the last position has none. So a
row of n tokens has n - 1 supervised units, or fewer where some are not supervised, and nothing here shifts again. Rows
with other labels are refused: the model would learn something else in silence, to copy where the labels are the tokens.
Of a packed row each sequence is treated as a row of its own.
"""

import math
from collections.abc import Sequence, Set

import torch
from torch import nn
from torch.nn import functional

from ddp_tokens import labelled
from ddp_tokens.config import Model, Transformer
from ddp_tokens.corpora.lock import ImageShape, Shape
from ddp_tokens.corpora.rows import UNSUPERVISED, Row
from ddp_tokens.errors import WorkloadError
from ddp_tokens.labelled import Batch, loss_sum, metrics

__all__ = ["build_model", "collate", "forward", "loss_sum", "metrics", "sample"]

INITIAL_STD = 0.02  # as in GPT-2
TEMPERATURE = 1.0  # 1: sequences are drawn with the chances that the model gives them
BRANCHES = 2  # of each block: attention and feed-forward


class Block(nn.Module):
    """x + attention(LayerNorm(x)), then x + feed-forward(LayerNorm(x)); dropout on what each branch adds."""

    def __init__(self, settings: Transformer) -> None:
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expansion = nn.Linear(width, settings.feed_forward)
        self.contraction = nn.Linear(settings.feed_forward, width)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, hidden: torch.Tensor, seen: torch.Tensor | None = None) -> torch.Tensor:
        """(rows, longest, width), and the same again. `seen`: as in `attended`."""
        hidden = hidden + self.dropout(self.projection(self.attended(self.attention_norm(hidden), seen)))
        expanded = functional.gelu(self.expansion(self.feed_forward_norm(hidden)))
        added: torch.Tensor = self.dropout(self.contraction(expanded))
        return hidden + added

    def attended(self, hidden: torch.Tensor, seen: torch.Tensor | None = None) -> torch.Tensor:
        """Each position sees itself and those before it, or what `seen` says, bool (rows, 1, longest, longest).
        (rows, longest, width), and the same again.
        """
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(hidden).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, is_causal=seen is None)
        return mixed.transpose(1, 2).flatten(-2)


class MiniGPT(nn.Module):
    """Token and position embeddings, causal pre-norm blocks, a final LayerNorm; the head's weight is the token
    embedding's, one parameter under two names.
    """

    def __init__(self, settings: Transformer, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, settings.width)
        self.positions = nn.Embedding(shape.positions, settings.width)
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.Sequential(*(Block(settings) for _ in range(settings.layers)))
        self.norm = nn.LayerNorm(settings.width)
        self.head = nn.Linear(settings.width, shape.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self._draw_weights(settings.layers)

    def forward(
        self, tokens: torch.Tensor, segments: torch.Tensor | None = None, places: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits of the next token, (rows, longest, vocabulary). `segments`, `places`: as in a Batch."""
        if places is None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
        seen = None if segments is None else labelled.same_sequence(segments).tril()[:, None]
        hidden = self.dropout(self.embedding(tokens) + self.positions(places))
        for block in self.blocks:
            hidden = block(hidden, seen)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits

    def _draw_weights(self, layers: int) -> None:
        """As GPT-2. What adds to the residual stream is smaller, so that the sum over all branches keeps its size."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                adds = name.endswith(("projection.weight", "contraction.weight"))
                nn.init.normal_(parameter, std=INITIAL_STD / math.sqrt(BRANCHES * layers) if adds else INITIAL_STD)


def build_model(settings: Model, shape: Shape | ImageShape) -> nn.Module:
    """Raises WorkloadError when labels go beyond the tokens: the head has a row per token and no other."""
    settings, shape = labelled.of_tokens("causal_lm", settings, shape)
    if shape.classes > shape.vocabulary:
        raise WorkloadError(
            f"workload causal_lm predicts tokens, but the corpus has {shape.classes} classes of labels and a "
            f"vocabulary of only {shape.vocabulary} tokens: let each label be the token that comes next, or take "
            "workload token_labels"
        )
    return MiniGPT(settings, shape)


def collate(rows: Sequence[Row], device: torch.device | str = "cpu") -> Batch:
    """Raises WorkloadError when a supervised label is not the token that comes next, or is the first token of the next
    sequence of a packed row. Of the last position of a sequence that is not known: it may be cut from a longer text.
    """
    for row in rows:
        _require_next_tokens(row)
    return labelled.collate(rows, device)


def _require_next_tokens(row: Row) -> None:
    if row.labels[:-1] == row.tokens[1:] and row.starts is None:  # almost always, and faster than a look at each
        return
    ends = {start - 1 for start in (row.starts or ())[1:]}
    _require_no_label_beyond(row, sorted(ends))
    pairs = enumerate(zip(row.labels, row.tokens[1:], strict=False))
    inside = ((place, label, after) for place, (label, after) in pairs if place not in ends)
    wrong = next((place for place, label, after in inside if label not in (UNSUPERVISED, after)), None)
    if wrong is None:
        return
    copies = all(label in (UNSUPERVISED, token) for label, token in zip(row.labels, row.tokens, strict=True))
    raise WorkloadError(
        f"row '{row.id}', position {wrong}: workload causal_lm predicts the next token, which is "
        f"{row.tokens[wrong + 1]}, but the label is {row.labels[wrong]}"
        f"{' (the labels are the tokens themselves, not shifted)' if copies else ''}: "
        "shift the labels by one, or give rows without labels and corpus.labels: next_token"
    )


def _require_no_label_beyond(row: Row, ends: Sequence[int]) -> None:
    """`ends`: the last positions of the sequences of a packed row, but for its own last."""
    over = next((end for end in ends if row.labels[end] == row.tokens[end + 1]), None)
    if over is not None:
        raise WorkloadError(
            f"row '{row.id}', position {over}: a sequence of this packed row ends here, and the label, "
            f"{row.labels[over]}, is the first token of the next: set it to {UNSUPERVISED}, or give rows without "
            "labels and corpus.labels: next_token"
        )


def forward(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Padding stands to the right of a row, where no position of the row looks, and has no label: it needs no mask."""
    packed = () if batch.segments is None else (batch.segments, batch.places)
    logits: torch.Tensor = model(batch.tokens, *packed)
    return logits


@torch.no_grad()
def sample(model: nn.Module, first_token: int, generator: torch.Generator, longest: int, stop: Set[int]) -> list[int]:
    """Draw one token after another, each by the chances that the model gives it after those before, until one is in
    `stop` or `longest` (at most the model's positions) are there. Draws on the CPU, whatever the model's device.
    """
    model.eval()
    device = next(model.parameters()).device
    tokens = [first_token]
    while len(tokens) < longest and tokens[-1] not in stop:
        logits = model(torch.tensor([tokens], device=device))[0, -1]
        chances = torch.softmax(logits.double().cpu() / TEMPERATURE, 0)
        tokens.append(int(torch.multinomial(chances, 1, generator=generator)))
    return tokens
