"""What trainers wrap around a module and around an optimizer, looked through. None of their packages is imported."""

from typing import Any

import torch
from torch import nn

from ddp_tokens.errors import AuditError

OF_MODULES = ("_orig_mod", "_original_module", "module")
OF_OPTIMIZERS = ("optimizer", "_optimizer")
HOLDING = ("LightningModule",)


def innermost(model: nn.Module) -> nn.Module:
    """The module itself, without DistributedDataParallel, torch.compile's wrapper, or those of trainers.

    Raises AuditError for FSDP1, whose parameters are not those of the module.
    """
    while True:
        if type(model).__name__ == "FullyShardedDataParallel":
            raise AuditError(
                "the model is wrapped by FullyShardedDataParallel, which flattens its parameters: audit the loop with "
                "fully_shard (FSDP2) or DistributedDataParallel"
            )
        inner = _inner(model)
        if inner is None:
            return model
        model = inner


def hooked(model: nn.Module) -> nn.Module:
    """Where hooks see each call: the module itself, or torch.compile's wrapper around it, outside what is compiled."""
    while type(model).__name__ != "OptimizedModule" and (inner := _inner(model)) is not None:
        model = inner
    return model


def communication_hooks(model: nn.Module) -> list[str]:
    """Names of what DistributedDataParallel was given to exchange gradients by, of all around the module."""
    names = [getattr(hook, "__name__", type(hook).__name__) for hook, _ in getattr(model, "_comm_hooks", [])]
    inner = _inner(model)
    return names + ([] if inner is None else communication_hooks(inner))


def _inner(model: nn.Module) -> nn.Module | None:
    return next((found for name in OF_MODULES if _wraps(model, found := getattr(model, name, None))), None)


def _wraps(model: nn.Module, inner: Any) -> bool:
    """A wrapper has no other parameters than what it wraps."""
    if not isinstance(inner, nn.Module) or inner is model:
        return False
    return {id(p) for p in model.parameters()} == {id(p) for p in inner.parameters()}


def network_of(model: nn.Module) -> nn.Module:
    """Of a module that holds the training loop as well, as a LightningModule does, the one module that has all of its
    parameters; others as they are.
    """
    inner = innermost(model)
    if not any(kind.__name__ in HOLDING for kind in type(inner).__mro__):
        return model
    inside = next((child for child in inner.children() if _wraps(inner, child)), None)
    return model if inside is None else network_of(inside)


def torch_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer whose step updates. Raises AuditError where there is none."""
    found, seen = optimizer, set[int]()
    while id(found) not in seen:
        seen.add(id(found))
        inner = (getattr(found, name, None) for name in OF_OPTIMIZERS)
        found = next((one for one in inner if isinstance(one, torch.optim.Optimizer)), found)
    if not isinstance(found, torch.optim.Optimizer):
        raise AuditError(
            f"the optimizer is a {type(optimizer).__name__}, which is no torch.optim.Optimizer: pass that one"
        )
    return found


def is_sharded(model: nn.Module) -> bool:
    """By fully_shard: each rank holds a part of each parameter, and forward gathers them."""
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def sharded_dtype(model: nn.Module) -> torch.dtype | None:
    """What fully_shard casts parameters to for forward and backward, or None where it does not."""
    state = model._get_fsdp_state() if hasattr(model, "_get_fsdp_state") else None
    found = getattr(getattr(state, "_mp_policy", None), "param_dtype", None)
    return found if isinstance(found, torch.dtype) else None
