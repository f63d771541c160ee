"""What the JSON parts of a checkpoint hold, and whether all of its parts belong together. No torch.

A manifest made anew fits any files. So the parts state themselves what they belong to: common.json the digests of model
and optimizer, rank-R.json its rank, its update, the digests of its run's identity and of rank-R.safetensors, and of the
rank's parts of model and optimizer where there are parts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_tokens.checkpoint_files import (
    ANOTHER,
    COMMON,
    MODEL,
    OPTIMIZER,
    is_sharded,
    rank_part,
    rank_state,
    rank_tensors,
    read_part,
    verify,
)
from ddp_tokens.errors import CheckpointError
from ddp_tokens.files import sha256_of_json
from ddp_tokens.identity import damaged_past, first_update_of_rank_histories

COMMON_FIELDS = {"extras": dict, "history": list, "identity": dict, "optimizer": dict, "sha256": dict}
RANK_FIELDS = {
    "generators_sha256": str,
    "history": list,
    "identity_sha256": str,
    "numpy": list,
    "python": list,
    "rank": int,
    "step": int,
}


@dataclass(frozen=True)
class Contents:
    """`ranks`: rank-R.json by rank."""

    directory: Path
    manifest: Mapping[str, Any]
    common: Mapping[str, Any]
    ranks: Sequence[Mapping[str, Any]]

    @property
    def sharded(self) -> bool:
        return is_sharded(self.manifest)

    @property
    def step(self) -> int:
        return int(self.manifest["step"])

    @property
    def world_size(self) -> int:
        return int(self.manifest["world_size"])


def read_contents(directory: Path | str) -> Contents:
    """Raises CheckpointError, naming the file, when one is missing, altered, or is no such JSON."""
    directory = Path(directory)
    manifest = verify(directory)
    fields = RANK_FIELDS | ({"parts_sha256": dict} if is_sharded(manifest) else {})
    ranks = [_document(directory / rank_state(rank), fields) for rank in range(manifest["world_size"])]
    return Contents(directory, manifest, _document(directory / COMMON, COMMON_FIELDS), ranks)


def require_together(contents: Contents) -> None:
    """Raises CheckpointError, naming the file that is of another checkpoint, rank, update or run."""
    common, digests = contents.common, contents.manifest["sha256"]
    for name in () if contents.sharded else (MODEL, OPTIMIZER):
        if common["sha256"].get(name) != digests[name]:
            raise CheckpointError(
                f"{contents.directory / name} is not the one that {COMMON} was written with: {ANOTHER}"
            )
    _require_updates(contents.directory / COMMON, common["history"], 1, contents.step)
    damaged = damaged_past(common["identity"])
    if damaged:
        raise CheckpointError(f"{contents.directory / COMMON}: the field identity is damaged at {damaged}: {ANOTHER}")
    first = first_update_of_rank_histories(common["identity"])
    identity = sha256_of_json(common["identity"])
    for rank, part in enumerate(contents.ranks):
        path = contents.directory / rank_state(rank)
        differs = {
            f"is of rank {part['rank']}": part["rank"] != rank,
            f"is of update {part['step']}, not {contents.step}": part["step"] != contents.step,
            f"is of a run with another identity than {COMMON} states": part["identity_sha256"] != identity,
            f"does not belong to {rank_tensors(rank)} beside it": part["generators_sha256"]
            != digests[rank_tensors(rank)],
        }
        if contents.sharded:
            for name in (MODEL, OPTIMIZER):
                of_rank = rank_part(name, rank)
                differs[f"does not belong to {of_rank} beside it"] = part["parts_sha256"].get(name) != digests[of_rank]
        for what, holds in differs.items():
            if holds:
                raise CheckpointError(f"{path} {what}: {ANOTHER}")
        _require_updates(path, part["history"], first, contents.step)


def _require_updates(path: Path, history: Sequence[Any], first: int, last: int) -> None:
    updates = [record.get("step") if isinstance(record, dict) else None for record in history]
    if updates != list(range(first, last + 1)):
        raise CheckpointError(f"{path} does not hold the records of updates {first} to {last}, each once: {ANOTHER}")


def _document(path: Path, fields: Mapping[str, type]) -> dict[str, Any]:
    document = read_part(path)
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} is no JSON object: {ANOTHER}")
    for name in sorted({*fields, *document}):
        if name not in fields or type(document.get(name)) is not fields[name]:
            problem = "does not belong there" if name not in fields else "is missing or of another type"
            raise CheckpointError(f"{path}: the field {name} {problem}: {ANOTHER}")
    return document
