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
from ddp_tokens.files import (
    from_json,
    sha256,
    sha256_of_bytes,
    sha256_of_json,
    sync_directory,
    to_json,
    write_bytes,
    write_json,
)
from ddp_tokens.generators import Generators, read_generators, restore_generators
from ddp_tokens.identity import NOTHING, PAST, REPARTITIONED, Allowed, continued
from ddp_tokens.optimizer_state import empty_state, groups_of, load_state, split_state
from ddp_tokens.sharded_parts import fill, kinds_of, part_bytes
from ddp_tokens.tensors import is_sharded, load_tensors, load_weights, save_tensors, tensor_bytes, weights_of
from ddp_tokens.world import World


class Stateful(Protocol):
    """Its state is plain values, which JSON can hold."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


@dataclass
class TrainingState:
    """What training changes. `model` is the bare module, not its DDP wrapper; its parameters may be DTensors.

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
    def sharded(self) -> bool:
        """Whether each rank holds parts of the weights, and of the optimizer's state."""
        return any(is_sharded(parameter) for parameter in self.model.parameters())

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
        optimizer = split_optimizer(state)  # by all ranks: they may share it
        with together(f"write {directory}", world):
            _write_rank_part(temporary, state, identity, world)
            if world.is_main:
                _write_common_part(temporary, state, identity, *optimizer)
        with together(f"complete {directory}", world):
            if world.is_main:
                write_json(
                    temporary / names.MANIFEST, names.make_manifest(temporary, state.step, world.size, state.sharded)
                )
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
    if state.sharded:
        fill(directory / names.MODEL, weights_of(state.model))
        fill(directory / names.OPTIMIZER, found.optimizer)
    else:
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
    """A checkpoint's parts, verified. `generators`: by rank. `identity`: under which the run goes on. Of a sharded
    state, `model` has no values, and `optimizer` this rank's parts, yet to be filled.
    """

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
    _require_same_layout(directory, contents, state)
    read = kinds_of if state.sharded else load_tensors
    model, optimizer = read(directory / names.MODEL), read(directory / names.OPTIMIZER)
    of_ranks = [load_tensors(directory / names.rank_tensors(rank)) for rank in range(contents.world_size)]
    require_together(contents)
    goes_on = continued(directory, common["identity"], identity, contents.step, allowed)
    if contents.world_size != world.size and not allowed.repartition:
        problem = f"is of {contents.world_size} ranks, this run has {world.size}"
        raise CheckpointError(f"{directory} {problem}: start as many, or add {PAST[REPARTITIONED]}")
    require_weights(directory, model, weights_of(state.model))
    parameters, groups = dict(state.model.named_parameters()), groups_of(state.model, state.optimizer)
    require_optimizer(directory, common["optimizer"], optimizer, groups, parameters)
    if state.sharded:
        optimizer = empty_state(optimizer, parameters)
    require_extras(directory, common["extras"], state.extras)
    return _Found(contents, model, optimizer, require_generators(contents, of_ranks, world.device), goes_on)


def _require_same_layout(directory: Path, contents: Contents, state: TrainingState) -> None:
    if contents.sharded != state.sharded:
        theirs, ours = (
            "parts of it by rank" if sharded else "a whole" for sharded in (contents.sharded, state.sharded)
        )
        raise CheckpointError(
            f"{directory} holds the model as {theirs}, this run as {ours}: set strategy to what it was"
        )


def content_of(tensors: Mapping[str, torch.Tensor], state: TrainingState) -> bytes:
    """What a checkpoint's file of these tensors holds; of a sharded state, this rank's file."""
    return part_bytes(tensors) if state.sharded else tensor_bytes(tensors)


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


def _write_common_part(
    directory: Path,
    state: TrainingState,
    identity: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, Any],
) -> None:
    digests = {}
    if not state.sharded:
        save_tensors(directory / names.MODEL, weights_of(state.model))
        save_tensors(directory / names.OPTIMIZER, tensors)
        digests = {name: sha256(directory / name) for name in (names.MODEL, names.OPTIMIZER)}
    about = {"identity": dict(identity), "sha256": digests}
    write_json(directory / names.COMMON, about | common_document(state, scalars))


def _write_rank_part(directory: Path, state: TrainingState, identity: Mapping[str, Any], world: World) -> None:
    generators = read_generators(world.device)
    tensors = directory / names.rank_tensors(world.rank)
    save_tensors(tensors, generators.tensors)
    about: dict[str, Any] = {
        "rank": world.rank,
        "step": state.step,
        "identity_sha256": sha256_of_json(dict(identity)),
        "generators_sha256": sha256(tensors),
    }
    if state.sharded:
        about["parts_sha256"] = {}
        for name, of_name in ((names.MODEL, weights_of(state.model)), (names.OPTIMIZER, split_optimizer(state)[0])):
            data = part_bytes(of_name)
            write_bytes(directory / names.rank_part(name, world.rank), data)
            about["parts_sha256"][name] = sha256_of_bytes(data)
    write_json(directory / names.rank_state(world.rank), about | rank_document(state, generators))


def split_optimizer(state: TrainingState) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The optimizer's state by parameter name, see optimizer_state; where ranks share it, every rank calls this."""
    return split_state(state.model, state.optimizer)


def _load_optimizer(state: TrainingState, scalars: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    load_state(state.model, state.optimizer, tensors, scalars)


def _replace_directory(source: Path, target: Path) -> None:
    """Give `source` the name `target`. A directory that had it is put aside first and removed after."""
    aside = target.with_name(f".{target.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if target.exists():
        os.rename(target, aside)
    os.rename(source, target)
    sync_directory(target.parent)
    shutil.rmtree(aside, ignore_errors=True)
