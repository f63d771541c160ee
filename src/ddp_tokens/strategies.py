"""What ranks hold of a model and its optimizer's state: all of it, or each a share.

ddp    DistributedDataParallel: every rank holds everything, and gradients are averaged by all-reduce
zero1  the same, with ZeroRedundancyOptimizer: each rank updates some parameters, and sends them to the others
fsdp2  fully_shard: each rank holds a part of every tensor; forward and backward gather what they need, and gradients
       are averaged by reduce-scatter

Each averages gradients over W ranks, so W * S_r / N is prepared for all three alike. What only two of them need is
imported where it is used: it takes longer to import than a small model takes to train.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from ddp_tokens.distributed import progress_told, ranks_together, sum_over_ranks, wrap_for_ddp
from ddp_tokens.distributed import share_buffers as share_buffers_of_ddp
from ddp_tokens.errors import ConfigError
from ddp_tokens.progress import OPTIMIZER, Progress
from ddp_tokens.shared_state import is_shared
from ddp_tokens.strategy_settings import DDP, FSDP2, ZERO1
from ddp_tokens.tensors import is_sharded, whole

REDUCTION = "all-reduce of the gradients"
SCATTERED_REDUCTION = "reduce-scatter of the gradients"
NORM = "update, with the all-reduce of the gradient's norm"
SENDING = "update, with the broadcast of the weights"
GATHERING_FORWARD = "forward, with the all-gather of the weights"
GATHERING_BACKWARD = "backward, with the all-gather of the weights"


def wrap(model: torch.nn.Module, strategy: str = DDP) -> torch.nn.Module:
    """The model, on the rank's device already, as the ranks train it together. Every rank calls this.

    fsdp2 changes the model itself: its parameters become DTensors of the same names. Nothing is broadcast then: every
    rank must have loaded the same weights. Raises ConfigError for a model with running statistics under fsdp2.
    """
    return _sharded(model) if strategy == FSDP2 else wrap_for_ddp(model)


def bare_of(model: torch.nn.Module) -> torch.nn.Module:
    """The module whose parameters have the names that they were given."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def unsynchronized(model: torch.nn.Module) -> AbstractContextManager[None]:
    """Forward and backward inside leave gradients on the rank that computed them."""
    if gathers(model):
        return _without_reduction(model)
    return cast(AbstractContextManager[None], cast(DistributedDataParallel, model).no_sync())


def gathers(model: torch.nn.Module) -> bool:
    """Whether every forward and every backward of it waits for all ranks."""
    return hasattr(model, "set_requires_gradient_sync")  # FSDPModule's own; its import is what takes long


def reduction_of(model: torch.nn.Module) -> str:
    """What is waited for in the backward that synchronizes."""
    return SCATTERED_REDUCTION if gathers(model) else REDUCTION


def updating(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> AbstractContextManager[None]:
    """What ranks that share a model or a state wait for in an update: the gradient's norm, or the weights of others."""
    if gathers(model):
        return progress.entered(NORM, OPTIMIZER)
    return progress.entered(SENDING, OPTIMIZER) if is_shared(optimizer) else progress.spent(OPTIMIZER)


def gathered(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, those put together of which ranks hold parts: then every rank calls this."""
    if not any(is_sharded(tensor) for tensor in tensors.values()):
        return dict(tensors)
    with progress_told().entered("all-gather of whole tensors"):
        return {name: whole(tensor) for name, tensor in tensors.items()}


@contextmanager
def reaching(model: torch.nn.Module) -> Iterator[set[str]]:
    """The names of parameters that backward passes inside the block reach on this rank, as far as ranks hold parts.

    There a parameter that no rank reaches gets a gradient of zeros, as if it were reached and its gradient zero.
    """
    if not gathers(model):
        yield set()
        return
    from torch.distributed.fsdp import FSDPModule

    reached: set[str] = set()
    watched: dict[str, RemovableHandle] = {}

    def watch(module: torch.nn.Module, *_: Any, prefix: str) -> None:
        for name, parameter in module.named_parameters(prefix=prefix, remove_duplicate=False):
            if name not in watched and parameter.requires_grad and not is_sharded(parameter):
                watched[name] = parameter.register_post_accumulate_grad_hook(lambda _, name=name: reached.add(name))

    parts = [(prefix, module) for prefix, module in model.named_modules() if isinstance(module, FSDPModule)]
    # After fully_shard's own hooks, which put whole weights in the place of the parts: these are what backward reaches.
    handles = [module.register_forward_pre_hook(partial(watch, prefix=prefix)) for prefix, module in parts]
    try:
        yield reached
    finally:
        for handle in (*handles, *watched.values()):
            handle.remove()


def reached_by_ranks(model: torch.nn.Module, reached: Collection[str], device: str) -> set[str]:
    """The parameters that have a gradient because a loss of any rank depends on them. Every rank calls this.

    `reached`: of this rank, as `reaching` found it. Where ranks hold everything, gradients have no other reason.
    """
    names = [name for name, parameter in bare_of(model).named_parameters() if parameter.grad is not None]
    if not gathers(model):
        return set(names)
    ranks = sum_over_ranks([float(name in reached) for name in names], device, "count of reached parameters")
    return {name for name, number in zip(names, ranks, strict=True) if number}


def share_buffers(model: torch.nn.Module) -> None:
    """After a run's last window, see distributed.share_buffers. Under fsdp2 no buffer is sent: none may change."""
    if isinstance(model, DistributedDataParallel):
        share_buffers_of_ddp(model)


def optimizer_of(
    model: torch.nn.Module, kind: type[torch.optim.Optimizer], settings: Mapping[str, Any], strategy: str = DDP
) -> torch.optim.Optimizer:
    """For all parameters of the wrapped model. Under zero1 every rank calls this."""
    if strategy != ZERO1:
        return kind(model.parameters(), **settings)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    found: torch.optim.Optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=kind, process_group=ranks_together(), **settings
    )
    return found


def _sharded(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    _require_no_running_statistics(model)
    device, group = next(model.parameters()).device.type, ranks_together()
    with progress_told().entered("meeting of the device mesh"):
        if group is None:
            mesh = init_device_mesh(device, (dist.get_world_size(),))
        else:
            mesh = DeviceMesh.from_group(group, device)
    # Labelled logits are a view, which only an in-place change would harm: the gradient that is compared would show it.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    for block in blocks_of(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # A rank whose rows do not reach a parameter would otherwise reduce less than the others. See `reaching`.
    cast(FSDPModule, model).set_reduce_scatter_unused_params(True)
    return model


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that are gathered one at a time: what lists and sequences of the model hold, the outermost ones, as
    far as it has parameters that nothing outside of it shares. The rest is gathered with the model.
    """
    blocks = [
        block
        for holder in _outermost_lists(model)
        for block in holder.children()
        if next(block.parameters(), None) is not None
    ]
    names = [id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)]
    shared = {name for name in names if names.count(name) > 1}
    return [block for block in blocks if not shared & {id(parameter) for parameter in block.parameters()}]


def _outermost_lists(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        yield module
        return
    for child in module.children():
        yield from _outermost_lists(child)


def _require_no_running_statistics(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "running_mean", None) is not None:
            raise ConfigError(
                f"strategy fsdp2 sends no buffers, and {name or 'the model'} ({type(module).__name__}) keeps running "
                "statistics, which would differ between ranks: take a layer without them (model.norm group), or "
                "strategy ddp"
            )


@contextmanager
def _without_reduction(model: torch.nn.Module) -> Iterator[None]:
    sharded = cast(Any, model)
    sharded.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        sharded.set_requires_gradient_sync(True)
