"""What a rank holds of a sharded model or of its optimizer's state, as one safetensors file, and back.

torch.distributed.checkpoint plans which rank writes and reads what, whatever their numbers, and its
HuggingFaceStorageReader reads the files. Its drivers `save` and `load`, whose ranks tell each other of their plans by
pickled objects, and its default files, which are pickles too, are not used.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from safetensors import SafetensorError

from ddp_tokens.checkpoint_files import OFFSETS, SHARDING, parts_of
from ddp_tokens.errors import EvidenceError
from ddp_tokens.tensors import is_sharded

Tensors = Mapping[str, torch.Tensor]


def part_bytes(tensors: Tensors) -> bytes:
    """What this rank's file of these tensors holds: its parts, and where they stand in the whole, in the header; of
    tensors that all ranks hold, only rank 0's. A single field of the header, or the bytes would vary.
    """
    from torch.distributed.checkpoint import DefaultSavePlanner

    planner = DefaultSavePlanner()
    planner.set_up_planner({name: tensors[name] for name in sorted(tensors) if _is_written(tensors[name])})
    parts, places = {}, {}
    for item in planner.create_local_plan().items:
        if item.tensor_data is None:
            raise TypeError(f"{item.index.fqn} is no tensor")
        part: Any = planner.resolve_data(item)
        parts[item.index.fqn] = part.detach().cpu().contiguous()
        places[item.index.fqn] = {OFFSETS: list(item.tensor_data.chunk.offsets)}
    data: bytes = safetensors.torch.save(parts, {SHARDING: json.dumps(places, sort_keys=True)})
    return data


def kinds_of(path: Path) -> dict[str, torch.Tensor]:
    """By name, shape and type of the whole tensors whose parts stand beside the name `path`, as tensors without values.

    Raises EvidenceError, naming a file or a tensor, where a part cannot be read or is missing.
    """
    chunks = _chunks_of(path)
    for name, of_tensor in chunks.items():
        held = sum(math.prod(chunk.sizes) for chunk in of_tensor.chunks)
        if held != math.prod(of_tensor.size):
            raise EvidenceError(
                f"{path.parent}: the ranks' files of {path.stem} hold {held} of {math.prod(of_tensor.size)} values of "
                f"{name}; make it again"
            )
    return {
        name: torch.empty(of_tensor.size, dtype=of_tensor.properties.dtype, device="meta")
        for name, of_tensor in chunks.items()
    }


def fill(path: Path, tensors: Tensors) -> None:
    """Give these tensors, in place, the values of those of the same names: to a DTensor the part that it holds here.

    Raises EvidenceError where a file cannot be read. Names, shapes and types must have been compared before.
    """
    from torch.distributed.checkpoint import DefaultLoadPlanner

    reader, metadata = _reader_of(path)
    planner = DefaultLoadPlanner()
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=False)
    reader.set_up_storage_reader(metadata, is_coordinator=False)
    reader.read_data(planner.create_local_plan(), planner).wait()


def _is_written(tensor: torch.Tensor) -> bool:
    return is_sharded(tensor) or not dist.is_initialized() or dist.get_rank() == 0


def _chunks_of(path: Path) -> dict[str, Any]:
    _, metadata = _reader_of(path)
    return dict(metadata.state_dict_metadata)


def _reader_of(path: Path) -> tuple[Any, Any]:
    """torch's reader, of the parts beside `path` and no other file, and what it finds in their headers."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    reader = HuggingFaceStorageReader(str(path.parent))
    files = [str(part) for part in parts_of(path)]
    reader.fs.ls = lambda _: files
    try:
        return reader, reader.read_metadata()
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"{path.parent} holds a damaged part of {path.stem} ({error}); make it again") from None
