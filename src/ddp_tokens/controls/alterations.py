"""What variants of resumes and replicas train in place of the experiment's model and optimizer."""

from dataclasses import replace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.checkpoint import TrainingState
from ddp_tokens.distributed import wrap_for_ddp
from ddp_tokens.start_files import SCALER
from ddp_tokens.train import Begun

LEARNING_RATE, MOMENTUM = 0.01, 0.9
FIRST_SCALE, BACKOFF = 2.0**24, 2.0**-8  # the first update overflows, those at 2^16 do not


class NormalizedHead(torch.nn.Module):
    """BatchNorm over all positions of a microbatch, added to what came in, before the head.

    In its place it would make the loss blind to the scales and shifts of the LayerNorm before, which would not move.
    """

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(head.in_features)
        self.head = head

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(rows, positions, width) to (rows, positions, classes)."""
        logits: torch.Tensor = self.head(hidden + self.norm(hidden.flatten(0, 1)).view_as(hidden))
        return logits


def with_adamw(begun: Begun) -> Begun:
    optimizer = torch.optim.AdamW(begun.model.parameters(), lr=LEARNING_RATE, betas=(0.8, 0.9))
    return replace(begun, state=TrainingState(begun.state.model, optimizer))


def in_float64(begun: Begun) -> Begun:
    return _wrapped_again(begun, begun.state.model.double())


def with_tied_weights(begun: Begun) -> Begun:
    bare: Any = begun.state.model
    bare.head.weight = bare.embedding.weight
    return _wrapped_again(begun, bare)


def with_batch_norm(begun: Begun) -> Begun:
    return _wrapped_again(begun, _normalized(begun))


def with_buffers_kept_apart(begun: Begun) -> Begun:
    """As with broadcast_buffers=False, which newer versions of torch warn of."""
    apart = with_batch_norm(begun)
    apart.model.broadcast_buffers = False
    return apart


def with_default_layout(begun: Begun) -> Begun:
    bare = begun.state.model
    return _around(begun, bare, DistributedDataParallel(bare))


def with_large_loss_scale(begun: Begun) -> Begun:
    """Of an experiment with use_amp and amp_dtype float16."""
    precision = begun.how.precision
    scaler = torch.amp.GradScaler(precision.device_type, init_scale=FIRST_SCALE, backoff_factor=BACKOFF)
    begun.state.extras[SCALER] = scaler
    return replace(begun, how=replace(begun.how, precision=replace(precision, scaler=scaler)))


def _normalized(begun: Begun) -> torch.nn.Module:
    bare: Any = begun.state.model
    bare.head = NormalizedHead(bare.head)
    model: torch.nn.Module = bare
    return model


def _wrapped_again(begun: Begun, bare: torch.nn.Module) -> Begun:
    return _around(begun, bare, wrap_for_ddp(bare))


def _around(begun: Begun, bare: torch.nn.Module, model: DistributedDataParallel) -> Begun:
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    return replace(begun, model=model, state=TrainingState(bare, optimizer))
