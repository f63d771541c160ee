"""An audit of a script that is not edited: of the first optimizer that updates a module which the script calls."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ddp_tokens.audit.attach import Listener
from ddp_tokens.audit.watched import Watched
from ddp_tokens.audit.wrappers import innermost, network_of
from ddp_tokens.errors import AuditError


class Search:
    """Listens to every module that is called by itself, until the first update says which of them is meant.

    `listen(module, watched)` makes a listener. `watches`: batches come from the script's DataLoaders.
    """

    def __init__(self, listen: Callable[[nn.Module, Watched], Listener], watches: bool) -> None:
        self.found: Listener | None = None
        self._listen = listen
        self._watched = Watched()
        self._watches = watches
        self._listeners: dict[int, Listener] = {}
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
        if self.found is None:
            self._choose(optimizer)
        if self.found is not None:
            self.found.before_step(optimizer, arguments, named)

    def _after_step(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        if self.found is not None:
            self.found.after_step(optimizer, arguments, named)

    def _choose(self, optimizer: torch.optim.Optimizer) -> None:
        shared = {listener: listener.shared_with(optimizer) for listener in self._listeners.values()}
        if not any(shared.values()):
            return
        self.found = max(shared, key=lambda listener: shared[listener])
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
