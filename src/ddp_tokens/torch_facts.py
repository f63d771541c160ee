"""What torch says of itself and of each GPU that it sees; every GPU computes something whose result is known."""

import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

# Whole numbers of at most 8 in 64 terms: all sums stay below 2^24, where float32 is exact in any order, TF32 included.
SIZE, LARGEST = 64, 8
Fact = tuple[str, dict[str, Any]]


def facts() -> Iterator[Fact]:
    """("torch", about it), then for each GPU ("trying", its index) and ("gpu", what was found). One by one, so that who
    listens knows what was tried when this process hangs or dies.
    """
    seen, said = visible_gpus()
    yield "torch", about_torch() | {"gpus": seen, "said": said}
    for index in range(seen):
        yield "trying", {"index": index}
        yield "gpu", about_gpu(index)


def about_torch() -> dict[str, Any]:
    """None for what the build does not have."""
    has_groups = dist.is_available()
    nccl = has_groups and dist.is_nccl_available()
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": getattr(torch.version, "hip", None),
        "cudnn": torch.backends.cudnn.version(),
        "architectures": torch.cuda.get_arch_list(),
        "gloo": has_groups and dist.is_gloo_available(),
        "nccl": nccl,
        "nccl_version": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
        "threads": torch.get_num_threads(),
    }


def visible_gpus() -> tuple[int, str | None]:
    """Their number and, where there is none, what torch says about that: by a warning or an error."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            if torch.cuda.is_available():
                return torch.cuda.device_count(), None
            torch.cuda.init()
        except Exception as error:
            return 0, _first_line(warned[0].message if warned else error)
    return 0, _first_line(warned[0].message) if warned else None


def about_gpu(index: int) -> dict[str, Any]:
    """`error`: what went wrong, in one line; None where the product is right. An error is an answer, not a crash."""
    found: dict[str, Any] = {"index": index, "error": None}
    for look in (_describe, _measure_memory, _compute):
        try:
            found |= look(index)
        except Exception as error:
            found["error"] = found["error"] or f"{type(error).__name__}: {_first_line(error)}"
    return found


def device_of(index: int) -> str:
    return f"cuda:{index}"


def uuid_of(index: int) -> str | None:
    """None where torch does not tell, as before 2.5."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return None if uuid is None else str(uuid)


def wrong_in_product(multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> int:
    """How many of SIZE x SIZE entries `multiply` has not exactly right, compared with whole numbers on the CPU."""
    numbers = torch.arange(SIZE * SIZE).reshape(SIZE, SIZE)
    left, right = numbers * 7 % (2 * LARGEST + 1) - LARGEST, numbers * 5 % (2 * LARGEST + 1) - LARGEST
    expected = (left @ right).to(torch.float32)
    return int((multiply(left.to(torch.float32), right.to(torch.float32)) != expected).sum())


def _describe(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "name": properties.name,
        "uuid": uuid_of(index),
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
    }


def _measure_memory(index: int) -> dict[str, Any]:
    return {"memory_free_bytes": torch.cuda.mem_get_info(index)[0]}


def _compute(index: int) -> dict[str, Any]:
    device = device_of(index)
    return {"wrong_values": wrong_in_product(lambda left, right: (left.to(device) @ right.to(device)).cpu())}


def _first_line(error: object) -> str:
    """CUDA's errors go on with advice on debugging."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def process_facts() -> dict[str, Any]:
    """Of this process: its number, the cores that it may use, and its threads that compute."""
    return {"pid": os.getpid(), "cores": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads()}
