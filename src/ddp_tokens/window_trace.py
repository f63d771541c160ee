"""What really happens inside a window: when ranks reduce, when gradients are cleared, when weights move."""

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel


def trace(model: DistributedDataParallel, run: Callable[[], object]) -> dict[str, Any]:
    """Call `run()`, which takes `model` through one window, and record it from outside.

    `forwards`: for each forward, whether a gradient was there before it (`gradients`), whether a weight had moved since
    the window began (`moved`), and the buckets that were reduced before the next forward (`reductions`). `moved`:
    whether a weight had moved at the end. The model keeps a communication hook, which DDP allows once: wrap
    one for this.
    """
    bare = model.module
    start = [parameter.detach().clone() for parameter in bare.parameters()]
    forwards: list[dict[str, Any]] = []

    def moved() -> bool:
        return any(not torch.equal(a, b) for a, b in zip(start, bare.parameters(), strict=True))

    def before_forward(*_: Any) -> None:
        present = any(parameter.grad is not None for parameter in bare.parameters())
        forwards.append({"gradients": present, "moved": moved(), "reductions": []})

    def count(_: None, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        forwards[-1]["reductions"].append(bucket.index())
        return allreduce_hook(model.process_group, bucket)

    model.register_comm_hook(None, count)
    handle = bare.register_forward_pre_hook(before_forward)
    try:
        run()
    finally:
        handle.remove()
    return {"forwards": forwards, "moved": moved()}
