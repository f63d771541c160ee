"""One process computes: what would talk to other ranks raises an error, since these wait and do not answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ddp_tokens.audit.between import Replaced
from ddp_tokens.errors import AuditError

COLLECTIVES = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "broadcast",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
    "barrier",
    "monitored_barrier",
)
# Of names of a group's methods, which all of these call, however a module has imported them.
OF_GROUPS = ("reduce", "gather", "scatter", "broadcast", "alltoall", "all_to_all", "send", "recv", "barrier")
OF_FUNCTIONAL = ("all_", "broadcast", "reduce_scatter", "permute_tensor")  # for a compiler, past a group's methods


@contextmanager
def alone() -> Iterator[None]:
    """Of torch.distributed's own functions. Nothing is changed where there are no other ranks."""
    if not _has_others():
        yield
        return
    replaced: list[Replaced] = []
    try:
        for owner, name in _places():
            replaced.append(Replaced(owner, name, _refuse))
        yield
    finally:
        for one in reversed(replaced):
            one.undo()


def _has_others() -> bool:
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def _places() -> list[tuple[Any, str]]:
    from torch.distributed import _functional_collectives as functional

    found: list[tuple[Any, str]] = [
        (owner, name) for owner in (dist, dist.distributed_c10d) for name in COLLECTIVES if name in vars(owner)
    ]
    found += [
        (dist.ProcessGroup, name)
        for name, value in vars(dist.ProcessGroup).items()
        if callable(value) and not name.startswith("__") and any(part in name for part in OF_GROUPS)
    ]
    found += [
        (functional, name)
        for name, value in vars(functional).items()
        if callable(value) and name.startswith(OF_FUNCTIONAL) and not name.endswith(("_backward", "_setup_context"))
    ]
    return found


def _refuse(original: Callable[..., Any], *arguments: Any, **named: Any) -> NoReturn:
    inside = "backward" if int(torch._C._current_graph_task_id()) != -1 else "forward"
    raise AuditError(
        f"the module's {inside} communicates with other ranks, so that one process cannot compute it: audit a loop "
        f"whose {inside} is local"
    )
