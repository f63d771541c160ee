"""The files of a checkpoint, and whether they are whole. No torch: checks and listings need no tensor.

step-0050/
  model.safetensors optimizer.safetensors common.json      the same for all ranks
  rank-R.safetensors rank-R.json                           generators and sampler history of rank R
  manifest.json                                            SHA-256 of every other file; written last

Where ranks hold parts of the model, model-rank-R.safetensors and optimizer-rank-R.safetensors stand in the place of the
first two: what rank R holds, and in the field SHARDING of the header where it stands in the whole.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_tokens.errors import CheckpointError
from ddp_tokens.files import from_json, sha256

MANIFEST = "manifest.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
COMMON = "common.json"
PLAIN_GENERATORS = ("python", "numpy")  # in rank-R.json
TORCH_GENERATORS = ("torch_cpu", "torch_cuda")  # in rank-R.safetensors
SHARDING, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"  # as torch.distributed.checkpoint calls them
ANOTHER = "delete it and train that run again, or use another checkpoint"


def rank_tensors(rank: int) -> str:
    return f"rank-{rank}.safetensors"


def rank_state(rank: int) -> str:
    return f"rank-{rank}.json"


def rank_part(name: str, rank: int) -> str:
    """The file with what rank R holds of what MODEL or OPTIMIZER would hold."""
    return name.replace(".", f"-rank-{rank}.")


def parts_of(path: Path) -> list[Path]:
    """The file itself where it is there, else its parts by rank, none where there are none."""
    if path.is_file():
        return [path]
    number = len(list(path.parent.glob(f"{path.stem}-rank-*{path.suffix}")))
    return [path.parent / rank_part(path.name, rank) for rank in range(number)]


def expected_files(world_size: int, sharded: bool = False) -> list[str]:
    ranks = range(world_size)
    of_ranks = [name for rank in ranks for name in (rank_tensors(rank), rank_state(rank))]
    tensors = (
        [rank_part(name, rank) for name in (MODEL, OPTIMIZER) for rank in ranks] if sharded else [MODEL, OPTIMIZER]
    )
    return sorted([*tensors, COMMON, *of_ranks])


def make_manifest(directory: Path, step: int, world_size: int, sharded: bool = False) -> dict[str, Any]:
    digests = {name: sha256(directory / name) for name in expected_files(world_size, sharded)}
    return {"step": step, "world_size": world_size, "sha256": digests} | ({"sharded": True} if sharded else {})


def is_sharded(manifest: Mapping[str, Any]) -> bool:
    return bool(manifest.get("sharded", False))


def expected_by(manifest: Mapping[str, Any]) -> list[str]:
    return expected_files(manifest["world_size"], is_sharded(manifest))


def require_folder(directory: Path) -> None:
    if not directory.is_dir():
        problem = "is a file, not a folder" if directory.is_file() else "does not exist"
        raise CheckpointError(f"{directory} {problem}: train that run, or name a checkpoint such as step-0050")


def verify(directory: Path | str) -> dict[str, Any]:
    """Return the manifest. Raises CheckpointError, naming the file, when one is missing, unexpected or altered."""
    directory = Path(directory)
    require_folder(directory)
    manifest = _read_manifest(directory)
    names, recorded = expected_by(manifest), manifest["sha256"]
    for name in names:
        if (directory / name).is_dir():
            raise CheckpointError(f"{directory / name} is a folder, not a file: {ANOTHER}")
        if name not in recorded or not (directory / name).is_file():
            raise CheckpointError(f"{directory} is incomplete, {name} is missing: {ANOTHER}")
        if sha256(directory / name) != recorded[name]:
            raise CheckpointError(f"{directory / name} was altered (its SHA-256 is not the manifest's): {ANOTHER}")
    for path in sorted(directory.iterdir()):
        if path.name not in (*names, MANIFEST):
            raise CheckpointError(f"{path} does not belong to the checkpoint: remove it")
    return manifest


def read_part(path: Path) -> Any:
    """A JSON file of a checkpoint. Raises CheckpointError, naming it, when files.to_json has not written it."""
    try:
        return from_json(path.read_text())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged, it is not valid JSON ({error}): {ANOTHER}") from None


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    inside = sorted(directory.glob(f"*/{MANIFEST}"))
    if inside:
        raise CheckpointError(f"{directory} is not a checkpoint but holds one: name {inside[-1].parent}")
    if not path.is_file():
        raise CheckpointError(f"{directory} is incomplete, it has no {MANIFEST}: {ANOTHER}")
    manifest = read_part(path)
    if not _is_manifest(manifest):
        raise CheckpointError(f"{path} is damaged: {ANOTHER}")
    foreign = sorted(set(manifest["sha256"]) - set(expected_by(manifest)))
    if foreign:
        raise CheckpointError(f"{path} lists {foreign[0]}, which is no file of a checkpoint: {ANOTHER}")
    return dict(manifest)


def _is_manifest(document: Any) -> bool:
    """A number of ranks above that of the files is not worked through: it could be any number."""
    if not isinstance(document, dict) or set(document) - {"sharded"} != {"step", "world_size", "sha256"}:
        return False
    if document.get("sharded", True) is not True:
        return False
    step, world_size, digests = document["step"], document["world_size"], document["sha256"]
    numbers = type(step) is int and type(world_size) is int
    return numbers and isinstance(digests, dict) and step >= 0 and 1 <= world_size <= len(digests)
