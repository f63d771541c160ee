"""Named tensors in one safetensors file, without metadata: with two or more keys its bytes would vary."""

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from ddp_tokens.checks.tensor_files import read_whole
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


def load_whole(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, or of its parts by rank, put together. Raises EvidenceError as load_tensors."""
    if path.is_file():
        return load_tensors(path)
    arrays = read_whole(path)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def is_sharded(tensor: torch.Tensor) -> bool:
    """Is it a DTensor, of which each rank holds a part?"""
    return hasattr(tensor, "full_tensor")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself; where ranks hold parts of it, all of them put together, for which every rank calls this."""
    found: torch.Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return found


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    found: torch.Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return found


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; what several names share stands under the first of them only."""
    weights: dict[str, torch.Tensor] = {}
    seen: set[tuple[object, ...]] = set()
    first_names = {name for name, _ in model.named_parameters()}
    for name, tensor in model.state_dict().items():
        if is_sharded(tensor):  # its parts may be empty, which have no place in memory
            if name in first_names:
                weights[name] = tensor
            continue
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tensor.numel() == 0 or place not in seen:
            weights[name] = tensor
            seen.add(place)
    return weights


def fits(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> bool:
    """Are these the names and shapes of the model's weights?"""
    expected = {name: tuple(tensor.shape) for name, tensor in weights_of(model).items()}
    return {name: tuple(tensor.shape) for name, tensor in weights.items()} == expected


def load_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError when `weights` does not fit; names that share a tensor are set together."""
    if not fits(model, weights):
        raise ValueError("names or shapes of the weights are not those of the model")
    model.load_state_dict(weights, strict=False)
