"""Label every token of a sequence with a small pre-norm Transformer encoder."""

import torch
from torch import nn

from ddp_tokens.config import Model, Transformer
from ddp_tokens.corpora.lock import ImageShape, Shape
from ddp_tokens.labelled import Batch, collate, loss_sum, metrics, of_tokens

__all__ = ["build_model", "collate", "forward", "loss_sum", "metrics"]


class TokenLabeller(nn.Module):
    """Token and position embeddings, encoder layers, a final LayerNorm, a linear head.

    With width 128, 2 layers, 4 heads, feed-forward 256, vocabulary 4, 128 positions and 4 classes it has 282,628
    parameters, as the published run's model.
    """

    def __init__(self, settings: Transformer, shape: Shape) -> None:
        super().__init__()
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

    def forward(self, tokens: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        """Logits, (rows, longest, classes)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.embedding(tokens) + self.positions(places)
        logits: torch.Tensor = self.head(self.encoder(hidden, src_key_padding_mask=padding))
        return logits


def build_model(settings: Model, shape: Shape | ImageShape) -> nn.Module:
    return TokenLabeller(*of_tokens("token_labels", settings, shape))


def forward(model: nn.Module, batch: Batch) -> torch.Tensor:
    logits: torch.Tensor = model(batch.tokens, batch.padding)
    return logits
