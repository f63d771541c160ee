"""What a rank says of its part of a window: plain values for all ranks, a message for rank 0, which recomputes it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.audit.between import Between
from ddp_tokens.audit.packing import from_bytes, to_bytes
from ddp_tokens.audit.recording import MIB, Microbatch, Recorder, local
from ddp_tokens.audit.replaying import Recorded
from ddp_tokens.audit.wrappers import is_sharded
from ddp_tokens.generators import Generators

PRIME = 2**61 - 1
PIECE = 2**16  # what stays in a core's cache
WHOLE_NUMBERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
TOLD = (
    "loss_sum",
    "units",
    "positions",
    "labels",
    "rows",
    "has_backward",
    "gradients_due",
    "gradients_there",
    "versions",
    "collectives",
)


def told(
    recorder: Recorder,
    between: Between,
    compared: Mapping[str, nn.Parameter],
    message: bytes,
    not_compared: Sequence[str] = (),
) -> dict[str, Any]:
    """Plain values. `not_compared`: sentences on parameters."""
    module, ones = recorder.module, recorder.complete
    sharded = is_sharded(module)
    left_out = [one for one in recorder.microbatches if not one.has_backward]
    gradients = [parameter.grad for parameter in compared.values() if parameter.grad is not None]
    clippings = [
        {"norm": one.norm, "max_norm": one.max_norm, "factor": one.factor, "after": one.after}
        for one in between.clippings
    ]
    return {
        "microbatches": [{name: getattr(one, name) for name in TOLD} for one in ones],
        "problem": recorder.problem,
        "versions": recorder.versions(),
        "weights": None if sharded else fingerprint(list(recorder.weights().values())),
        "gradients": None if sharded else fingerprint(gradients),
        "is_sharded": sharded,
        "is_surely_sum": recorder.is_surely_sum,
        "clippings": clippings,
        "doubts": _doubts(recorder, between, compared, sharded),
        "without_backward": len(left_out),
        "not_compared": list(not_compared),
        "notes": _notes(left_out),
        "bytes": len(message),
    }


def _notes(left_out: Sequence[Microbatch]) -> list[str]:
    """Units in them are those of a microbatch whose backward is missing, or of an evaluation with gradients enabled."""
    if not left_out:
        return []
    forwards = "1 forward" if len(left_out) == 1 else f"{len(left_out)} forwards"
    units = sum(one.units for one in left_out)
    having = f", with {units} supervised unit{'s' * (units != 1)}" if units else ""
    return [f"{forwards} without a backward {'was' if len(left_out) == 1 else 'were'} left out{having}"]


def message_of(ones: Sequence[Microbatch]) -> bytes:
    parts = [
        to_bytes(
            {
                "tree": one.tree,
                "autocast": None if one.autocast is None else str(one.autocast),
                "generators": dict(one.generators.plain),
                "of": list(one.generators.tensors),
            },
            [*one.tensors, *one.generators.tensors.values()],
        )
        for one in ones
        if one.is_kept
    ]
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def recorded_in(message: bytes) -> list[Recorded]:
    found, position = [], 0
    while position < len(message):
        end = position + 8 + int.from_bytes(message[position : position + 8], "little")
        head, tensors = from_bytes(message[position + 8 : end])
        inputs, states = tensors[: len(tensors) - len(head["of"])], tensors[len(tensors) - len(head["of"]) :]
        autocast = None if head["autocast"] is None else getattr(torch, head["autocast"].removeprefix("torch."))
        generators = Generators(head["generators"], dict(zip(head["of"], states, strict=True)))
        found.append(Recorded(head["tree"], inputs, generators, autocast))
        position = end
    return found


def fingerprint(tensors: Sequence[torch.Tensor]) -> int:
    """The same for the same bits; for others, or the same in other places, but by chance, another one. Only a piece of
    them is copied at a time.
    """
    total = 0
    for tensor in tensors:
        values = local(tensor.detach()).contiguous().reshape(-1)
        values = torch.view_as_real(values).reshape(-1) if values.is_complex() else values
        whole = values.view(WHOLE_NUMBERS[values.element_size()])
        weights = torch.arange(1, 2 * min(PIECE, len(whole)) + 1, 2, device=whole.device)
        for piece in whole.split(PIECE):
            total = (total * 31 + int((piece * weights[: len(piece)]).sum())) % PRIME
    return total


def _doubts(recorder: Recorder, between: Between, compared: Mapping[str, nn.Parameter], sharded: bool) -> list[str]:
    of_complex = [
        f"{name} is complex, which the audit does not compare" for name, p in compared.items() if p.is_complex()
    ]
    doubts = of_complex[:1]
    names = [
        name or type(part).__name__ for name, part in recorder.module.named_modules() if _uses_statistics_of_rows(part)
    ]
    if names:
        doubts.append(
            f"{names[0]} is batch normalization in training mode, which makes each microbatch's loss depend on its "
            "other rows, so no process can compute the objective over all of them: for the audit, call eval() on these "
            "layers, which freezes their statistics, or take GroupNorm or LayerNorm"
        )
    if not all(one.is_kept for one in recorder.complete):
        doubts.append(
            f"the inputs of a window, and buffers that forward changes, take more than {recorder.limit // MIB} MiB: "
            "pass a larger record_mib, or audit with fewer or smaller microbatches"
        )
    if any(clipping.factor == 0.0 and math.isfinite(clipping.norm) for clipping in between.clippings):
        doubts.append("gradients are clipped to the norm 0, so nothing is left to compare: clip to a larger one")
    if between.clipped_by_value:
        doubts.append(
            "gradients are clipped by value (clip_grad_value_), which cannot be undone: leave that out for the audit"
        )
    holds_ddp = any(isinstance(part, DistributedDataParallel) for part in recorder.called.modules())
    if not (sharded or holds_ddp) and any(one.collectives[1] > one.collectives[0] for one in recorder.complete):
        doubts.append(
            "the module's forward itself communicates with other ranks, so that one process cannot compute it: audit a "
            "loop whose forward is local"
        )
    return doubts


def _uses_statistics_of_rows(part: nn.Module) -> bool:
    if not isinstance(part, _NormBase) or isinstance(part, _InstanceNorm):
        return False
    return part.training or part.running_mean is None
