"""The process group: in and out, sums over ranks, time limits."""

import os
import traceback
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from ddp_tokens.errors import CheckpointError, LaunchError
from ddp_tokens.progress import UNWATCHED, Progress, launch_name
from ddp_tokens.quiet import first_synchronized_forward_without
from ddp_tokens.world import World

NONE_UNUSED = "find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters"
# Like the group itself, one for the whole process: a collective has no other handle to find it by.
_progress: ContextVar[Progress] = ContextVar("progress", default=UNWATCHED)
_group: ContextVar[dist.ProcessGroup | None] = ContextVar("group", default=None)  # None: all ranks


def init_distributed(
    backend: str, timeout_s: int = 120, *, rank: int = -1, world_size: int = -1, init_method: str = "env://"
) -> tuple[int, int]:
    """Join the process group; every collective without answer for `timeout_s` seconds is an error.

    Returns (rank, world size). With `env://` both come from torchrun's variables.
    """
    limit = timedelta(seconds=timeout_s)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if init_method == "env://" and attempt != "0":
        # torchrun keeps one store for all its restarts, and gloo would find in it the addresses of ranks that are gone.
        store, rank, world_size = next(rendezvous(init_method, timeout=limit))
        own = dist.PrefixStore(f"attempt-{attempt}", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=world_size, timeout=limit)
    else:
        dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world_size, timeout=limit)
    return dist.get_rank(), dist.get_world_size()


def agreed_launch(environment: Mapping[str, str], timeout_s: int) -> str:
    """A name that ranks have in common when they were started together, and with no other launch.

    torchrun's variables can be the same in each launch, as with --rdzv-backend=static; its store is not. Raises
    LaunchError when that does not answer.
    """
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return launch_name(environment)
    master, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    try:
        store = dist.TCPStore(master, int(port), is_master=False, timeout=timedelta(seconds=timeout_s))
        attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return str(store.compare_set(f"ddp_tokens/launch/{attempt}", "", uuid.uuid4().hex).decode())
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise LaunchError(
            f"rank {environment['RANK']} cannot reach its launcher's store at {master}:{port}: start again when the "
            "network between the hosts is up"
        ) from error


def cleanup() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def process_group(backend: str, timeout_s: int, progress: Progress = UNWATCHED) -> Iterator[None]:
    """A process group for the length of the block; left also when an exception is raised.

    Each collective of this module tells `progress` when it is entered and when it has come back.

    Wrap a model in a function that the block calls, not in the block itself: a DDP model that outlives its group takes
    gloo's threads down with it while it holds Python's lock, for which such a thread may be waiting, and hangs.
    """
    with progress.entered("meeting of all ranks"):
        init_distributed(backend, timeout_s)
    try:
        with telling(progress):
            yield
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # they hold the DDP model
        raise
    finally:
        cleanup()


def claim_device(world: World, backend: str) -> World:
    """The world with the GPU that this rank uses: its own with NCCL; with gloo, ranks share GPUs in turn.

    Raises LaunchError when there are too few. On the CPU nothing is to be claimed.
    """
    if not world.device.startswith("cuda"):
        return world
    seen = torch.cuda.device_count()
    if seen == 0 or (backend == "nccl" and world.local_rank >= seen):
        raise LaunchError(
            f"rank {world.rank} needs GPU {world.local_rank} of this host and torch sees {seen}: "
            "lower world_size, or set device to cpu"
        )
    index = world.local_rank % seen
    torch.cuda.set_device(index)
    return replace(world, device=f"cuda:{index}")


