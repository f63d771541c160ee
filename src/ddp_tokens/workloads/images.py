"""Tell the class of an image with MiniResNet, a small residual network. An image is one supervised unit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy
import torch
from torch import nn
from torch.nn import functional

from ddp_tokens import batches
from ddp_tokens.config import Model, ResNet
from ddp_tokens.corpora.lock import ImageShape, Shape
from ddp_tokens.corpora.rows import PLAIN, Criterion, Row, supervised_in
from ddp_tokens.errors import WorkloadError
from ddp_tokens.labelled import is_weighted, positions_that_count, weighted_cross_entropy, weights_of

UNIT = "image"
SHIFTED_BY = 8  # the part of an image's size that augmentation moves it by at most
__all__ = ["UNIT", "augment", "build_model", "collate", "correct", "forward", "loss_sum", "metrics"]


@dataclass(frozen=True)
class Batch(batches.Batch):
    """`images`: float32 (rows, channels, height, width). `labels`: int64 (rows,). `weights`: float64 (rows, 1), None
    where each is 1. `units`: what the images add to the denominator.
    """

    images: torch.Tensor
    labels: torch.Tensor
    units: float
    weights: torch.Tensor | None = None
    criterion: Criterion = PLAIN


class Block(nn.Module):
    """Two convolutions with normalization, added to what came in; the first may have a stride."""

    def __init__(self, before: int, channels: int, stride: int, settings: ResNet) -> None:
        super().__init__()
        self.first = _convolution(before, channels, 3, stride)
        self.first_norm = _norm(channels, settings)
        self.second = _convolution(channels, channels, 3, 1)
        self.second_norm = _norm(channels, settings)
        same = before == channels and stride == 1
        self.shortcut: nn.Module = (
            nn.Identity()
            if same
            else nn.Sequential(_convolution(before, channels, 1, stride), _norm(channels, settings))
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(rows, before, height, width) to (rows, channels, height / stride, width / stride)."""
        hidden = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(self.second_norm(self.second(hidden)) + self.shortcut(images))


class MiniResNet(nn.Module):
    """A convolution, stages of residual blocks, the mean over all pixels, a linear head.

    Every stage but the first halves height and width. With stages 64, 128 and 256 of two blocks, 3 channels and 10
    classes it has 2,777,674 parameters.
    """

    def __init__(self, settings: ResNet, shape: ImageShape) -> None:
        super().__init__()
        self.stem = _convolution(shape.channels, settings.stages[0], 3, 1)
        self.stem_norm = _norm(settings.stages[0], settings)
        blocks: list[nn.Module] = []
        before = settings.stages[0]
        for stage, channels in enumerate(settings.stages):
            for block in range(settings.blocks):
                blocks.append(Block(before, channels, 2 if stage and block == 0 else 1, settings))
                before = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, shape.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, (rows, classes)."""
        images = images.to(self.stem.weight.dtype)
        hidden = self.blocks(functional.relu(self.stem_norm(self.stem(images))))
        logits: torch.Tensor = self.head(hidden.mean((2, 3)))
        return logits


def _convolution(before: int, after: int, size: int, stride: int) -> nn.Module:
    """Without a bias, which the normalization after it would take away."""
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)


def _norm(channels: int, settings: ResNet) -> nn.Module:
    return nn.GroupNorm(settings.groups, channels) if settings.norm == "group" else nn.BatchNorm2d(channels)


def build_model(settings: Model, shape: Shape | ImageShape) -> nn.Module:
    """Raises WorkloadError for another kind of model, for rows that are no images, and where BatchNorm would see a
    single pixel of an image: of one image, as a short last window may hold, that has no variance, and torch refuses it.
    """
    if not isinstance(settings, ResNet) or not isinstance(shape, ImageShape):
        raise WorkloadError("workload images needs model.kind resnet and a corpus of images")
    if max(shape.height, shape.width) <= 2 ** (len(settings.stages) - 1) and settings.norm != "group":
        raise WorkloadError(
            f"the {len(settings.stages)} stages of model.stages halve images of {shape.height} x {shape.width} pixels "
            "to a single one: take fewer stages, larger images, or model.norm group"
        )
    model = MiniResNet(settings, shape)
    if settings.norm == "sync_batch":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return model


def collate(rows: Sequence[Row], device: torch.device | str = "cpu") -> Batch:
    images = torch.from_numpy(numpy.stack([row.image() for row in rows]))
    labels = torch.tensor([row.labels[0] for row in rows])
    return Batch(images, labels, supervised_in(rows), weights_of(rows, 1), rows[0].criterion).to(device)


def augment(batch: Batch, how: str, generator: numpy.random.Generator) -> Batch:
    """Each image moved by up to an eighth of its height and width, with zeros where nothing was, and mirrored from left
    to right half of the time where `how` says so.
    """
    rows, _, height, width = batch.images.shape
    down = generator.integers(-(height // SHIFTED_BY), height // SHIFTED_BY, rows, endpoint=True)
    right = generator.integers(-(width // SHIFTED_BY), width // SHIFTED_BY, rows, endpoint=True)
    mirrored = generator.integers(2, size=rows) * (how == "shift_and_flip")
    changed = torch.zeros_like(batch.images)
    for image, into, dy, dx, mirror in zip(batch.images, changed, down.tolist(), right.tolist(), mirrored, strict=True):
        source = image.flip(-1) if mirror else image
        into[:, max(dy, 0) : height + min(dy, 0), max(dx, 0) : width + min(dx, 0)] = source[
            :, max(-dy, 0) : height + min(-dy, 0), max(-dx, 0) : width + min(-dx, 0)
        ]
    return replace(batch, images=changed)


def forward(model: nn.Module, batch: Batch) -> torch.Tensor:
    logits: torch.Tensor = model(batch.images)
    return logits


def loss_sum(outputs: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, float]:
    """`outputs`: logits, (rows, classes)."""
    return weighted_cross_entropy(outputs, batch.labels, batch.weights, batch.criterion), batch.units


def correct(outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
    """How many supervised images have the class of the largest logit; a scalar, on the outputs' device."""
    return ((outputs.argmax(-1) == batch.labels) & _counted(batch)).sum()


def metrics(outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
    total, weight = loss_sum(outputs, batch)
    scores = {"loss_sum": float(total), "correct": int(correct(outputs, batch)), "units": int(_counted(batch).sum())}
    return scores | ({"weight": weight} if is_weighted(batch.weights, batch.criterion) else {})


def _counted(batch: Batch) -> torch.Tensor:
    weights = None if batch.weights is None else batch.weights[:, 0]
    return positions_that_count(batch.labels, weights, batch.criterion)
