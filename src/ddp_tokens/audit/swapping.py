"""Other parameters and buffers in a module for the length of a block: forward and backward, and nothing of it stays."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

OF_DISTRIBUTED = "torch.distributed"


@contextmanager
def swapped(module: nn.Module, instead: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """`instead`: by id of a parameter or buffer. One that has several names is replaced under each of them.

    Attributes that forward sets are put back as well, such as a counter or a cache. Backward must be inside: gradient
    checkpointing calls forward again there.
    """
    undo: list[Callable[[], None]] = []
    try:
        for part in module.modules():
            stores = (part._parameters, part._buffers, part._forward_pre_hooks, part._forward_hooks, part.__dict__)
            undo += [_kept(store) for store in stores]
            for store in (part._parameters, part._buffers):
                for name, tensor in store.items():
                    if tensor is not None and id(tensor) in instead:
                        store[name] = instead[id(tensor)]
            if isinstance(part, nn.RNNBase):  # which keeps a list of its parameters besides
                part._flat_weights = [getattr(part, name, None) for name in part._flat_weights_names]
            _remove_sharding(part._forward_pre_hooks)
            _remove_sharding(part._forward_hooks)
        yield
    finally:
        for step in reversed(undo):
            step()


def _kept(store: dict[Any, Any]) -> Callable[[], None]:
    before = dict(store)

    def put_back() -> None:
        store.clear()
        store.update(before)

    return put_back


def _remove_sharding(hooks: dict[int, Any]) -> None:
    """fully_shard gathers parameters by hooks; here they are whole already."""
    for key, hook in list(hooks.items()):
        if str(getattr(hook, "__module__", "")).startswith(OF_DISTRIBUTED):
            del hooks[key]
