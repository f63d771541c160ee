"""A forward in float64, although it makes tensors of its own: they are float64 too, and random ones are as in the run.

Without this, a mask or a first hidden state that a forward makes is float32, and does not go with float64 weights; and
random numbers that it draws in float64 are others than those of the run.
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

NARROW = (torch.float32, torch.float16, torch.bfloat16)
CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
SAME_BITS = (torch.Tensor.view,)
DRAWN_LIKE = (torch.rand_like, torch.randn_like)
DRAWN_FROM = (torch.bernoulli, torch.normal, torch.Tensor.bernoulli, torch.nn.functional.gumbel_softmax)
DRAWN_IN_PLACE = (
    torch.Tensor.uniform_,
    torch.Tensor.normal_,
    torch.Tensor.exponential_,
    torch.Tensor.bernoulli_,
    torch.Tensor.cauchy_,
    torch.Tensor.log_normal_,
    torch.Tensor.geometric_,
)


class Widening(TorchFunctionMode):
    """`dtype`: in which the run draws random numbers. `narrow`: functions met that torch has not in float64, which are
    computed in `dtype`.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.narrow: set[str] = set()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func in CASTS:
            return args[0].double()
        if func in DRAWN_LIKE:
            return func(*args, **{"dtype": self._dtype, **named}).double()
        if func in DRAWN_FROM:
            return self._in_narrow(func, args, named)
        if func in DRAWN_IN_PLACE and args[0].dtype == torch.float64:
            drawn = args[0].detach().to(self._dtype)
            with torch.no_grad():
                args[0].copy_(func(drawn, *args[1:], **named))
            return args[0]
        if _has_tensor(args) and func not in SAME_BITS:
            args, named = tuple(map(_wider, args)), {name: _wider(value) for name, value in named.items()}
            return self._computed(func, args, named)
        made = func(*args, **named)
        return _wide(made) if not _has_tensor(args) else made

    def _computed(self, func: Any, args: Any, named: dict[str, Any]) -> Any:
        try:
            return func(*args, **named)
        except (RuntimeError, NotImplementedError) as error:
            name = getattr(func, "__name__", "")
            if name.endswith("_") or self._dtype == torch.float64:
                raise
            try:
                found = self._in_narrow(func, args, named)
            except Exception:
                raise error from None
            self.narrow.add(name)
            return found

    def _in_narrow(self, func: Any, args: Any, named: dict[str, Any]) -> Any:
        return _wide(func(*map(self._narrow, args), **{name: self._narrow(value) for name, value in named.items()}))

    def _narrow(self, value: Any) -> Any:
        is_wide = isinstance(value, torch.Tensor) and value.dtype == torch.float64
        return value.to(self._dtype) if is_wide else value


def _has_tensor(args: Any) -> bool:
    return any(isinstance(value, torch.Tensor) for value in args)


def _wider(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in NARROW else value
