"""Does a loss_sum return a sum? Twice the same rows must have twice the sum; a mean stays as it is."""

from typing import Any

import torch

from ddp_tokens.audit.losses import LossSum
from ddp_tokens.audit.packing import pack, unpack
from ddp_tokens.errors import AuditError

SAME = 1e-3


def require_sum(loss_sum: LossSum, outputs: Any, batch: Any, rows: int, total: float, units: float) -> bool:
    """Raises AuditError for a mean. False where it cannot be told: rows cannot be doubled, or are not counted anew."""
    try:
        if not any(tensor.dim() and len(tensor) == rows for tensor in pack(outputs, "the output")[1]):
            return False  # a loss, say, that the module has computed itself
        with torch.no_grad():
            twice, twice_units = loss_sum(_doubled(outputs, rows), _doubled(batch, rows))
        twice, twice_units = float(twice.detach()), float(twice_units)
    except Exception:  # whatever a function of the user's says to a batch that it did not expect
        return False
    if twice_units != 2 * units or units == 0 or total == 0.0:
        return False
    if abs(twice - total) <= SAME * abs(total):
        name = getattr(loss_sum, "__name__", type(loss_sum).__name__)
        raise AuditError(
            f"loss_sum {name} returns a mean: of the same rows twice it is {twice:.6g}, as of them once, with {units} "
            f"units and with {2 * units}: let it return the sum of the losses (reduction='sum') and their number"
        )
    return abs(twice - 2 * total) <= SAME * abs(total)


def _doubled(value: Any, rows: int) -> Any:
    tree, tensors = pack(value, "the batch")
    return unpack(tree, tensors, lambda t: torch.cat([t, t]) if t.dim() and len(t) == rows else t)
