"""What really happens inside a window: when ranks reduce, when gradients are cleared, when weights move."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.strategies import bare_of
from ddp_tokens.tensors import own_part

Forwards = list[dict[str, Any]]


def trace(model: torch.nn.Module, run: Callable[[], object]) -> dict[str, Any]:
    """Call `run()`, which takes `model` through one window, and record it from outside.

    `forwards`: for each forward, whether a gradient was there before it (`gradients`), whether a weight had moved since
    the window began (`moved`), and the buckets that were reduced before the next forward (`reductions`); of a model
    that ranks hold in parts, a bucket is what one of its modules reduces and scatters. `moved`: whether a weight had
    moved at the end. A DDP model keeps a communication hook, which it allows once: wrap one for this.
    """
    bare = bare_of(model)
    start = [own_part(parameter.detach()).clone() for parameter in bare.parameters()]
    forwards: Forwards = []

    def moved() -> bool:
        now = (own_part(parameter.detach()) for parameter in bare.parameters())
        return any(not torch.equal(a, b) for a, b in zip(start, now, strict=True))

    def before_forward(*_: Any) -> None:
        present = any(parameter.grad is not None for parameter in bare.parameters())
        forwards.append({"gradients": present, "moved": moved(), "reductions": []})

    watching = _of_ddp if isinstance(model, DistributedDataParallel) else _of_parts
    # First of all hooks: those of fully_shard put whole weights in the place of the parts.
    handle = bare.register_forward_pre_hook(before_forward, prepend=True)
    try:
        with watching(model, forwards):
            run()
    finally:
        handle.remove()
    return {"forwards": forwards, "moved": moved()}


@contextmanager
def _of_ddp(model: Any, forwards: Forwards) -> Iterator[None]:
    def count(_: None, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        forwards[-1]["reductions"].append(bucket.index())
        return allreduce_hook(model.process_group, bucket)

    model.register_comm_hook(None, count)
    yield


@contextmanager
def _of_parts(model: torch.nn.Module, forwards: Forwards) -> Iterator[None]:
    """Each module of fully_shard gathers its weights before its forward; gradients are with these until a reduction."""
    from torch.distributed.fsdp import FSDPModule

    def look_for_gradients(module: torch.nn.Module, *_: Any) -> None:
        forwards[-1]["gradients"] |= any(parameter.grad is not None for parameter in module.parameters())

    handles = []
    for index, module in enumerate(part for part in model.modules() if isinstance(part, FSDPModule)):
        module.set_custom_reduce_scatter(_counting(index, forwards))
        handles.append(module.register_forward_pre_hook(look_for_gradients))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _counting(index: int, forwards: Forwards) -> Any:
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

    class Counting(DefaultReduceScatter):
        def __call__(self, *arguments: Any, **named: Any) -> Any:
            forwards[-1]["reductions"].append(index)
            return super().__call__(*arguments, **named)

    return Counting()
