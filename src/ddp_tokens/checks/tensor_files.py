"""Tensors read as arrays: no check needs torch."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from ddp_tokens.checkpoint_files import OFFSETS, SHARDING, parts_of
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import from_json


def read_arrays(path: Path | str) -> dict[str, NDArray[Any]]:
    """Raises EvidenceError, naming the file, when it is missing or is no safetensors file."""
    try:
        arrays: dict[str, NDArray[Any]] = load_file(path)
    except FileNotFoundError:
        raise EvidenceError(f"{path} does not exist; run the step that makes it") from None
    except SafetensorError as error:
        raise EvidenceError(f"{path} is not a whole safetensors file ({error}); make it again") from None
    return arrays


def read_whole(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file or, where ranks have written parts of them beside its name, these put together.

    Raises EvidenceError, naming a file, as read_arrays, and where the parts do not make a whole.
    """
    if path.is_file() or not parts_of(path):
        return read_arrays(path)
    pieces: dict[str, list[tuple[list[int], NDArray[Any]]]] = {}
    for part in parts_of(path):
        arrays = read_arrays(part)
        places = _places(part, arrays)
        for name, array in arrays.items():
            pieces.setdefault(name, []).append((places[name], array))
    return {name: _put_together(path, name, of_name) for name, of_name in pieces.items()}


def _places(part: Path, names: Iterable[str]) -> dict[str, list[int]]:
    """Where in the whole the values of a rank's file begin."""
    try:
        with safe_open(part, "numpy") as file:
            told = from_json((file.metadata() or {})[SHARDING])
        return {name: [int(place) for place in told[name][OFFSETS]] for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"{part} does not say where its values belong ({error}); make it again") from None


def _put_together(path: Path, name: str, pieces: Sequence[tuple[list[int], NDArray[Any]]]) -> NDArray[Any]:
    first = pieces[0][1]
    shape = [max(place[axis] + piece.shape[axis] for place, piece in pieces) for axis in range(first.ndim)]
    if sum(piece.size for _, piece in pieces) != numpy.prod(shape, dtype=int):
        raise EvidenceError(
            f"{path.parent}: the ranks' parts of {path.name} do not make a whole of {name}; make it again"
        )
    whole = numpy.empty(shape, first.dtype)
    for place, piece in pieces:
        whole[tuple(slice(at, at + size) for at, size in zip(place, piece.shape, strict=True))] = piece
    return whole


def first_bit_difference(left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> dict[str, Any] | None:
    """The first name, in order, that is missing on a side or whose bits, shape or type differ; None when all agree."""
    for name in sorted(set(left) | set(right)):
        problem = layout_problem(name, left, right)
        if problem:
            return {"parameter": name, "problem": problem}
        if left[name].tobytes() != right[name].tobytes():
            only = ({name: left[name]}, {name: right[name]})
            return {"parameter": name, "max_abs_difference": max_abs_difference(*only)}
    return None


def layout_problem(name: str, left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> str | None:
    """Why the values under a name cannot be compared, or None."""
    if name not in left or name not in right:
        return "missing on one side"
    a, b = left[name], right[name]
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} against {b.dtype}{list(b.shape)}"
    return None


def max_abs_difference(left: Mapping[str, NDArray[Any]], right: Mapping[str, NDArray[Any]]) -> float:
    """Over all values of all names that both sides hold in the same shape."""
    largest = 0.0
    for name in set(left) & set(right):
        if left[name].shape == right[name].shape and left[name].size:
            largest = max(largest, float(abs(left[name].astype(float) - right[name].astype(float)).max()))
    return largest
