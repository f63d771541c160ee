"""All that a resume needs, written atomically and verified on reading. Tensors are safetensors, the rest is JSON."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ddp_tokens import checkpoint_files as names
from ddp_tokens.distributed import sum_over_ranks, together
from ddp_tokens.errors import CheckpointError
from ddp_tokens.files import read_json, sync_directory, write_json
from ddp_tokens.generators import Generators, read_generators, restore_generators
from ddp_tokens.tensors import load_tensors, load_weights, save_tensors, weights_of
from ddp_tokens.world import World


@dataclass
class TrainingState:
    """What training changes. `model` is the bare module, not its DDP wrapper.

    `history`: one record per update, the same on all ranks. `rank_history`: one per update, of this rank.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    history: list[dict[str, Any]] = field(default_factory=list)
    rank_history: list[dict[str, Any]] = field(default_factory=list)

    @property
    def step(self) -> int:
        return len(self.history)


def save(directory: Path, state: TrainingState, identity: Mapping[str, Any], world: World) -> None:
    """Every rank calls this. The checkpoint appears under its name only when all of its files are on disk.

    `identity`: what a resume must agree with, by name; see `names.require_same_identity`.
    When a rank cannot write, as on a full disk, it raises its OSError and the others CheckpointError; what was there
    before stays, and nothing else does.
    """
    temporary = directory.with_name(f".{directory.name}.tmp")
    try:
        with together(f"begin {directory}", world):
            if world.is_main:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
        with together(f"write {directory}", world):
            _write_rank_part(temporary, state, world)
            if world.is_main:
                _write_common_part(temporary, state, identity)
        with together(f"complete {directory}", world):
            if world.is_main:
                write_json(temporary / names.MANIFEST, names.make_manifest(temporary, state.step, world.size))
                sync_directory(temporary)
                _replace_directory(temporary, directory)
    except (OSError, CheckpointError):
        if world.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def load(directory: Path, state: TrainingState, identity: Mapping[str, Any], world: World) -> None:
    """Bring `state` and this rank's generators to where the checkpoint was written.

    Raises CheckpointError on every rank, before anything is changed, when a file is missing or altered or the identity
    differs, also when only one rank sees it so.
    """
    _require_usable_on_all_ranks(directory, identity, world)
    common = read_json(directory / names.COMMON)
    load_weights(state.model, load_tensors(directory / names.MODEL))
    _load_optimizer(state, common["optimizer"], load_tensors(directory / names.OPTIMIZER))
    rank_part = read_json(directory / names.rank_state(world.rank))
    state.history[:] = common["history"]
    state.rank_history[:] = rank_part["history"]
    # Last: building a model and an optimizer draws numbers, and nothing may draw between here and the next window.
    tensors = load_tensors(directory / names.rank_tensors(world.rank))
    restore_generators(Generators({name: rank_part[name] for name in names.PLAIN_GENERATORS}, tensors))


def _require_usable_on_all_ranks(directory: Path, identity: Mapping[str, Any], world: World) -> None:
    """Ranks may see a shared file system at different moments; one that left alone would leave the others waiting."""
    problem = None
    try:
        names.verify(directory)
        names.require_same_identity(directory, read_json(directory / names.COMMON)["identity"], identity)
    except CheckpointError as error:
        problem = str(error)
    [refusing] = sum_over_ranks([problem is not None], world.device)
    if refusing:
        others = f"{directory} cannot be used by {int(refusing)} of {world.size} ranks, which say why"
        raise CheckpointError(problem or others)


def common_document(state: TrainingState, optimizer_scalars: Mapping[str, Any]) -> dict[str, Any]:
    """What common.json holds of the state; the identity comes besides."""
    return {"optimizer": dict(optimizer_scalars), "history": state.history}


def rank_document(state: TrainingState, generators: Generators) -> dict[str, Any]:
    """What rank-R.json holds of the state; the rank's number comes besides."""
    return {**generators.plain, "history": state.rank_history}


def _write_common_part(directory: Path, state: TrainingState, identity: Mapping[str, Any]) -> None:
    tensors, scalars = split_optimizer(state)
    save_tensors(directory / names.MODEL, weights_of(state.model))
    save_tensors(directory / names.OPTIMIZER, tensors)
    write_json(directory / names.COMMON, {"identity": dict(identity)} | common_document(state, scalars))


def _write_rank_part(directory: Path, state: TrainingState, world: World) -> None:
    generators = read_generators(world.device)
    save_tensors(directory / names.rank_tensors(world.rank), generators.tensors)
    write_json(directory / names.rank_state(world.rank), rank_document(state, generators))


def _parameter_names(state: TrainingState) -> list[str]:
    """Names in the optimizer's order, which is how its state_dict counts parameters."""
    name_of = {id(parameter): name for name, parameter in state.model.named_parameters()}
    return [name_of[id(parameter)] for group in state.optimizer.param_groups for parameter in group["params"]]


def split_optimizer(state: TrainingState) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The optimizer's state by parameter name: tensors under `NAME/KEY`, everything else for JSON."""
    parameter_names = _parameter_names(state)
    document = state.optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, Any] = {}
    for index, entries in document["state"].items():
        for key, value in entries.items():
            target: dict[str, Any] = tensors if isinstance(value, torch.Tensor) else scalars
            target[f"{parameter_names[index]}/{key}"] = value
    groups = [group | {"params": [parameter_names[i] for i in group["params"]]} for group in document["param_groups"]]
    return tensors, {"state": scalars, "param_groups": groups}


def _load_optimizer(state: TrainingState, scalars: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    index_of = {name: index for index, name in enumerate(_parameter_names(state))}
    per_parameter: dict[int, dict[str, Any]] = {}
    for path, value in {**tensors, **scalars["state"]}.items():
        name, _, key = path.rpartition("/")
        per_parameter.setdefault(index_of[name], {})[key] = value
    groups = [group | {"params": [index_of[name] for name in group["params"]]} for group in scalars["param_groups"]]
    state.optimizer.load_state_dict({"state": per_parameter, "param_groups": groups})


def _replace_directory(source: Path, target: Path) -> None:
    """Give `source` the name `target`. A directory that had it is put aside first and removed after."""
    aside = target.with_name(f".{target.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        os.rename(target, aside)
    os.rename(source, target)
    sync_directory(target.parent)
    shutil.rmtree(aside, ignore_errors=True)
