"""What a rank held before its first update, as files and digests. No torch: checks compare it with checkpoints.

runs/RUN/ranks/
  start-rank-R.json          digests of everything that a checkpoint would hold there
  start-rank-R.safetensors   torch's generators, whole
"""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ddp_tokens.checkpoint_files import MODEL, OPTIMIZER, PLAIN_GENERATORS, TORCH_GENERATORS
from ddp_tokens.files import sha256_of_bytes, sha256_of_json

GENERATORS = (*PLAIN_GENERATORS, *TORCH_GENERATORS)
SCHEDULE, SCALER = "schedule", "scaler"  # extras of a training state that the project itself has


def part_of_extra(name: str) -> str:
    """What an extra's state is called among the digests of what is held."""
    return f"extras.{name}"


def start_state(rank: int) -> str:
    return f"start-rank-{rank}.json"


def start_tensors(rank: int) -> str:
    return f"start-rank-{rank}.safetensors"


def generator_digests(plain: Mapping[str, Any], torch_states: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """`plain`: values by name, of which those of the generators count. `torch_states`: uint8 arrays by name."""
    return {name: sha256_of_json(plain[name]) for name in PLAIN_GENERATORS} | torch_digests(torch_states)


def torch_digests(states: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    return {name: sha256_of_bytes(state.tobytes()) for name, state in sorted(states.items())}


def held_digests(
    model: str, optimizer: str, common: Mapping[str, Any], rank_part: Mapping[str, Any], generators: Mapping[str, str]
) -> dict[str, str]:
    """What is held, part by part, as SHA-256.

    `model`, `optimizer`: digests of the safetensors files. `common`, `rank_part`: as in common.json and rank-R.json.
    """
    return {
        MODEL: model,
        OPTIMIZER: optimizer,
        "optimizer_scalars": sha256_of_json(common["optimizer"]),
        "history": sha256_of_json(common["history"]),
        "rank_history": sha256_of_json(rank_part["history"]),
        **{part_of_extra(name): sha256_of_json(state) for name, state in sorted(common["extras"].items())},
        **generators,
    }
