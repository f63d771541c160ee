"""The batch of a forward, what it holds, and where it comes from."""

import hashlib
import inspect
from typing import Any

import torch
from torch import nn

from ddp_tokens.audit.losses import IGNORED, labels_in
from ddp_tokens.audit.packing import pack

MASKS = ("attention_mask", "padding_mask")


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
    dense = [tensor for tensor in tensors if tensor.dim()]
    labels = labels_in(batch)
    if not dense:
        return [], 0, 0
    number = len(labels) if labels is not None and labels.dim() else len(dense[0])
    of_rows = [tensor.cpu().contiguous() for tensor in dense if len(tensor) == number]
    rows = [_digest(of_rows, row) for row in range(number)]
    positions = labels.numel() if labels is not None else 0
    mask = batch.get(MASKS[0]) if isinstance(batch, dict) else None
    if labels is None:
        return rows, positions, 0
    return rows, positions, int((mask != 0).sum()) if mask is not None and mask.shape == labels.shape else positions


def _digest(tensors: list[torch.Tensor], row: int) -> str:
    """Without what stands behind the last label or token: batches pad the same row to different lengths."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        values = tensor[row].reshape(-1)
        if not values.dtype.is_floating_point and values.dtype != torch.bool:
            values = _without_padding(values)
        digest.update(bytes(values.contiguous().view(torch.uint8).numpy()) if values.numel() else b"")
    return digest.hexdigest()


def _without_padding(values: torch.Tensor) -> torch.Tensor:
    """Padding repeats one value up to the end."""
    if values.numel() < 2:
        return values
    differs = (values != values[-1]).nonzero()
    is_padding = int(values[-1]) in (0, IGNORED)
    return values[: int(differs[-1]) + 1 if len(differs) else 0] if is_padding else values
