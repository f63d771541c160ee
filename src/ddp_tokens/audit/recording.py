"""What one rank did in a window: each forward's inputs, its loss sum, and whether a backward reached it.

Hooks only look. They draw no random number, and what they keep are copies on the CPU. What goes wrong in them does not
disturb the run: it is kept, and told at the update of a window that it belongs to.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.checkpoint import CheckpointFunction

from ddp_tokens.audit.buffers import Buffers, State, moved
from ddp_tokens.audit.doubling import require_sum
from ddp_tokens.audit.evaluating import differentiable_in, evaluated
from ddp_tokens.audit.inputs import batch_of, rows_of
from ddp_tokens.audit.losses import LossSum
from ddp_tokens.audit.packing import Tree, pack, unpack
from ddp_tokens.audit.sketch import sketch
from ddp_tokens.audit.watched import Watched
from ddp_tokens.audit.wrappers import is_sharded, sharded_dtype
from ddp_tokens.errors import AuditError
from ddp_tokens.generators import Generators, read_generators, restore_generators

MIB = 2**20


@dataclass
class Microbatch:
    """`tree`, `tensors`: arguments, keyword arguments, the watched batch, or None, and, where forward changes buffers
    of the module, what these held. `generators` and `state`, all buffers: before the forward. `autocast`: dtype, or
    None. `versions`: of all parameters, which an update changes. `gradients_due`: a backward of the window came before.
    `collectives`: of the run's groups before the forward, after it, when backward began, and when it ended. `problem`:
    why it cannot be audited, or None.
    """

    tree: Tree
    tensors: list[torch.Tensor]
    generators: Generators
    autocast: torch.dtype | None
    versions: int
    gradients_due: bool
    gradients_there: bool
    collectives: list[int] = field(default_factory=list)
    loss_sum: float = 0.0
    units: float = 0
    positions: int = 0
    labels: int = 0
    rows: list[str] = field(default_factory=list)
    has_backward: bool = False
    is_kept: bool = True
    problem: str | None = None
    state: State = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class Recorder:
    """Listens to `module` until `stop`, by hooks of `called`, which is this module or what a compiler has made of it.
    `microbatches`: since the last `clear`.
    """

    def __init__(
        self,
        module: nn.Module,
        called: nn.Module,
        loss_sum: LossSum,
        watched: Watched,
        limit_mib: int,
        counter: Callable[[], int],
    ) -> None:
        self.module, self.called = module, called
        self.microbatches: list[Microbatch] = []
        self.is_deaf = False
        self.has_run = False
        self.is_surely_sum = False
        self.began = time.perf_counter()
        self.left_over: dict[str, Any] = {}
        self._loss_sum = loss_sum
        self._watched = watched
        self.limit = limit_mib * MIB
        self._counter = counter
        self._pending: list[tuple[Microbatch, Any]] = []
        self._kept: dict[int, tuple[torch.Tensor, int]] = {}
        self._buffers = Buffers(module, self.limit)
        # The first of all: other hooks may change what the module is given, and do so again when it is computed again;
        # those of fully_shard gather its parameters.
        before, after = torch.compiler.disable(self._before), torch.compiler.disable(self._after)
        self._hooks = [
            called.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
            called.register_forward_hook(after, with_kwargs=True),
        ]

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def complete(self) -> list[Microbatch]:
        """Those whose backward came."""
        return [one for one in self.microbatches if one.has_backward]

    @property
    def problem(self) -> str | None:
        """The first of those whose backward came."""
        return next((one.problem for one in self.complete if one.problem), None)

    def clear(self) -> None:
        self.microbatches = []
        self._pending = []
        self._kept = {}
        self._buffers.clear()
        self.began = time.perf_counter()  # of a window in which this rank has no forward

    def settle(self) -> None:
        """At the update: what buffers held goes with the inputs, for those that changed inside the window."""
        ones = [one for one in self.complete if one.is_kept and one.problem is None]
        names = moved(self.module, [one.state for one in ones])
        for one in ones:
            state = {name: copy for name, copy in one.state.items() if name in names}
            if state:
                with _noted(one):
                    given = unpack(one.tree, one.tensors, lambda tensor: tensor)
                    one.tree, one.tensors = pack([*given, state], "an input")

    def keep_weights(self, parameters: Sequence[torch.Tensor]) -> None:
        """Another optimizer is about to update these, after a backward of the window and before its own update."""
        if self.complete:
            for one in parameters:
                self._kept.setdefault(id(one), (one.detach().clone(), one._version))

    def weights(self) -> dict[int, torch.Tensor]:
        """By id of each parameter, what it was when the window's gradient was computed."""
        return {id(one): self._kept.get(id(one), (one.detach(),))[0] for one in self.module.parameters()}

    def versions(self) -> int:
        """Of all parameters together, as `weights` has them; changes with every update in place."""
        return sum(self._kept.get(id(one), (None, one._version))[1] for one in self.module.parameters())

    def _before(self, module: nn.Module, arguments: Any, named: Any) -> None:
        if self.is_deaf or not _is_training():
            return
        parameters = list(self.module.parameters())
        if not self.microbatches:
            self.began = time.perf_counter()
            self.left_over = _gradients_there(self.module)
        self.has_run = True
        device = _device(parameters)
        one = Microbatch(
            tree=None,
            tensors=[],
            generators=read_generators(str(device)),
            autocast=_autocast(self.module, device),
            versions=sum(parameter._version for parameter in parameters),  # also where older ones are kept
            gradients_due=any(before.units and before.has_backward for before in self.microbatches),
            gradients_there=_any_gradient(parameters),
            collectives=[self._counter()],
        )
        given: Any = None
        with _noted(one):
            given = [list(arguments), dict(named), self._watched.take(arguments, named)]
            one.tree, tensors = pack(given, "an input")
            one.tensors = self._copies(one, tensors)
            one.state = self._buffers.before_forward(self._taken() + one.bytes)
        self.microbatches.append(one)
        self._pending.append((one, None if one.is_kept else given))

    def _copies(self, one: Microbatch, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        one.is_kept = self._taken() + self._buffers.bytes + size <= self.limit
        if not one.is_kept:
            return []
        return [tensor.cpu() if tensor.device.type != "cpu" else tensor.clone() for tensor in tensors]

    def _taken(self) -> int:
        return sum(one.bytes for one in self.microbatches)

    def _after(self, module: nn.Module, arguments: Any, named: Any, outputs: Any) -> None:
        if self.is_deaf or not self._pending or not _is_training():
            return
        one, given = self._pending.pop()
        one.collectives.append(self._counter())
        if one.problem is None:
            with _noted(one):
                self._evaluate(one, given, outputs)
                if not self._buffers.has_all(one.state):
                    one.is_kept, one.tensors = False, []
        self._watch_backward(one, outputs)

    def _evaluate(self, one: Microbatch, given: Any, outputs: Any) -> None:
        """Generators stand afterwards where they stood, whatever the loss draws."""
        device = _device(list(self.module.parameters()))
        generators = read_generators(str(device))
        try:
            self._evaluate_on(device, one, given, outputs)
        finally:
            restore_generators(generators)

    def _evaluate_on(self, device: torch.device, one: Microbatch, given: Any, outputs: Any) -> None:
        if given is None:
            given = unpack(one.tree, one.tensors, lambda tensor: tensor.to(device, copy=True))
        batch = batch_of(self.module, *given)
        with torch.no_grad():
            one.loss_sum, one.units = evaluated(self._loss_sum, outputs, batch)
        one.rows, one.positions, one.labels = rows_of(batch)
        if not self.is_surely_sum:
            self.is_surely_sum = require_sum(self._loss_sum, outputs, batch, len(one.rows), one.loss_sum, one.units)

    def _watch_backward(self, one: Microbatch, outputs: Any) -> None:
        def reached(_: Any) -> None:
            if not one.has_backward:
                one.has_backward = True
                one.collectives.append(self._counter())
                torch.autograd.Variable._execution_engine.queue_callback(ended)

        def ended() -> None:
            one.collectives.append(self._counter())

        differentiable = differentiable_in(outputs, set())
        if differentiable:
            register_multi_grad_hook(differentiable, reached, mode="any")


def _autocast(module: nn.Module, device: torch.device) -> torch.dtype | None:
    """What fully_shard casts parameters to rounds about as autocast does."""
    if torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return sharded_dtype(module)


@contextmanager
def _noted(one: Microbatch) -> Iterator[None]:
    try:
        yield
    except AuditError as error:
        one.problem = str(error)
    except Exception as error:
        one.problem = f"a microbatch cannot be recorded: {type(error).__name__}: {error}"


def _device(parameters: Sequence[torch.Tensor]) -> torch.device:
    return parameters[0].device if parameters else torch.device("cpu")


def _gradients_there(module: nn.Module) -> dict[str, Any]:
    """Sketches of what was not cleared, by name; empty where all is."""
    parameters = dict(module.named_parameters())
    if is_sharded(module) or not _any_gradient(list(parameters.values())):
        return {}
    return {name: sketch(local(p.grad)).numpy() for name, p in parameters.items() if p.grad is not None}


def _any_gradient(parameters: Sequence[nn.Parameter]) -> bool:
    return any(p.grad is not None and bool(torch.any(local(p.grad) != 0)) for p in parameters)


def local(tensor: Any) -> torch.Tensor:
    """This rank's part of a sharded tensor; others as they are, but dense."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found.to_dense() if found.is_sparse else found


def _is_training() -> bool:
    """Is a forward to be learnt from? One that is computed again inside backward, from a checkpoint, is not, but where
    the first time was without a graph, as for a module that is as a whole in a reentrant checkpoint.
    """
    if not torch.is_grad_enabled():
        return False
    return int(torch._C._current_graph_task_id()) == -1 or _is_reentrant()


def _is_reentrant() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_code is CheckpointFunction.backward.__code__:
            return True
        frame = frame.f_back
    return False
