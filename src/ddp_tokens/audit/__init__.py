"""Is the gradient that an optimizer is about to apply the gradient of the objective that was meant?

    from ddp_tokens import audit
    with audit(model, optimizer, loss_sum="causal-lm", windows=2) as report:
        train()
    report.raise_if_wrong()

This module can be called, as ddp_tokens.audit.attach.audit; it imports torch only then.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        from ddp_tokens.audit.attach import audit

        return audit(*arguments, **named)


# `from ddp_tokens import audit` gives this module, since `python -m ddp_tokens.audit` is a command as well.
sys.modules[__name__].__class__ = _Callable
