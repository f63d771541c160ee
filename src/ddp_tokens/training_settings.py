"""What is trained and how weights are updated: one section per kind of model, optimizer and schedule."""

import json
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, Tag, field_validator, model_validator

from ddp_tokens.setting_types import Fraction, NonNegativeReal, Positive, PositiveReal, Section, kind_of


class Transformer(Section):
    """A small pre-norm Transformer. Vocabulary, positions and classes follow the corpus."""

    kind: Literal["transformer"] = Field("transformer", description="for rows of tokens; the default")
    width: Positive = Field(128, description="embedding width; a multiple of heads")
    layers: Positive = Field(2, description="Transformer layers")
    heads: Positive = Field(4, description="attention heads")
    feed_forward: Positive = Field(256, description="width of the feed-forward part")
    dropout: Fraction = Field(0.1, description="on in training; off where gradients are compared and in evaluation")

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class ResNet(Section):
    """MiniResNet, a small residual network: a convolution, stages of residual blocks, of which every one but the first
    halves height and width, the mean over all pixels, a linear head. Channels, size and classes follow the corpus."""

    kind: Literal["resnet"] = Field("resnet", description="for images")
    stages: Annotated[tuple[Positive, ...], Field(min_length=1)] = Field(
        (64, 128, 256), description="channels of each stage"
    )
    blocks: Positive = Field(2, description="residual blocks of each stage")
    norm: Literal["batch", "sync_batch", "group"] = Field(
        "batch",
        description="batch: BatchNorm, each rank with the statistics of its own rows, buffers taken from rank 0 as DDP "
        "does; sync_batch: statistics over the rows of all ranks, on cuda only; group: GroupNorm, without statistics",
    )
    groups: Positive = Field(8, description="of norm group: groups of channels; a divisor of every stage")

    @model_validator(mode="after")
    def _groups_divide_stages(self) -> Self:
        if self.norm == "group" and any(channels % self.groups for channels in self.stages):
            raise ValueError(f"groups {self.groups} must divide the channels of every stage, {list(self.stages)}")
        return self


class OwnModel(Section):
    """The model of a workload of your own, whose `build_model(settings, shape)` is given this section."""

    kind: Literal["own"] = Field("own", description="for a workload of your own")
    settings: dict[str, JsonValue] = Field(
        {}, description="whatever your build_model reads, as `settings.settings[...]`: plain values, lists and mappings"
    )

    @field_validator("settings")
    @classmethod
    def _plain(cls, settings: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """They stand in JSON files, which have no infinity and no NaN."""
        try:
            json.dumps(settings, allow_nan=False)
        except ValueError:
            raise ValueError("a number that is not finite cannot be a setting") from None
        return settings


Model = Annotated[
    Annotated[Transformer, Tag("transformer")] | Annotated[ResNet, Tag("resnet")] | Annotated[OwnModel, Tag("own")],
    kind_of(lambda value: "transformer"),
]


ClipNorm = PositiveReal | None
CLIP_NORM: ClipNorm = Field(
    None,
    description="largest norm of a window's gradient; larger ones are scaled down, once per window, after the last "
    "backward",
)


class Sgd(Section):
    """SGD with momentum."""

    kind: Literal["sgd"] = Field("sgd", description="stochastic gradient descent; the default")
    lr: PositiveReal = Field(0.02, description="learning rate")
    momentum: Fraction = Field(0.9, description="above 0, so that there is optimizer state that a resume could lose")
    weight_decay: NonNegativeReal = Field(0.0, description="share of a weight that is added to its gradient")
    clip_norm: ClipNorm = CLIP_NORM


class AdamW(Section):
    """Adam with decoupled weight decay."""

    kind: Literal["adamw"] = Field("adamw", description="Adam with decoupled weight decay")
    lr: PositiveReal = Field(3e-4, description="learning rate")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="decay of the running means of both moments")
    eps: PositiveReal = Field(1e-8, description="added to the root of the second moment")
    weight_decay: NonNegativeReal = Field(0.01, description="share of lr by which every weight shrinks in each update")
    clip_norm: ClipNorm = CLIP_NORM


Optimizer = Annotated[
    Annotated[Sgd, Tag("sgd")] | Annotated[AdamW, Tag("adamw")],
    kind_of(lambda value: "sgd"),
]


class Constant(Section):
    """The learning rate of the optimizer, all the time."""

    kind: Literal["constant"] = Field("constant", description="no schedule; the default")


class Cosine(Section):
    """The learning rate falls from the optimizer's along half a cosine (SGDR without restarts)."""

    kind: Literal["cosine"] = Field("cosine", description="from the optimizer's lr down to final_lr")
    per: Literal["epoch", "update"] = Field(
        "epoch", description="when it falls: after each epoch, which needs sharding by_epoch, or after each update"
    )
    final_lr: NonNegativeReal = Field(0.0, description="learning rate that it would reach after the last update")


Schedule = Annotated[
    Annotated[Constant, Tag("constant")] | Annotated[Cosine, Tag("cosine")],
    kind_of(lambda value: "constant"),
]
