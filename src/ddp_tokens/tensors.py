"""Named tensors in one safetensors file, without metadata: with two or more keys its bytes would vary."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import write_bytes


def tensor_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """What the file of these tensors holds."""
    plain = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    data: bytes = safetensors.torch.save(plain)
    return data


def save_tensors(path: Path | str, tensors: Mapping[str, torch.Tensor]) -> None:
    write_bytes(path, tensor_bytes(tensors))


def load_tensors(path: Path | str) -> dict[str, torch.Tensor]:
    """Raises EvidenceError, naming the file, when it is not a safetensors file; nothing in it is executed."""
    try:
        tensors: dict[str, torch.Tensor] = safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise EvidenceError(f"{path} is not a whole safetensors file ({error}); make it again") from None
    return tensors
