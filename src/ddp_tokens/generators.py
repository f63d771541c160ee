"""The states of this process's random generators: read as plain values and tensors, and put back."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from ddp_tokens.checkpoint_files import TORCH_GENERATORS
from ddp_tokens.start_files import generator_digests

MT19937_WORDS = 624


@dataclass(frozen=True)
class Generators:
    """`plain`: `python` and `numpy`, for JSON. `tensors`: `torch_cpu` and, on a GPU, `torch_cuda`."""

    plain: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]

    @property
    def digests(self) -> dict[str, str]:
        return generator_digests(self.plain, {name: tensor.numpy() for name, tensor in self.tensors.items()})


def read_generators(device: str) -> Generators:
    _, python_state, gauss_next = random.getstate()
    tensors = {"torch_cpu": torch.get_rng_state()}
    if device.startswith("cuda"):
        tensors["torch_cuda"] = torch.cuda.get_rng_state()
    return Generators(
        {"python": [list(python_state), gauss_next], "numpy": _plain(numpy.random.get_state(legacy=True))}, tensors
    )


def restorable(generators: Generators, device: str) -> bool:
    """Would restore_generators take these on `device`, and leave exactly these? Tried on generators made for it."""
    names = {"torch_cpu"} | ({"torch_cuda"} if device.startswith("cuda") else set())
    if not names <= set(generators.tensors) <= set(TORCH_GENERATORS):
        return False
    try:
        python_state, gauss_next = generators.plain["python"]
        kept_normals = (gauss_next, generators.plain["numpy"][4])
        position = generators.plain["numpy"][2]
        random.Random().setstate((random.getstate()[0], tuple(python_state), gauss_next))
        of_numpy = numpy.random.RandomState()
        of_numpy.set_state(tuple(generators.plain["numpy"]))
        torch.Generator().set_state(generators.tensors["torch_cpu"])
    except (TypeError, ValueError, RuntimeError, KeyError, IndexError, OverflowError):
        return False
    return (
        all(value is None or type(value) is float for value in kept_normals)
        and 0 <= position <= MT19937_WORDS
        and _plain(of_numpy.get_state(legacy=True)) == generators.plain["numpy"]
        and all(tensor.dtype == torch.uint8 and tensor.dim() == 1 for tensor in generators.tensors.values())
    )


def restore_generators(generators: Generators) -> None:
    python_state, gauss_next = generators.plain["python"]
    random.setstate((random.getstate()[0], tuple(python_state), gauss_next))
    numpy.random.set_state(tuple(generators.plain["numpy"]))
    torch.set_rng_state(generators.tensors["torch_cpu"])
    if "torch_cuda" in generators.tensors:
        torch.cuda.set_rng_state(generators.tensors["torch_cuda"])


def _plain(state: Any) -> list[Any]:
    kind, keys, position, has_gauss, cached_gaussian = state
    return [kind, numpy.asarray(keys).tolist(), int(position), int(has_gauss), float(cached_gaussian)]
