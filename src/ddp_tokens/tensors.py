"""Named tensors in one safetensors file, without metadata: with two or more keys its bytes would vary."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch

from ddp_tokens.files import write_bytes


def save_tensors(path: Path | str, tensors: Mapping[str, torch.Tensor]) -> None:
    plain = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    write_bytes(path, safetensors.torch.save(plain))


def load_tensors(path: Path | str) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = safetensors.torch.load_file(path)
    return tensors
