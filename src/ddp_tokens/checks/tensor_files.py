"""Tensors read as arrays: no check needs torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from ddp_tokens.errors import EvidenceError


def read_arrays(path: Path | str) -> dict[str, NDArray[Any]]:
    """Raises EvidenceError, naming the file, when it is missing or is no safetensors file."""
    try:
        arrays: dict[str, NDArray[Any]] = load_file(path)
    except FileNotFoundError:
        raise EvidenceError(f"{path} does not exist; run the step that makes it") from None
    except SafetensorError as error:
        raise EvidenceError(f"{path} is not a whole safetensors file ({error}); make it again") from None
    return arrays


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
