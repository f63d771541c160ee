"""The states of this process's random generators: read as plain values and tensors, and put back."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from ddp_tokens.start_files import generator_digests


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
    return Generators({"python": [list(python_state), gauss_next], "numpy": _numpy_state()}, tensors)


def restore_generators(generators: Generators) -> None:
    python_state, gauss_next = generators.plain["python"]
    random.setstate((random.getstate()[0], tuple(python_state), gauss_next))
    numpy.random.set_state(tuple(generators.plain["numpy"]))
    torch.set_rng_state(generators.tensors["torch_cpu"])
    if "torch_cuda" in generators.tensors:
        torch.cuda.set_rng_state(generators.tensors["torch_cuda"])


def _numpy_state() -> list[Any]:
    kind, keys, position, has_gauss, cached_gaussian = numpy.random.get_state(legacy=True)
    return [kind, numpy.asarray(keys).tolist(), int(position), int(has_gauss), float(cached_gaussian)]
