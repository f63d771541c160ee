"""The process group: in and out, sums over ranks, time limits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.errors import LaunchError
from ddp_tokens.world import World


def init_distributed(
    backend: str, timeout_s: int = 120, *, rank: int = -1, world_size: int = -1, init_method: str = "env://"
) -> tuple[int, int]:
    """Join the process group; every collective without answer for `timeout_s` seconds is an error.

    Returns (rank, world size). With `env://` both come from torchrun's variables.
    """
    dist.init_process_group(
        backend, init_method=init_method, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
    )
    return dist.get_rank(), dist.get_world_size()


def cleanup() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def process_group(world: World, backend: str, timeout_s: int) -> Iterator[None]:
    """A process group for the length of the block; left also when an exception is raised."""
    require_devices(world)
    init_distributed(backend, timeout_s)
    try:
        yield
    finally:
        cleanup()


def require_devices(world: World) -> None:
    """Raises LaunchError when this rank's GPU does not exist."""
    if world.device.startswith("cuda"):
        seen = torch.cuda.device_count()
        if world.local_rank >= seen:
            raise LaunchError(
                f"device cuda needs one GPU per rank, {world.local_rank + 1} or more here, and torch sees {seen}: "
                "lower world_size or set device to cpu"
            )
        torch.cuda.set_device(world.local_rank)


def is_main_process() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def wrap_for_ddp(model: torch.nn.Module, world: World) -> DistributedDataParallel:
    """The model must be on the rank's device already."""
    return DistributedDataParallel(model, device_ids=[world.local_rank] if world.device.startswith("cuda") else None)


def global_count(local_count: int, device: str = "cpu") -> int:
    """Supervised units over all ranks: one all-reduce of an int64."""
    return int(_summed(torch.tensor(local_count, dtype=torch.int64, device=device)))


def sum_over_ranks(values: Sequence[float], device: str = "cpu") -> list[float]:
    """Element-wise sums over ranks, in float64: one all-reduce."""
    sums: list[float] = _summed(torch.tensor(values, dtype=torch.float64, device=device)).tolist()
    return sums


def _summed(values: torch.Tensor) -> torch.Tensor:
    if dist.is_initialized():
        dist.all_reduce(values)
    return values
