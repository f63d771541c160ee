"""The batch of a forward, what it holds, and where it comes from."""

import hashlib
import inspect
from typing import Any

import torch
from torch import nn

from ddp_tokens.audit.losses import IGNORED, field_of, labels_in
from ddp_tokens.audit.packing import pack

MASK = "attention_mask"


def batch_of(module: nn.Module, arguments: list[Any], named: dict[str, Any], watched: Any) -> Any:
    """What `loss_sum` is given: the watched batch, or what forward was called with. That is a dict, by the names of
    forward's parameters; or, where the only argument is no tensor, that argument itself.
    """
    if watched is not None:
        return watched
    if len(arguments) == 1 and not named and not isinstance(arguments[0], torch.Tensor):
        return arguments[0]
    return dict(zip(_names(module, len(arguments)), arguments, strict=True)) | named


def _names(module: nn.Module, number: int) -> list[str]:
    """forward may have been replaced by a wrapper that takes anything."""
    for function in (module.forward, type(module).forward):
        parameters = [
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if name != "self" and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if len(parameters) >= number:
            return parameters[:number]
    return [str(place) for place in range(number)]


def rows_of(batch: Any) -> tuple[list[str], int, int]:
    """A digest of each row, over all tensors that have one entry for each; positions that could have a label; those of
    them that are no padding, as far as a mask says so.
    """
    _, tensors = pack(batch, "the batch")
    dense = [tensor.cpu().resolve_conj().resolve_neg() for tensor in tensors if tensor.dim()]
    if not dense:
        return [], 0, 0
    labels, mask = _on_cpu(labels_in(batch)), _on_cpu(_mask_in(batch))
    number = len(labels) if labels is not None and labels.dim() else len(dense[0])
    of_rows = [tensor for tensor in dense if len(tensor) == number]
    rows = [
        _digest([tensor[row] for tensor in of_rows], _entry(labels, row), _entry(mask, row)) for row in range(number)
    ]
    positions = labels.numel() if labels is not None else 0
    if labels is None or mask is None or mask.shape != labels.shape:
        return rows, positions, positions
    return rows, positions, int((mask != 0).sum())


def _mask_in(batch: Any) -> torch.Tensor | None:
    """One that says 1 for what is no padding. Others, as those that are added to scores, are none."""
    mask = field_of(batch, MASK)
    return mask if isinstance(mask, torch.Tensor) and not mask.dtype.is_floating_point else None


def _on_cpu(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.cpu()


def _entry(tensor: torch.Tensor | None, row: int) -> torch.Tensor | None:
    return None if tensor is None or tensor.dim() != 2 or row >= len(tensor) else tensor[row]


def _digest(parts: list[torch.Tensor], labels: torch.Tensor | None, mask: torch.Tensor | None) -> str:
    """Without padding: batches pad the same row to different lengths. A mask says what that is. Without one it is what
    is 0 in all whole numbers and not supervised, up to the end: a row of tokens that end with 0, and have no labels,
    is the same as the one without these.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        values = part
        if mask is not None and part.dim() and len(part) == len(mask) and bool(mask.any()):
            values = part[mask != 0]
        elif part.dim() == 1 and not part.dtype.is_floating_point:
            alike = [other for other in parts if other.shape == part.shape and not other.dtype.is_floating_point]
            values = part[: _length(alike, labels)]
        digest.update(f"{values.dtype} {list(values.shape)} ".encode())
        if values.numel():
            digest.update(bytes(values.contiguous().reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()


def _length(parts: list[torch.Tensor], labels: torch.Tensor | None) -> int:
    """Up to the last entry that is a label, or no padding in one of the parts."""
    used = [(part != 0) & (part != IGNORED) for part in parts]
    if labels is not None and labels.shape == parts[0].shape:
        used.append(labels != IGNORED)
    places = torch.stack(used).any(0).nonzero()
    return int(places[-1]) + 1 if len(places) else 0
