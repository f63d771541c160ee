"""Whether a checkpoint fits what is to be trained on: weights, optimizer, generators, extras. Changes nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ddp_tokens.checkpoint_contents import Contents
from ddp_tokens.checkpoint_files import COMMON, MODEL, OPTIMIZER, PLAIN_GENERATORS, rank_tensors
from ddp_tokens.errors import CheckpointError
from ddp_tokens.generators import Generators, restorable

OTHER_RUN = "resume with the settings and the code that it was written with, or start anew"
Tensors = Mapping[str, torch.Tensor]


def require_weights(directory: Path, weights: Tensors, held: Tensors) -> None:
    """`held`: the model's own. Raises CheckpointError, naming the first tensor of another name, shape or type."""
    for name in sorted({*weights, *held}):
        theirs, ours = _kind(weights.get(name)), _kind(held.get(name))
        if theirs != ours:
            raise CheckpointError(
                f"{directory / MODEL} holds {name} as {theirs}, this run's model as {ours}: {OTHER_RUN}"
            )


def require_optimizer(
    directory: Path,
    scalars: Mapping[str, Any],
    tensors: Tensors,
    groups: Sequence[Mapping[str, Any]],
    parameters: Tensors,
) -> None:
    """`scalars`, `tensors`: as in common.json and optimizer.safetensors. `groups`: this run's parameter groups.

    A tensor is of its parameter's shape and type, or a single number: load_state_dict would cast it in silence.
    """
    path = directory / COMMON
    written = scalars.get("param_groups")
    if set(scalars) != {"param_groups", "state"} or not isinstance(scalars["state"], dict):
        raise CheckpointError(f"{path}: the field optimizer is damaged: {OTHER_RUN}")
    if not isinstance(written, list) or [_settings(group) for group in written] != [_settings(g) for g in groups]:
        raise CheckpointError(
            f"{path} is of an optimizer with other parameters or settings than this run's: {OTHER_RUN}"
        )
    for file, entries in ((COMMON, scalars["state"]), (OPTIMIZER, tensors)):
        for name in sorted(entries):
            if name.rpartition("/")[0] not in parameters:
                raise CheckpointError(
                    f"{directory / file} holds {name}, a state of no parameter of this run: {OTHER_RUN}"
                )
    for name, tensor in sorted(tensors.items()):
        parameter = parameters[name.rpartition("/")[0]]
        if tensor.dim() and _kind(tensor) != _kind(parameter):
            problem = f"holds {name} as {_kind(tensor)}, its parameter is {_kind(parameter)}"
            raise CheckpointError(f"{directory / OPTIMIZER} {problem}: {OTHER_RUN}")


def require_extras(directory: Path, written: Mapping[str, Any], held: Mapping[str, Any]) -> None:
    for name in sorted({*written, *held}):
        if name not in held or not isinstance(written.get(name), dict):
            problem = "has a state of" if name in written else "has no state of"
            raise CheckpointError(f"{directory / COMMON} {problem} {name}, other than this run: {OTHER_RUN}")
        if set(written[name]) != set(held[name].state_dict()):
            raise CheckpointError(
                f"{directory / COMMON} holds a state of {name} with other parts than this run's: {OTHER_RUN}"
            )


def require_generators(contents: Contents, tensors: Sequence[Tensors], device: str) -> list[Generators]:
    """By rank. `tensors`: the content of each rank-R.safetensors."""
    of_ranks = [
        Generators({name: part[name] for name in PLAIN_GENERATORS}, of_rank)
        for part, of_rank in zip(contents.ranks, tensors, strict=True)
    ]
    for rank, generators in enumerate(of_ranks):
        if not restorable(generators, device):
            path = contents.directory / rank_tensors(rank)
            raise CheckpointError(f"{path} or the JSON beside it holds no states of this run's generators: {OTHER_RUN}")
    return of_ranks


def _kind(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _settings(group: Any) -> tuple[Any, ...]:
    """Names of a group's settings, and its parameters; the values of settings, such as a scheduled rate, may move."""
    return (sorted(group), group.get("params")) if isinstance(group, dict) else ()
