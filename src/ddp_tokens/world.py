"""Which rank this process is, as a plain value."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_tokens.errors import LaunchError

TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class World:
    """Rank 0 of 1 on the CPU by default: a single process is a world too."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1
    device: str = "cpu"
    spans_hosts: bool = False

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def world_from_environment(environment: Mapping[str, str], device_type: str, expected_size: int) -> World:
    """Read the variables that torchrun sets for each rank.

    `device_type` is "cpu" or "cuda"; a rank takes the GPU of its local rank. Raises LaunchError when variables are
    missing. That there are `expected_size` ranks is left to `require_size`.
    """
    missing = [name for name in TORCHRUN_VARIABLES if name not in environment]
    if missing:
        raise LaunchError(
            f"{', '.join(missing)} not set: start this module with torchrun, "
            f"e.g. torchrun --standalone --nnodes=1 --nproc-per-node={expected_size} -m MODULE"
        )
    wrong = [name for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if not environment[name].isdecimal()]
    if wrong:
        raise LaunchError(f"{wrong[0]} is '{environment[wrong[0]]}', not a whole number: let torchrun set it")
    local_rank, size = int(environment["LOCAL_RANK"]), int(environment["WORLD_SIZE"])
    device = f"cuda:{local_rank}" if device_type == "cuda" else device_type
    spans_hosts = environment.get("LOCAL_WORLD_SIZE", str(size)) != str(size)
    return World(int(environment["RANK"]), local_rank, size, device, spans_hosts)


def require_size(world: World, expected: int, reason: str | None = None) -> None:
    """Raises LaunchError when the number of ranks is not the experiment's. `reason`: why so many are expected, and what
    to do, where that is not the experiment's world_size.
    """
    if world.size != expected:
        of_experiment = (
            f"the experiment says world_size {expected}: "
            f"start {expected} ranks or set --world-size {world.size} and prepare again"
        )
        raise LaunchError(f"{world.size} ranks were started but {reason or of_experiment}")
