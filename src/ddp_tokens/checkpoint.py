"""All that a resume needs, written atomically and verified on reading. Tensors are safetensors, the rest is JSON."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from ddp_tokens import checkpoint_files as names
from ddp_tokens.checkpoint_contents import Contents, read_contents, require_together
from ddp_tokens.checkpoint_fit import require_extras, require_generators, require_optimizer, require_weights
from ddp_tokens.determinism import seed_new_rank
from ddp_tokens.distributed import sum_over_ranks, together
from ddp_tokens.errors import CheckpointError, UserError
from ddp_tokens.files import from_json, sha256, sha256_of_json, sync_directory, to_json, write_json
from ddp_tokens.generators import Generators, read_generators, restore_generators
from ddp_tokens.identity import NOTHING, PAST, REPARTITIONED, Allowed, continued
from ddp_tokens.tensors import load_tensors, load_weights, save_tensors, weights_of
from ddp_tokens.world import World


class Stateful(Protocol):
    """Its state is plain values, which JSON can hold."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


@dataclass
class TrainingState:
    """What training changes. `model` is the bare module, not its DDP wrapper.

    `history`: one record per update, the same on all ranks. `rank_history`: one per update, of this rank.
    `extras`: what else has a state, by name, such as a learning-rate scheduler or a gradient scaler.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    history: list[dict[str, Any]] = field(default_factory=list)
    rank_history: list[dict[str, Any]] = field(default_factory=list)
    extras: dict[str, Stateful] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return len(self.history)

    @property
    def lr(self) -> float:
        """The learning rate as it is now; with a schedule, a record has that of its update."""
        return float(self.optimizer.param_groups[0]["lr"])


def save(directory: Path, state: TrainingState, identity: Mapping[str, Any], world: World) -> None:
    """Every rank calls this. The checkpoint appears under its name only when all of its files are on disk.

    `identity`: what a resume must agree with, by name; see `identity.continued`.
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
            _write_rank_part(temporary, state, identity, world)
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


def load(
    directory: Path, state: TrainingState, identity: Mapping[str, Any], world: World, allowed: Allowed = NOTHING
) -> dict[str, Any]:
    """Bring `state` and this rank's generators to where the checkpoint was written.

    Returns the identity under which the run goes on: `identity`, and what the checkpoint's run or this resume let
    differ. Where the checkpoint was written by another number of ranks, a rank that existed keeps its generators, one
    that did not seeds them from seed, rank and update; the histories of ranks start anew.
    Raises CheckpointError on every rank, before anything is changed, when a part is missing, altered, of another
    checkpoint or of another kind than `state`, or when the identity differs, also when only one rank sees it so.
    """
    found = _usable_on_all_ranks(directory, state, identity, world, allowed)
    common, ranks = found.contents.common, found.contents.ranks
    load_weights(state.model, found.model)
    _load_optimizer(state, common["optimizer"], found.optimizer)
    for name, part in state.extras.items():
        part.load_state_dict(common["extras"][name])
    state.history[:] = common["history"]
    state.rank_history[:] = ranks[world.rank]["history"] if len(ranks) == world.size else []
    # Last: building a model and an optimizer draws numbers, and nothing may draw between here and the next window.
    if world.rank < len(ranks):
        restore_generators(found.generators[world.rank])
    else:
        seed_new_rank(found.identity["seed"], world.rank, found.contents.step)
    return found.identity


@dataclass(frozen=True)
class _Found:
    """A checkpoint's parts, verified. `generators`: by rank. `identity`: under which the run goes on."""

    contents: Contents
    model: Mapping[str, torch.Tensor]
    optimizer: Mapping[str, torch.Tensor]
    generators: Sequence[Generators]
    identity: dict[str, Any]


def _usable_on_all_ranks(
    directory: Path, state: TrainingState, identity: Mapping[str, Any], world: World, allowed: Allowed
) -> _Found:
    """Ranks may see a shared file system at different moments; one that left alone would leave the others waiting.

    Every rank reads the parts of all ranks, so that all say the same.
    """
    found, problem = None, ""
    try:
        found = _read(directory, state, identity, world, allowed)
    except (UserError, OSError) as error:
        problem = str(error)
    [refusing] = sum_over_ranks([found is None], world.device)
    if found is None or refusing:
        others = f"{directory} cannot be used by {int(refusing)} of {world.size} ranks, which say why"
        raise CheckpointError(problem or others)
    return found


def _read(directory: Path, state: TrainingState, identity: Mapping[str, Any], world: World, allowed: Allowed) -> _Found:
    contents = read_contents(directory)
    common = contents.common
    model, optimizer = load_tensors(directory / names.MODEL), load_tensors(directory / names.OPTIMIZER)
    of_ranks = [load_tensors(directory / names.rank_tensors(rank)) for rank in range(contents.world_size)]
    require_together(contents)
    goes_on = continued(directory, common["identity"], identity, contents.step, allowed)
    if contents.world_size != world.size and not allowed.repartition:
        problem = f"is of {contents.world_size} ranks, this run has {world.size}"
        raise CheckpointError(f"{directory} {problem}: start as many, or add {PAST[REPARTITIONED]}")
    require_weights(directory, model, weights_of(state.model))
    groups = split_optimizer(state)[1]["param_groups"]
    require_optimizer(directory, common["optimizer"], optimizer, groups, dict(state.model.named_parameters()))
    require_extras(directory, common["extras"], state.extras)
    return _Found(contents, model, optimizer, require_generators(contents, of_ranks, world.device), goes_on)


def common_document(state: TrainingState, optimizer_scalars: Mapping[str, Any]) -> dict[str, Any]:
    """What common.json holds of the state; the identity comes besides."""
    extras = {name: plain_state(name, part.state_dict()) for name, part in state.extras.items()}
    return {"optimizer": dict(optimizer_scalars), "history": state.history, "extras": extras}


def rank_document(state: TrainingState, generators: Generators) -> dict[str, Any]:
    """What rank-R.json holds of the state; the rank's number comes besides."""
    return {**generators.plain, "history": state.rank_history}


def plain_state(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """An extra's state as JSON gives it back. Raises CheckpointError where that would be another state."""
    text = to_json(state)
    if any(type(key) is not str for part in _mappings_in(state) for key in part):
        raise CheckpointError(
            f"the state of {name} has keys that are no text, which JSON would make text: leave it out"
        )
    plain: dict[str, Any] = from_json(text)
    return plain


def _mappings_in(value: Any) -> Iterator[Mapping[Any, Any]]:
    if isinstance(value, Mapping):
        yield value
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    for part in inside:
        yield from _mappings_in(part)


def _write_common_part(directory: Path, state: TrainingState, identity: Mapping[str, Any]) -> None:
    tensors, scalars = split_optimizer(state)
    save_tensors(directory / names.MODEL, weights_of(state.model))
    save_tensors(directory / names.OPTIMIZER, tensors)
    about = {"identity": dict(identity), "sha256": {n: sha256(directory / n) for n in (names.MODEL, names.OPTIMIZER)}}
    write_json(directory / names.COMMON, about | common_document(state, scalars))


def _write_rank_part(directory: Path, state: TrainingState, identity: Mapping[str, Any], world: World) -> None:
    generators = read_generators(world.device)
    tensors = directory / names.rank_tensors(world.rank)
    save_tensors(tensors, generators.tensors)
    about = {
        "rank": world.rank,
        "step": state.step,
        "identity_sha256": sha256_of_json(dict(identity)),
        "generators_sha256": sha256(tensors),
    }
    write_json(directory / names.rank_state(world.rank), about | rank_document(state, generators))


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
