"""An optimizer's state by the names of the parameters, whoever holds it, and back."""

from collections.abc import Mapping
from typing import Any

import torch

from ddp_tokens.shared_state import gathered_state, is_shared, load_shared


def groups_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The optimizer's settings by group, with the names of its parameters."""
    name_of = _name_of(model)
    return [
        group | {"params": [name_of[id(parameter)] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]


def split_state(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors under `NAME/KEY`, everything else for JSON. Where ranks share the state between them, every rank calls
    this, and gets all of it.
    """
    groups = groups_of(model, optimizer)
    if is_shared(optimizer):
        tensors, scalars = gathered_state(optimizer, _name_of(model))
        return tensors, {"state": scalars, "param_groups": groups}
    names = _in_order(groups)
    tensors, scalars = {}, {}
    for index, entries in optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            target: dict[str, Any] = tensors if isinstance(value, torch.Tensor) else scalars
            target[f"{names[index]}/{key}"] = value
    return tensors, {"state": scalars, "param_groups": groups}


def load_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Any],
) -> None:
    """What split_state gave."""
    by_name: dict[str, dict[str, Any]] = {}
    for path, value in {**tensors, **scalars["state"]}.items():
        name, _, key = path.rpartition("/")
        by_name.setdefault(name, {})[key] = value
    if is_shared(optimizer):
        load_shared(optimizer, scalars["param_groups"], by_name, _name_of(model))
        return
    index_of = {name: index for index, name in enumerate(_in_order(groups_of(model, optimizer)))}
    state = {index_of[name]: entries for name, entries in by_name.items()}
    groups = [group | {"params": [index_of[name] for name in group["params"]]} for group in scalars["param_groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def empty_state(kinds: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A tensor of zeros for each entry NAME/KEY: of its parameter's shape, in parts where that is, or one number."""
    return {
        name: torch.zeros_like(parameters[name.rpartition("/")[0]].detach())
        if kind.dim()
        else torch.zeros((), dtype=kind.dtype)
        for name, kind in kinds.items()
    }


def _name_of(model: torch.nn.Module) -> dict[int, str]:
    return {id(parameter): name for name, parameter in model.named_parameters()}


def _in_order(groups: list[dict[str, Any]]) -> list[str]:
    """Names as the optimizer's state_dict counts parameters."""
    return [name for group in groups for name in group["params"]]