@contextmanager
def within(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Inside the block, "all ranks" in this module are the ranks of `group`, from dist.new_group; None: really all.

    That holds for the collectives, for `is_main_process` (rank 0 of the group) and for models that are wrapped there,
    which keep their group after the block. Raises ValueError on a rank outside the group: torch would let it pass
    each collective unsummed.
    """
    if group is not None and dist.get_rank(group) < 0:
        raise ValueError(f"rank {dist.get_rank()} is not in this group: only its members may work within it")
    before = _group.set(group)
    try:
        yield
    finally:
        _group.reset(before)


@contextmanager
def telling(progress: Progress) -> Iterator[None]:
    """Inside the block, collectives of this module tell `progress`."""
    before = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(before)


def progress_told() -> Progress:
    """What the collectives of this module tell, for those that DDP has in its forward and backward."""
    return _progress.get()


def ranks_together() -> dist.ProcessGroup | None:
    """The group that "all ranks" means here, see `within`; None: really all."""
    return _group.get()


def is_main_process() -> bool:
    return not dist.is_initialized() or dist.get_rank(_group.get()) == 0


def barrier(of_what: str = "all ranks") -> None:
    if dist.is_initialized():
        with _progress.get().entered(f"barrier of {of_what}"):
            dist.barrier(_group.get())


@contextmanager
def together(what: str, world: World) -> Iterator[None]:
    """Wait for the block on all ranks, and raise on all when it fails on one with an OSError, such as a full disk.

    `what` goes into "could not ...". The rank that failed raises its OSError, the others a CheckpointError. Within a
    group, `world` counts the ranks of the group.
    """
    if world.size == 1:
        yield
        return
    problem = None
    try:
        yield
    except OSError as error:
        problem = error
    failed = [0.0] * world.size
    failed[world.rank] = float(problem is not None)
    failed = sum_over_ranks(failed, world.device, f"check that all ranks could {what}")
    if problem is not None:
        raise problem
    if any(failed):
        ranks = ", ".join(f"rank {rank}" for rank, did in enumerate(failed) if did)
        raise CheckpointError(f"{ranks} could not {what}, and says why")


def wrap_for_ddp(model: torch.nn.Module, keep_first_layout: bool = True) -> DistributedDataParallel:
    """The model must be on the rank's device already. Without `keep_first_layout`: DDP as it comes."""
    # By default DDP lays out its buckets anew after the first backward of a process. A resumed process would reduce its
    # first window in another layout than the continuous one did, hence add in another order: other bits at 3 and more
    # ranks. Where unused parameters are looked for, the first layout stays.
    with _progress.get().entered("broadcast of the weights"):
        device = next(model.parameters()).device
        wrapped = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            process_group=_group.get(),
            find_unused_parameters=keep_first_layout,
        )
    if keep_first_layout:
        first_synchronized_forward_without(wrapped, NONE_UNUSED)
    return wrapped


def share_buffers(model: DistributedDataParallel) -> None:
    """Every rank takes rank 0's buffers, as DDP does before the first forward of the next window.

    After a run's last window there is none, and ranks would end with the running statistics of their own rows. Where
    the model was wrapped with broadcast_buffers=False it is left as it is.
    """
    buffers = list(model.buffers())
    if not buffers or not model.broadcast_buffers:
        return
    with _progress.get().entered("broadcast of the buffers"):
        for buffer in buffers:
            dist.broadcast(buffer, group=model.process_group, group_src=0)


def global_count(local_count: int, device: str = "cpu") -> int:
    """Supervised units over all ranks: one all-reduce of an int64."""
    [count] = _summed(torch.tensor([local_count], dtype=torch.int64, device=device), "count")
    return int(count)


def denominator_over_ranks(local: float, device: str = "cpu") -> float:
    """The units over all ranks, or their weights: one all-reduce of a float64, which holds whole numbers exactly."""
    [total] = sum_over_ranks([local], device, "count")
    return int(total) if total.is_integer() else total


def sum_over_ranks(values: Sequence[float], device: str = "cpu", what: str = "sums") -> list[float]:
    """Element-wise sums over ranks, in float64: one all-reduce."""
    return _summed(torch.tensor(values, dtype=torch.float64, device=device), what)


def largest_over_ranks(value: int, device: str = "cpu") -> int:
    """One all-reduce of an int64. What only rank 0 knows reaches the others so, when they give something smaller."""
    number = torch.tensor(value, dtype=torch.int64, device=device)
    with _progress.get().entered("all-reduce of the largest"):
        if dist.is_initialized():
            dist.all_reduce(number, op=dist.ReduceOp.MAX, group=_group.get())
        return int(number)


def bytes_of_ranks(data: bytes, device: str, what: str) -> list[bytes]:
    """By rank, what each has given, as many bytes on each: one all-gather."""
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    if not dist.is_initialized():
        return [data]
    found = [torch.empty_like(own) for _ in range(dist.get_world_size(_group.get()))]
    with _progress.get().entered(f"all-gather of the {what}"):
        dist.all_gather(found, own, group=_group.get())
        return [bytes(of_rank.tolist()) for of_rank in found]


def texts_of_ranks(text: str, device: str, what: str) -> list[str]:
    """By rank, what each has given, of any lengths: two all-gathers of plain bytes."""
    data = text.encode()
    lengths = [int(found) for found in bytes_of_ranks(f"{len(data):020}".encode(), device, f"lengths of the {what}")]
    found = bytes_of_ranks(data.ljust(max(1, *lengths)), device, what)
    return [of_rank[:length].decode() for of_rank, length in zip(found, lengths, strict=True)]


def _summed(values: torch.Tensor, what: str) -> list[float]:
    with _progress.get().entered(f"all-reduce of the {what}"):
        if dist.is_initialized():
            dist.all_reduce(values, group=_group.get())
        found: list[float] = values.tolist()  # inside: on a GPU it is here that the host waits
    return found
