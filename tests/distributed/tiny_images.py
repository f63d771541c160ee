"""The tiny experiment with images in epochs: 13 rows over two ranks are 7 and 6, in two windows of two microbatches
each, the second of which is short. Three epochs; the interruption after update 3 stands inside the second.
"""

import signal
from dataclasses import replace
from typing import Any

import torch

from ddp_tokens import train as train_module
from ddp_tokens import trainer
from tests.distributed.test_interrupted import signal_at
from tests.distributed.tiny import train_as_program

WINDOWS_PER_EPOCH, EPOCHS = 2, 3
LR = 0.125
IMAGES: dict[str, Any] = {
    "corpus": {
        "kind": "images",
        "train": 13,
        "validation": 2,
        "test": 5,
        "classes": 3,
        "channels": 1,
        "size": 8,
        "noise": 0.25,
    },
    "workload": "images",
    "model": {"kind": "resnet", "stages": [4], "blocks": 1},
    "optimizer": {"lr": LR, "momentum": 0.9, "weight_decay": 1e-4},
    "sharding": "by_epoch",
}
FLOAT16 = {"use_amp": True, "amp_dtype": "float16"}
COSINE = {"schedule": {"kind": "cosine", "final_lr": 0.0625}}
FIRST_SCALE, BACKOFF, GROWTH_INTERVAL = 65536.0, 2.0**-8, 4


def overflow_first(world: Any, arguments: list[str]) -> dict[str, Any]:
    """ddp_tokens.train as a command; in update 1, rank 1's gradient of the head's bias is infinite. `fired`: how often.

    The scaler lowers 65536 to 256 at once, and doubles after four updates that were made.
    """
    fired = []
    begin, precision_of = train_module.begin, trainer.precision_of

    def begin_with_fault(*given: Any) -> Any:
        begun = begin(*given)

        def blow_up(gradient: torch.Tensor) -> torch.Tensor:
            if world.rank != 1 or begun.state.step > 0:
                return gradient
            fired.append(begun.state.step)
            return gradient * float("inf")

        begun.state.model.head.bias.register_hook(blow_up)  # type: ignore[union-attr, operator]
        return begun

    def quick(*given: Any) -> Any:
        scaler = torch.amp.GradScaler(
            "cpu", init_scale=FIRST_SCALE, backoff_factor=BACKOFF, growth_interval=GROWTH_INTERVAL
        )
        return replace(precision_of(*given), scaler=scaler)

    train_module.begin, trainer.precision_of = begin_with_fault, quick
    return train_as_program(world, arguments) | {"fired": len(fired)}


def kill_in(world: Any, arguments: list[str], update: int) -> dict[str, Any]:
    """Rank 1 is killed at the end of this update."""
    return signal_at(world, arguments, [update], 1, signal.SIGKILL)
