"""What ranks hold of the model and of the optimizer's state: the setting, and what it does not go with."""

from typing import Literal

from ddp_tokens.setting_types import Section
from ddp_tokens.training_settings import ResNet

DDP, FSDP2, ZERO1 = "ddp", "fsdp2", "zero1"
Strategy = Literal["ddp", "fsdp2", "zero1"]


def require_strategy(strategy: Strategy, world_size: int, amp_dtype: str | None, model: Section) -> None:
    """Raises ValueError where another setting does not go with it. `amp_dtype`: None without mixed precision."""
    if strategy != FSDP2:
        return
    if world_size == 1:
        raise ValueError(
            "strategy fsdp2 needs world_size 2 or more: one rank has nobody to share with; set strategy to ddp"
        )
    if amp_dtype == "float16":
        raise ValueError(
            "strategy fsdp2 does not go with float16, whose losses are scaled: each rank would look for an overflow in "
            "its own part of the gradient; set amp_dtype to bfloat16"
        )
    if isinstance(model, ResNet) and model.norm != "group":
        raise ValueError(
            f"strategy fsdp2 sends no buffers, and model.norm {model.norm} keeps running statistics, which would "
            "differ between ranks: set model.norm to group, or strategy to ddp"
        )
