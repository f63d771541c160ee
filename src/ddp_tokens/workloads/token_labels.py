"""Label every token of a sequence with a small pre-norm Transformer encoder. Of a packed row each is seen by itself."""

import torch
from torch import nn

from ddp_tokens.config import Model, Transformer
from ddp_tokens.corpora.lock import ImageShape, Shape
from ddp_tokens.labelled import Batch, collate, loss_sum, metrics, of_tokens, same_sequence

__all__ = ["build_model", "collate", "forward", "loss_sum", "metrics"]


class TokenLabeller(nn.Module):
    """Token and position embeddings, encoder layers, a final LayerNorm, a linear head.

    With width 128, 2 layers, 4 heads, feed-forward 256, vocabulary 4, 128 positions and 4 classes it has 282,628
    parameters, as the published run's model.
    """

    def __init__(self, settings: Transformer, shape: Shape) -> None:
        super().__init__()
        self.heads = settings.heads
        self.embedding = nn.Embedding(shape.vocabulary, settings.width)
        self.positions = nn.Embedding(shape.positions, settings.width)
        layer = nn.TransformerEncoderLayer(
            settings.width,
            settings.heads,
            settings.feed_forward,
            settings.dropout,
            batch_first=True,
            norm_first=True,
        )
        self.encoder = nn.TransformerEncoder(
            layer, settings.layers, norm=nn.LayerNorm(settings.width), enable_nested_tensor=False
        )
        self.head = nn.Linear(settings.width, shape.classes)

    def forward(
        self,
        tokens: torch.Tensor,
        padding: torch.Tensor,
        segments: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits, (rows, longest, classes). `segments`, `places`: as in a Batch."""
        if places is None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.embedding(tokens) + self.positions(places)
        if segments is None:
            hidden = self.encoder(hidden, src_key_padding_mask=padding)
        else:  # of each head; where a padding mask came on top, padding would see nothing, which gives NaN
            hidden = self.encoder(hidden, mask=~same_sequence(segments).repeat_interleave(self.heads, 0))
        logits: torch.Tensor = self.head(hidden)
        return logits


def build_model(settings: Model, shape: Shape | ImageShape) -> nn.Module:
    return TokenLabeller(*of_tokens("token_labels", settings, shape))


def forward(model: nn.Module, batch: Batch) -> torch.Tensor:
    packed = () if batch.segments is None else (batch.segments, batch.places)
    logits: torch.Tensor = model(batch.tokens, batch.padding, *packed)
    return logits
