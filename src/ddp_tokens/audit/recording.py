"""What one rank did in a window: each forward's inputs, its loss sum, and whether a backward reached it.

Hooks only look. They draw no random number, and what they keep are copies on the CPU.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from ddp_tokens.audit.doubling import require_sum
from ddp_tokens.audit.inputs import batch_of, rows_of
from ddp_tokens.audit.losses import LossSum
from ddp_tokens.audit.packing import Tree, pack, unpack
from ddp_tokens.audit.sketch import sketch
from ddp_tokens.audit.watched import Watched
from ddp_tokens.audit.wrappers import is_sharded
from ddp_tokens.errors import AuditError

MIB = 2**20


@dataclass
class Microbatch:
    """`tree`, `tensors`: arguments, keyword arguments, and the watched batch, or None. `generators`: torch's states
    before the forward, by device. `autocast`: dtype, or None. `versions`: of all parameters, which an update changes.
    `collectives`: counter of the process group before the forward, after it, and when backward began, or None.
    """

    tree: Tree
    tensors: list[torch.Tensor]
    generators: dict[str, torch.Tensor]
    autocast: torch.dtype | None
    versions: int
    gradients_there: bool
    collectives: list[int] = field(default_factory=list)
    loss_sum: float = 0.0
    units: int = 0
    positions: int = 0
    labels: int = 0
    rows: list[str] = field(default_factory=list)
    has_backward: bool = False
    is_kept: bool = True

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class Recorder:
    """Listens to `module` until `stop`. `microbatches`: since the last `clear`."""

    def __init__(
        self, module: nn.Module, loss_sum: LossSum, watched: Watched, limit_mib: int, counter: Callable[[], int]
    ) -> None:
        self.module = module
        self.microbatches: list[Microbatch] = []
        self.is_deaf = False
        self.has_run = False
        self.is_surely_sum = False
        self.began = 0.0
        self.left_over: dict[str, Any] = {}
        self._loss_sum = loss_sum
        self._watched = watched
        self.limit = limit_mib * MIB
        self._counter = counter
        self._pending: list[Microbatch] = []
        self._hooks = [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(self._after, with_kwargs=True),
        ]

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def complete(self) -> list[Microbatch]:
        """Those whose backward came."""
        return [one for one in self.microbatches if one.has_backward]

    def clear(self) -> None:
        self.microbatches = []
        self._pending = []

    def _before(self, module: nn.Module, arguments: Any, named: Any) -> None:
        if self.is_deaf or not torch.is_grad_enabled() or _inside_backward():
            return
        parameters = list(module.parameters())
        if not self.microbatches:
            self.began = time.perf_counter()
            self.left_over = _gradients_there(module)
        self.has_run = True
        device = parameters[0].device if parameters else torch.device("cpu")
        tree, tensors = pack([list(arguments), dict(named), self._watched.take(arguments, named)], "an input")
        one = Microbatch(
            tree=tree,
            tensors=tensors,
            generators=_generators(device),
            autocast=torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None,
            versions=sum(parameter._version for parameter in parameters),
            gradients_there=_any_gradient(parameters),
            collectives=[self._counter()],
        )
        if self._bytes() + one.bytes > self.limit:
            one.is_kept = False
        else:
            one.tensors = [tensor.cpu() if tensor.device.type != "cpu" else tensor.clone() for tensor in tensors]
        self.microbatches.append(one)
        self._pending.append(one)

    def _after(self, module: nn.Module, arguments: Any, named: Any, outputs: Any) -> None:
        if self.is_deaf or not self._pending or not torch.is_grad_enabled() or _inside_backward():
            return
        one = self._pending.pop()
        one.collectives.append(self._counter())
        if not one.is_kept:
            one.tree, one.tensors = None, []
            return
        tensors = [tensor for tensor in pack(outputs, "the output")[1] if tensor.is_floating_point()]
        device = tensors[0].device if tensors else torch.device("cpu")
        batch = batch_of(module, *unpack(one.tree, one.tensors, lambda tensor: tensor.to(device)))
        with torch.no_grad():
            one.loss_sum, one.units = evaluated(self._loss_sum, outputs, batch)
        one.rows, one.positions, one.labels = rows_of(batch)
        if not self.is_surely_sum:
            self.is_surely_sum = require_sum(self._loss_sum, outputs, batch, len(one.rows), one.loss_sum, one.units)
        self._watch_backward(one, outputs)

    def _watch_backward(self, one: Microbatch, outputs: Any) -> None:
        def reached(_: Any) -> None:
            one.has_backward = True
            one.collectives.append(self._counter())

        differentiable = _differentiable(outputs)
        if not differentiable:
            raise AuditError(
                f"what {type(self.module).__name__} returned has no gradient, so nothing can be learnt from it: audit "
                "the module whose outputs the loss is made of"
            )
        register_multi_grad_hook(differentiable, reached, mode="any")

    def _bytes(self) -> int:
        return sum(one.bytes for one in self.microbatches if one.is_kept)


def evaluated(loss_sum: LossSum, outputs: Any, batch: Any) -> tuple[float, int]:
    total, units = summed(loss_sum, outputs, batch)
    return float(total.detach().double()), units


def summed(loss_sum: LossSum, outputs: Any, batch: Any) -> tuple[torch.Tensor, int]:
    """Raises AuditError where `loss_sum` fails, or returns something else than a scalar tensor and a whole number."""
    name = getattr(loss_sum, "__name__", type(loss_sum).__name__)
    try:
        total, units = loss_sum(outputs, batch)
    except AuditError:
        raise
    except Exception as error:
        held = sorted(map(str, batch)) if isinstance(batch, dict) else type(batch).__name__
        raise AuditError(
            f"loss_sum {name} fails on what the module returned, a {type(outputs).__name__}, and the batch, {held}: "
            f"{type(error).__name__}: {error}"
        ) from error
    is_scalar = isinstance(total, torch.Tensor) and total.numel() == 1
    number = float(units) if isinstance(units, int | float | torch.Tensor) else -1.0
    if not is_scalar or number < 0 or number != int(number):
        raise AuditError(
            f"loss_sum {name} returns a {type(total).__name__} and {units!r}: let it return the sum of the losses, a "
            "scalar tensor, and how many supervised units it is the sum of"
        )
    return total.reshape(()), int(number)


def _differentiable(value: Any) -> Sequence[torch.Tensor]:
    """The tensors themselves; packing detaches them."""
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    return [tensor for part in parts for tensor in _differentiable(part)]


def _generators(device: torch.device) -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _gradients_there(module: nn.Module) -> dict[str, Any]:
    """Sketches of what was not cleared, by name; empty where all is."""
    parameters = dict(module.named_parameters())
    if is_sharded(module) or not _any_gradient(list(parameters.values())):
        return {}
    return {name: sketch(p.grad).numpy() for name, p in parameters.items() if p.grad is not None}


def _any_gradient(parameters: Sequence[nn.Parameter]) -> bool:
    return any(p.grad is not None and bool(torch.any(local(p.grad) != 0)) for p in parameters)


def local(tensor: Any) -> torch.Tensor:
    """This rank's part of a sharded tensor; others as they are."""
    return tensor.tolocal() if hasattr(tensor, "to_local") else tensor


def _inside_backward() -> bool:
    """A forward there is a recomputation: gradient checkpointing."""
    return int(torch._C._current_graph_task_id()) != -1
