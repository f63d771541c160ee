"""`audit`: listen to a training loop for some windows, and judge each when its optimizer is about to apply it."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ddp_tokens.audit.between import Between
from ddp_tokens.audit.exchange import Exchange
from ddp_tokens.audit.losses import LossSum, loss_sum_of
from ddp_tokens.audit.recording import Recorder
from ddp_tokens.audit.report import Report
from ddp_tokens.audit.watched import Watched
from ddp_tokens.audit.window import RankWindow, audited
from ddp_tokens.audit.wrappers import communication_hooks, hooked, innermost, network_of, torch_optimizer
from ddp_tokens.check_settings import Tolerances
from ddp_tokens.errors import AuditError


@contextmanager
def audit(
    model: nn.Module,
    optimizer: Any = None,
    *,
    loss_sum: str | LossSum,
    windows: int = 2,
    tolerances: Tolerances | None = None,
    record_mib: int = 1024,
    timeout_s: int = 300,
) -> Iterator[Report]:
    """Audit the first `windows` updates that `optimizer` makes inside the block, and leave the run as it would be.

    `model`: the module whose outputs the loss is made of, or what wraps it. `optimizer`: None for the first one that
    updates a parameter of it. `loss_sum(outputs, batch)`: the sum of the losses of the supervised units, and their
    number; or a name: causal-lm, token-classification, classification. `batch`: what a watched loader gave, or else
    forward's inputs by name. `record_mib`: how much of a window's inputs a rank keeps. `timeout_s`: how long a rank
    that is at its update waits for the others.

    Raises AuditError, on every rank alike, where the loop cannot be audited as asked; what it finds is in the report.
    """
    listener = Listener(model, optimizer, loss_sum, windows, tolerances or Tolerances(), record_mib, timeout_s)
    listener.listen_to_steps()
    try:
        yield listener.report
    finally:
        listener.stop()
    listener.require_windows()


class Listener:
    """An audit from its hooks to its report; it takes itself out after its last window.

    `is_last_watching`: no other listener needs the batches that `watched` takes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        loss_sum: str | LossSum,
        windows: int,
        tolerances: Tolerances,
        record_mib: int,
        timeout_s: int,
        watched: Watched | None = None,
        after_last: Callable[[], None] | None = None,
    ) -> None:
        if windows < 1:
            raise AuditError(f"windows is {windows}: audit one or more")
        self._model = model
        network = network_of(model)
        self.module = innermost(network)
        self._watched = watched or Watched()
        self.report = Report(self._watched.watch, windows)
        self._loss_sum = loss_sum_of(loss_sum)
        self._windows, self._tolerances = windows, tolerances
        self._after_last = after_last
        self._exchange = Exchange(timeout_s)
        self.is_last_watching = watched is None
        self._optimizer = None if optimizer is None else torch_optimizer(optimizer)
        self._other_steps = 0
        self._most = 0
        self._previous_units: float | None = None
        if self._optimizer is not None:
            self._require_shared(self._optimizer)
        self.recorder = Recorder(
            self.module, hooked(network), self._loss_sum, self._watched, record_mib, self._exchange.collectives
        )
        self._between = Between(self.module.parameters, lambda: len(self.recorder.complete), self._skipped)
        self._hooks: list[RemovableHandle] = []
        self._in_step: RemovableHandle | None = None

    def listen_to_steps(self) -> None:
        self._hooks.append(register_optimizer_step_pre_hook(self.before_step))
        self._hooks.append(register_optimizer_step_post_hook(self.after_step))

    def stop(self) -> None:
        """Not inside a step of the optimizer, which goes through its hooks just then."""
        self._quieten()
        self._leave_step()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._exchange.close()

    def _stop_outside(self, *_: Any) -> None:
        if self._in_step is None:
            self.stop()

    def _leave_step(self) -> None:
        if self._in_step is not None:
            self._in_step.remove()
            self._in_step = None

    def _quieten(self) -> None:
        self.recorder.stop()
        self._between.stop()
        if self.is_last_watching:
            self._watched.stop()

    def require_windows(self) -> None:
        """Raises AuditError where no update was audited."""
        if self.report.windows:
            return
        name = type(self.module).__name__
        if self._other_steps:
            why = f"the optimizers that made updates hold no parameter of {name}: pass the model that they update"
        elif self.recorder.has_run:
            why = f"{name} ran, but the optimizer made no update inside the block: let it train for a window or more"
        else:
            why = f"{name} never ran with gradients enabled inside the block: pass the module that is trained"
        raise AuditError(f"nothing was audited: {why}")

    def before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        """A hook of all optimizers. Torch calls an optimizer's own ones after it, which may change the gradient yet:
        one that is added here is the last of them.
        """
        self._leave_step()  # of one that raised
        if not self._shared(optimizer):
            self._other_steps += 1
            return
        if self._optimizer is None:
            self._optimizer = optimizer
        if len(self.report.windows) >= self._windows:
            return
        if optimizer is not self._optimizer:
            self.recorder.keep_weights([one for group in optimizer.param_groups for one in group["params"]])
            return
        self._in_step = optimizer.register_step_pre_hook(self._at_update)

    def after_step(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        """A hook of all optimizers, when none goes through the hooks that are called before it."""
        if optimizer is self._optimizer:
            self._leave_step()

    def _at_update(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> Any:
        """An optimizer that is given a closure computes the gradient inside its step."""
        if closure_of(arguments, named) is None:
            self._complete()
            return None
        return with_closure(arguments, named, lambda: self.at_update_of(optimizer))

    def at_update_of(self, optimizer: torch.optim.Optimizer) -> None:
        """When the gradient that this one is about to apply is there."""
        self._optimizer = optimizer
        if len(self.report.windows) < self._windows:
            self._complete()

    def _complete(self) -> None:
        assert self._optimizer is not None
        self._between.has_stepped()
        if float(getattr(self._optimizer, "found_inf", None) or 0.0):
            self._forget()  # a fused optimizer leaves the update out by itself
            return
        number = len(self.report.windows) + 1
        self.recorder.is_deaf = True
        try:
            began = time.perf_counter()
            self.recorder.settle()
            window = RankWindow(
                number=number,
                module=self.module,
                optimizer=self._optimizer,
                loss_sum=self._loss_sum,
                recorder=self.recorder,
                between=self._between,
                tolerances=self._tolerances,
                accumulation=self._most,
                previous_units=self._previous_units,
                communication_hooks=communication_hooks(self._model),
            )
            found = audited(window, self._exchange)
            seconds = {"window": began - self.recorder.began, "audit": time.perf_counter() - began}
        finally:
            self.recorder.is_deaf = False
        self._most = max(self._most, *found["seen"]["microbatches"])
        self._previous_units = sum(map(sum, found["seen"]["units"]))
        found["seconds"] = self._exchange.from_first(seconds)
        self.report.windows.append(json.loads(json.dumps(found)))  # lists, as they come from other ranks
        self.report.is_main = self._exchange.rank == 0
        self._forget()
        if number == self._windows:
            self._quieten()
            self._hooks.append(self.module.register_forward_pre_hook(self._stop_outside))
            if self._after_last is not None:
                self._after_last()

    def _skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A gradient scaler left an update out, since a gradient was not finite: its window is over."""
        is_audited = self._shared(optimizer) if self._optimizer is None else optimizer is self._optimizer
        if is_audited:
            self._forget()

    def _forget(self) -> None:
        self.recorder.clear()
        self._between.clear()

    def shared_with(self, optimizer: torch.optim.Optimizer) -> int:
        """How many parameters of the module it updates."""
        own = {id(parameter) for parameter in self.module.parameters()}
        return sum(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])

    def _shared(self, optimizer: torch.optim.Optimizer) -> bool:
        return self.shared_with(optimizer) > 0

    def _require_shared(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._shared(optimizer):
            raise AuditError(
                f"the optimizer, a {type(optimizer).__name__}, updates no parameter of {type(self.module).__name__}: "
                "pass the model that it updates, and both as the trainer has prepared them"
            )


def closure_of(arguments: Any, named: Any) -> Any:
    """What an optimizer's step was given to compute the gradient, or None."""
    return named.get("closure", arguments[1] if len(arguments) > 1 else None)


def with_closure(arguments: Any, named: Any, afterwards: Callable[[], None]) -> tuple[Any, Any]:
    """Arguments of a step whose closure is followed by a call of `afterwards`."""
    closure = closure_of(arguments, named)

    def both() -> Any:
        result = closure()
        afterwards()
        return result

    return (arguments[0], both, *arguments[2:]), {name: value for name, value in named.items() if name != "closure"}
