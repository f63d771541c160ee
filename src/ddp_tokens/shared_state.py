"""The state of ZeroRedundancyOptimizer, of which each rank holds that of the parameters that it updates.

Its consolidate_state_dict would send pickled objects; here ranks tell in JSON what they hold, and then send tensors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ddp_tokens.distributed import progress_told, ranks_together, texts_of_ranks
from ddp_tokens.files import from_json, to_json

Names = Mapping[int, str]  # id of a parameter -> its name


def is_shared(optimizer: torch.optim.Optimizer) -> bool:
    """Is it ZeroRedundancyOptimizer? Without importing it."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


def gathered_state(optimizer: Any, name_of: Names) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """By NAME/KEY: tensors, on the CPU, and everything else, of all parameters, on every rank. Every rank calls this.

    One tensor at a time is sent; whoever needs no more than their bytes should not keep them.
    """
    own: dict[str, torch.Tensor] = {}
    scalars: dict[str, Any] = {}
    for parameter, entries in optimizer.optim.state.items():
        for key, value in entries.items():
            target: dict[str, Any] = own if isinstance(value, torch.Tensor) else scalars
            target[f"{name_of[id(parameter)]}/{key}"] = value
    device = str(optimizer.param_groups[0]["params"][0].device)
    kinds = [[name, str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in own.items()]
    texts = texts_of_ranks(to_json([kinds, scalars]), device, "names of the optimizer's state")
    tensors: dict[str, torch.Tensor] = {}
    for rank, text in enumerate(texts):
        of_rank, more = from_json(text)
        scalars |= more
        for name, dtype, shape in of_rank:
            tensors[name] = _sent(own.get(name), rank, getattr(torch, dtype), shape, device)
    return tensors, scalars


def load_shared(
    optimizer: Any, groups: Sequence[Mapping[str, Any]], state: Mapping[str, Mapping[str, Any]], name_of: Names
) -> None:
    """Give each rank the state of the parameters that it updates. `groups`: settings, in the optimizer's order."""
    own = optimizer.optim
    parameters = [parameter for group in own.param_groups for parameter in group["params"]]
    index_of = {id(parameter): index for index, parameter in enumerate(parameters)}
    entries = {index: dict(state[name_of[i]]) for i, index in index_of.items() if name_of[i] in state}
    settings = [{name: value for name, value in group.items() if name != "params"} for group in groups]
    indices = [[index_of[id(parameter)] for parameter in group["params"]] for group in own.param_groups]
    written = [group | {"params": params} for group, params in zip(settings, indices, strict=True)]
    own.load_state_dict({"state": entries, "param_groups": written})
    for group, of_settings in zip(optimizer.param_groups, settings, strict=True):
        group.update(of_settings)


def _sent(own: torch.Tensor | None, rank: int, dtype: torch.dtype, shape: Sequence[int], device: str) -> torch.Tensor:
    """From `rank` to all ranks."""
    held = torch.empty(shape, dtype=dtype, device=device) if own is None else own.detach().to(device)
    held = held.contiguous()
    with progress_told().entered("broadcast of the optimizer's state"):
        dist.broadcast(held, group=ranks_together(), group_src=rank)
    return held.cpu()
