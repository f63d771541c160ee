"""An audit of a script that is not edited: of the first optimizer that updates a module which the script calls."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ddp_tokens.audit.attach import Listener, closure_of, with_closure
from ddp_tokens.audit.exchange import Exchange
from ddp_tokens.audit.watched import Watched
from ddp_tokens.audit.wrappers import innermost, network_of
from ddp_tokens.errors import AuditError


class Search:
    """Listens to every module that is called by itself, until the first update says which of them is meant.

    `listen(module, watched)` makes a listener. `watches`: batches come from the script's DataLoaders. `timeout_s`: how
    long a rank that is at its first update waits for the others.
    """

    def __init__(self, listen: Callable[[nn.Module, Watched], Listener], watches: bool, timeout_s: int = 300) -> None:
        self.found: Listener | None = None
        self._listen = listen
        self._watched = Watched()
        self._watches = watches
        self._listeners: dict[int, Listener] = {}
        self._exchange = Exchange(timeout_s)
        self._in_step: RemovableHandle | None = None
        self._depth = 0
        self._call_of_modules: Any = nn.Module.__call__

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Replaces what calls modules until the first update, and watches loaders where that is asked for."""
        search = self

        def call(module: nn.Module, *arguments: Any, **named: Any) -> Any:
            return search._called(module, arguments, named)

        hooks = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        nn.Module.__call__ = call
        if self._watches:
            self._watched.watch_all()
        try:
            yield
        finally:
            nn.Module.__call__ = self._call_of_modules
            self._watched.stop()
            for hook in hooks:
                hook.remove()
            for listener in self._listeners.values():
                listener.stop()
            self._exchange.close()

    def _called(self, module: nn.Module, arguments: Any, named: Any) -> Any:
        if self._depth == 0 and torch.is_grad_enabled():
            self._meet(module)
        self._depth += 1
        try:
            return self._call_of_modules(module, *arguments, **named)
        finally:
            self._depth -= 1

    def _meet(self, module: nn.Module) -> None:
        """Hooks that are set here are met by the call that is about to be made."""
        if any(parameter.requires_grad for parameter in module.parameters()):
            network = id(innermost(network_of(module)))
            if network not in self._listeners:
                self._listeners[network] = self._listen(module, self._watched)

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        if self.found is None and closure_of(arguments, named) is not None:
            self._in_step = optimizer.register_step_pre_hook(self._choose_after_closure)
            return
        if self.found is None:
            self._choose(optimizer)
        if self.found is not None:
            self.found.before_step(optimizer, arguments, named)

    def _choose_after_closure(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> Any:
        """The module may be called for the first time inside the closure."""

        def then_choose() -> None:
            if self.found is None:
                self._choose(optimizer)
                if self.found is not None:
                    self.found.at_update_of(optimizer)

        return with_closure(arguments, named, then_choose)

    def _after_step(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        if self._in_step is not None:
            self._in_step.remove()
            self._in_step = None
        if self.found is not None:
            self.found.after_step(optimizer, arguments, named)

    def _choose(self, optimizer: torch.optim.Optimizer) -> None:
        """On all ranks alike: one that has had no microbatch yet learns from the others which module is meant."""
        shared = {listener: listener.shared_with(optimizer) for listener in self._listeners.values()}
        chosen = max(shared, key=lambda listener: shared[listener]) if any(shared.values()) else None
        of_ranks = self._exchange.of_all(None if chosen is None else _class_of(chosen.module), 1)
        if not any(of_ranks):
            return
        if None in of_ranks:
            name = next(filter(None, of_ranks))
            chosen = chosen or self._listener_to(name, optimizer)
            lacking = self._exchange.of_all(chosen is None, 1)
            if True in lacking:
                raise AuditError(
                    f"rank {lacking.index(True)} is at an update and called no module that its optimizer, a "
                    f"{type(optimizer).__name__}, updates, and holds no {name} as other ranks do: let ranks train the "
                    "same module"
                )
        assert chosen is not None
        self._keep_only(chosen)

    def _listener_to(self, name: str, optimizer: torch.optim.Optimizer) -> Listener | None:
        """To what was not called yet: the module of this class with most parameters that the optimizer updates."""
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
        alike = [one for one in modules if _class_of(one) == name]
        meant = max(alike, key=lambda one: sum(id(p) in updated for p in one.parameters()), default=None)
        if meant is None or updated.isdisjoint(map(id, meant.parameters())):
            return None
        around = [one for one in modules if _is_around(one, meant)]
        self._meet(max(around, key=lambda one: len(list(one.modules())), default=meant))
        return self._listeners.get(id(meant))

    def _keep_only(self, chosen: Listener) -> None:
        self.found = chosen
        nn.Module.__call__ = self._call_of_modules
        for listener in self._listeners.values():
            if listener is not self.found:
                listener.stop()
        self.found.is_last_watching = True

    def require_found(self) -> Listener:
        """Raises AuditError where no optimizer updated a module that was called."""
        if self.found is None:
            ran = ", ".join(type(listener.module).__name__ for listener in self._listeners.values())
            if not ran:
                raise AuditError(
                    "nothing was audited: the script called no module that can be trained: give one that trains"
                )
            raise AuditError(
                f"nothing was audited: the script made no update of {ran}: let it train for a window or more"
            )
        self.found.require_windows()
        return self.found


def _class_of(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _is_around(module: nn.Module, inner: nn.Module) -> bool:
    with suppress(Exception):  # of a module that is not whole yet, or of a trainer that is not
        return innermost(network_of(module)) is inner
    return False
