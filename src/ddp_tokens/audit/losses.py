"""Objectives that have a name: the sum of the losses of the supervised units, and their number.

Logits are what the module returned, its attribute or key `logits`, or the first tensor of a tuple that has two or more
dimensions; labels are `labels`, `label`, `targets` or `target` of the batch, or the last integer tensor of a tuple.
Labels of -100 are not supervised.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from ddp_tokens.errors import AuditError

LossSum = Callable[[Any, Any], tuple[torch.Tensor, Any]]
IGNORED = -100
LABELS = ("labels", "label", "targets", "target")


def causal_lm(outputs: Any, batch: Any) -> tuple[torch.Tensor, int]:
    """Labels are the tokens themselves, as Hugging Face has it: the logits of a position are for the next one's label.

    Without labels, the tokens `input_ids` are the labels, where `attention_mask` is not 0.
    """
    labels = labels_in(batch)
    if labels is None and (tokens := field_of(batch, "input_ids")) is not None:
        mask = field_of(batch, "attention_mask")
        labels = tokens if mask is None else tokens.masked_fill(mask == 0, IGNORED)
    logits = logits_in(outputs, "causal-lm")
    labels = _required(labels, "causal-lm", logits.shape[:-1])
    return _summed(logits[..., :-1, :], labels[..., 1:])


def token_classification(outputs: Any, batch: Any) -> tuple[torch.Tensor, int]:
    """Logits (rows, positions, classes), labels (rows, positions)."""
    logits = logits_in(outputs, "token-classification")
    return _summed(logits, _required(labels_in(batch), "token-classification", logits.shape[:-1]))


def classification(outputs: Any, batch: Any) -> tuple[torch.Tensor, int]:
    """Logits (rows, classes), labels (rows)."""
    logits = logits_in(outputs, "classification")
    return _summed(logits, _required(labels_in(batch), "classification", logits.shape[:-1]))


NAMED: dict[str, LossSum] = {
    "causal-lm": causal_lm,
    "token-classification": token_classification,
    "classification": classification,
}


def loss_sum_of(asked: str | LossSum) -> LossSum:
    """Raises AuditError for a name that is not in NAMED, and for what cannot be called."""
    if isinstance(asked, str):
        if asked not in NAMED:
            raise AuditError(
                f"loss_sum is '{asked}', which is none of {', '.join(NAMED)}: take one, or pass a function"
            )
        return NAMED[asked]
    if not callable(asked):
        raise AuditError(
            f"loss_sum is a {type(asked).__name__}: pass a function of outputs and batch that returns the sum of the "
            f"losses of the supervised units and their number, or one of {', '.join(NAMED)}"
        )
    return asked


def labels_in(batch: Any) -> torch.Tensor | None:
    """Where a batch has labels under a usual name, or is a tuple whose last integer tensor is taken for them."""
    for name in LABELS:
        found = field_of(batch, name)
        if isinstance(found, torch.Tensor):
            return found
    if isinstance(batch, list | tuple):
        whole = [item for item in batch if isinstance(item, torch.Tensor) and not item.dtype.is_floating_point]
        return whole[-1] if whole else None
    return None


def logits_in(outputs: Any, name: str) -> torch.Tensor:
    found = field_of(outputs, "logits")
    if found is None and isinstance(outputs, list | tuple):
        found = next((item for item in outputs if isinstance(item, torch.Tensor) and item.dim() > 1), None)
    found = outputs if found is None else found
    if not isinstance(found, torch.Tensor) or found.dim() < 2:
        is_loss = isinstance(found, torch.Tensor) and found.dim() == 0
        told = "a single number, as a loss is" if is_loss else f"a {type(outputs).__name__}"
        raise AuditError(
            f"loss {name} finds no logits in what the module returned, {told}: audit the module that returns them "
            "(in a LightningModule: put the layers into a module of their own), or pass a function loss_sum(outputs, "
            "batch)"
        )
    return found


def _required(labels: torch.Tensor | None, name: str, shape: torch.Size) -> torch.Tensor:
    if labels is None:
        raise AuditError(
            f"loss {name} finds no labels ({', '.join(LABELS)}) in the batch: where they are no input of the module, "
            "say where batches come from (loader = report.watch(loader); by command, --watch), or pass a function "
            "loss_sum(outputs, batch)"
        )
    if labels.shape != shape:
        raise AuditError(
            f"loss {name} has logits for {tuple(shape)} and labels of {tuple(labels.shape)}: these must be the same"
        )
    return labels


def _summed(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Half precision is summed in float32, as autocast would have it."""
    logits = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    labels = labels.to(logits.device)
    total = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).long(), ignore_index=IGNORED, reduction="sum"
    )
    return total, int((labels != IGNORED).sum())


def field_of(value: Any, name: str) -> Any:
    """Of a mapping or an object; None where there is none."""
    if isinstance(value, Mapping):
        return value.get(name)
    return getattr(value, name, None)
