"""The files of a checkpoint, and whether they are whole. No torch: checks and listings need no tensor.

step-0050/
  model.safetensors optimizer.safetensors common.json      the same for all ranks
  rank-R.safetensors rank-R.json                           generators and sampler history of rank R
  manifest.json                                            SHA-256 of every other file; written last
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddp_tokens.errors import CheckpointError, EvidenceError
from ddp_tokens.files import read_json, sha256

MANIFEST = "manifest.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
COMMON = "common.json"
PLAIN_GENERATORS = ("python", "numpy")  # in rank-R.json
TORCH_GENERATORS = ("torch_cpu", "torch_cuda")  # in rank-R.safetensors
ANOTHER = "delete it and train that run again, or use another checkpoint"


def rank_tensors(rank: int) -> str:
    return f"rank-{rank}.safetensors"


def rank_state(rank: int) -> str:
    return f"rank-{rank}.json"


def expected_files(world_size: int) -> list[str]:
    of_ranks = [name for rank in range(world_size) for name in (rank_tensors(rank), rank_state(rank))]
    return sorted([MODEL, OPTIMIZER, COMMON, *of_ranks])


def make_manifest(directory: Path, step: int, world_size: int) -> dict[str, Any]:
    digests = {name: sha256(directory / name) for name in expected_files(world_size)}
    return {"step": step, "world_size": world_size, "sha256": digests}


def verify(directory: Path | str) -> dict[str, Any]:
    """Return the manifest. Raises CheckpointError, naming the file, when one is missing, unexpected or altered."""
    directory = Path(directory)
    if not directory.is_dir():
        problem = "is a file, not a folder" if directory.is_file() else "does not exist"
        raise CheckpointError(f"{directory} {problem}: train that run, or name a checkpoint such as step-0050")
    manifest = _read_manifest(directory)
    names, recorded = expected_files(manifest["world_size"]), manifest["sha256"]
    for name in names:
        if name not in recorded or not (directory / name).is_file():
            raise CheckpointError(f"{directory} is incomplete, {name} is missing: {ANOTHER}")
        if sha256(directory / name) != recorded[name]:
            raise CheckpointError(f"{directory / name} was altered (its SHA-256 is not the manifest's): {ANOTHER}")
    for path in sorted(directory.iterdir()):
        if path.name not in (*names, MANIFEST):
            raise CheckpointError(f"{path} does not belong to the checkpoint: remove it")
    return manifest


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    inside = sorted(directory.glob(f"*/{MANIFEST}"))
    if inside:
        raise CheckpointError(f"{directory} is not a checkpoint but holds one: name {inside[-1].parent}")
    if not path.is_file():
        raise CheckpointError(f"{directory} is incomplete, it has no {MANIFEST}: {ANOTHER}")
    kinds = {"step": int, "world_size": int, "sha256": dict}
    try:
        manifest = read_json(path)
    except EvidenceError:
        manifest = None
    if not isinstance(manifest, dict) or any(not isinstance(manifest.get(name), kind) for name, kind in kinds.items()):
        raise CheckpointError(f"{path} is damaged: {ANOTHER}")
    return manifest


def require_same_identity(directory: Path | str, written: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises CheckpointError, naming the first setting or file that differs, in the order of `now`."""
    for name in dict.fromkeys((*now, *written)):
        if written.get(name) != now.get(name):
            raise CheckpointError(
                f"{directory} was written with {name} {written.get(name)}, this run has {now.get(name)}: "
                "resume with the same settings, or start anew"
            )


def newest_usable(runs: Path, identity: Mapping[str, Any], before: int) -> Path | None:
    """The whole checkpoint of the latest update below `before` that a run of this identity could resume.

    Looks in every folder of `runs`, hidden ones too: RUN/step-NNNN and .RUN.KEY/step-NNNN.
    """
    for directory in sorted(runs.glob("*/step-*"), key=lambda path: (len(path.name), path.name), reverse=True):
        try:
            if verify(directory)["step"] < before:
                require_same_identity(directory, read_json(directory / COMMON)["identity"], identity)
                return directory
        except (CheckpointError, EvidenceError, OSError):
            continue
    return None
