"""What ranks hold of the model and of the optimizer's state: the setting, and what it does not go with."""

from typing import TYPE_CHECKING, Literal

from ddp_tokens.training_settings import ResNet

if TYPE_CHECKING:
    from ddp_tokens.config import Experiment

DDP, FSDP2, ZERO1 = "ddp", "fsdp2", "zero1"
Strategy = Literal["ddp", "fsdp2", "zero1"]


def require_strategy(experiment: "Experiment") -> None:
    """Raises ValueError, in one sentence, where another setting does not go with the strategy."""
    if experiment.strategy != FSDP2:
        return
    if experiment.world_size == 1:
        raise ValueError(
            "strategy fsdp2 needs world_size 2 or more: one rank has nobody to share with; set strategy to ddp"
        )
    if experiment.use_amp and experiment.resolved_amp_dtype == "float16":
        raise ValueError(
            "strategy fsdp2 does not go with float16, whose losses are scaled: each rank would look for an overflow in "
            "its own part of the gradient; set amp_dtype to bfloat16"
        )
    if isinstance(experiment.model, ResNet) and experiment.model.norm != "group":
        raise ValueError(
            f"strategy fsdp2 sends no buffers, and model.norm {experiment.model.norm} keeps running statistics, which "
            "would differ between ranks: set model.norm to group, or strategy to ddp"
        )
