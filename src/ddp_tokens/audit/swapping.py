"""Other parameters and buffers in a module for the length of a block: forward and backward, and nothing of it stays."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

OF_DISTRIBUTED = "torch.distributed"
OF_MODULES = frozenset(nn.Module().__dict__)
# Parts that do more than what they wrap, with other ranks or with a compiler.
LOOKED_THROUGH = {"DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
STORES = (dict, list, set, deque)  # hooks, parts, parameters and buffers among them

Change = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def swapped(module: nn.Module, instead: Mapping[int, torch.Tensor], change: Change) -> Iterator[None]:
    """`instead`: by id of a parameter or buffer. One that has several names is replaced under each of them. `change`:
    what becomes of other tensors that are attributes, or in a list, tuple or dict that is one.

    Attributes that forward sets are put back as well, such as a counter or a cache, and what is in them. Backward must
    be inside: gradient checkpointing calls forward again there.
    """
    undo: list[Callable[[], None]] = []
    try:
        for part in module.modules():
            undo += [_kept(store) for store in part.__dict__.values() if isinstance(store, STORES)]
            undo.append(_kept(part.__dict__))
            for store in (part._parameters, part._buffers):
                for name, tensor in store.items():
                    if tensor is not None and id(tensor) in instead:
                        store[name] = instead[id(tensor)]
            for name, value in list(part.__dict__.items()):
                if name not in OF_MODULES:
                    part.__dict__[name] = _changed(value, instead, change)
            part.__dict__["_compiled_call_impl"] = None
            if (inner := LOOKED_THROUGH.get(type(part).__name__)) is not None:
                part.__dict__["forward"] = getattr(part, inner).__call__
            if isinstance(part, nn.RNNBase):  # which keeps a list of its parameters besides
                part._flat_weights = [getattr(part, name, None) for name in part._flat_weights_names]
            _remove_sharding(part._forward_pre_hooks)
            _remove_sharding(part._forward_hooks)
        yield
    finally:
        for step in reversed(undo):
            step()


def _kept(store: Any) -> Callable[[], None]:
    before = dict(store) if isinstance(store, dict) else list(store)

    def put_back() -> None:
        store.clear()
        if isinstance(store, dict | set):
            store.update(before)
        else:
            store.extend(before)

    return put_back


def _changed(value: Any, instead: Mapping[int, torch.Tensor], change: Change) -> Any:
    if isinstance(value, torch.Tensor):
        return instead[id(value)] if id(value) in instead else change(value.detach())
    if type(value) in (list, tuple):
        return type(value)(_changed(item, instead, change) for item in value)
    if type(value) is dict:
        return {key: _changed(item, instead, change) for key, item in value.items()}
    return value


def _remove_sharding(hooks: dict[int, Any]) -> None:
    """fully_shard gathers parameters by hooks; here they are whole already."""
    for key, hook in list(hooks.items()):
        if str(getattr(hook, "__module__", "")).startswith(OF_DISTRIBUTED):
            del hooks[key]
