"""Whether a file that was built again is what was archived, but for rounding.

Other processors and other versions of a library add in another order. What that leaves was measured on `minimum`, built
once with the widest vector instructions of a processor and once with none: the initial weights differ by 2e-7 of their
norm, in a gradient one tensor differs by 2e-4 of its own, and after 100 updates one momentum by 3.7e-3. A mean of means
in place of the token mean moves every tensor of the gradient by 2.8e-2 or more.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy
from numpy.typing import NDArray

from ddp_tokens.checks.tensor_files import layout_problem, read_arrays
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import from_json

# Of a tensor's norm: the norm of its difference. Above all rounding that was measured, below the known mistake.
TENSORS = 1e-2
# Of a number: losses differed by 1.3e-6 of themselves, what is computed from them by 2.3e-5.
NUMBERS = 1e-4
SHA256 = re.compile(r"[0-9a-f]{64}")
OF_VERDICTS = ("check", "case", "name", "expected", "outcome", "diagnosis")
Follows = Callable[[str, str], bool]


def is_exact(name: str) -> bool:
    """What holds no rounding at all: settings, corpora, plans. `name`: a path below results/."""
    path = PurePosixPath(name)
    return path.name in ("config.yaml", "plan.json") or "corpus" in path.parts[:-1]


def holds_verdicts(name: str) -> bool:
    """Their numbers are themselves measured rounding: what counts is what was concluded from them."""
    path = PurePosixPath(name)
    return path.parent.name == "checks" or path.stem == "summary" or path.name in ("controls.json", "controls.csv")


def unlike(name: str, archived: Path, rebuilt: Path, follows: Follows) -> str | None:
    """Why a file with other bytes is not the same but for rounding; None where it is.

    `follows`: whether an archived digest, and the rebuilt one in its place, are of files that are alike themselves.
    """
    suffix = PurePosixPath(name).suffix
    if is_exact(name):
        return "other bytes, where nothing is rounded"
    try:
        if suffix == ".safetensors":
            return unlike_arrays(read_arrays(archived), read_arrays(rebuilt))
        if suffix == ".csv":
            return unlike_rows(_rows(archived), _rows(rebuilt), only=OF_VERDICTS if holds_verdicts(name) else None)
        if suffix in READERS:
            first, second = (READERS[suffix](path.read_text()) for path in (archived, rebuilt))
            return unlike_verdicts(first, second) if holds_verdicts(name) else unlike_values(first, second, follows)
    except (EvidenceError, ValueError, RecursionError) as error:
        return f"cannot be read ({' '.join(str(error).split())})"
    except (KeyError, TypeError, AttributeError):
        return "holds no verdicts"
    return "other bytes"


def _lines(text: str) -> list[Any]:
    return [from_json(line) for line in text.splitlines()]


READERS: Mapping[str, Callable[[str], Any]] = {
    ".json": from_json,
    ".jsonl": _lines,
}


def _rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as stream:
        return list(csv.DictReader(stream))


def unlike_arrays(archived: Mapping[str, NDArray[Any]], rebuilt: Mapping[str, NDArray[Any]]) -> str | None:
    """The tensor that is farthest from the archived one, where that is too far. Integers must be equal."""
    worst, where = 0.0, ""
    for name in sorted({*archived, *rebuilt}):
        problem = layout_problem(name, archived, rebuilt)
        if problem:
            return f"{name}: {problem}"
        distance = relative_distance(archived[name], rebuilt[name])
        if distance > worst:
            worst, where = distance, name
    return f"{where}: {worst:.3g} of its norm" if worst > TENSORS else None


def relative_distance(archived: NDArray[Any], rebuilt: NDArray[Any]) -> float:
    """Norm of the difference as a fraction of the archived norm. Infinite for another integer, or for another place of
    what is not finite.
    """
    if archived.tobytes() == rebuilt.tobytes():
        return 0.0
    if archived.dtype.kind != "f":
        return 0.0 if numpy.array_equal(archived, rebuilt) else math.inf
    a, b = (array.astype(numpy.float64) for array in (archived, rebuilt))
    finite = numpy.isfinite(a)
    if not numpy.array_equal(a[~finite], b[~finite], equal_nan=True) or not numpy.isfinite(b[finite]).all():
        return math.inf
    norm, difference = (float(numpy.linalg.norm(values)) for values in (a[finite], a[finite] - b[finite]))
    return difference / norm if norm else (math.inf if difference else 0.0)


def unlike_values(archived: Any, rebuilt: Any, follows: Follows, where: str = "") -> str | None:
    """The first field of two JSON values that is another."""
    if isinstance(archived, Mapping) and isinstance(rebuilt, Mapping):
        if archived.keys() != rebuilt.keys():
            return f"{where or 'the whole'}: other fields"
        pairs = [(f"{where}.{name}" if where else str(name), archived[name], rebuilt[name]) for name in archived]
    elif isinstance(archived, list) and isinstance(rebuilt, list):
        if len(archived) != len(rebuilt):
            return f"{where or 'the whole'}: {len(archived)} entries archived, {len(rebuilt)} rebuilt"
        pairs = [(f"{where}[{index}]", archived[index], rebuilt[index]) for index in range(len(archived))]
    else:
        same = _is_alike(archived, rebuilt, follows)
        return None if same else f"{where or 'the whole'}: {_shown(archived)} archived, {_shown(rebuilt)} rebuilt"
    return next((told for name, a, b in pairs if (told := unlike_values(a, b, follows, name))), None)


def _is_alike(archived: Any, rebuilt: Any, follows: Follows) -> bool:
    if type(archived) is not type(rebuilt):
        return False
    if isinstance(archived, float):
        return math.isclose(archived, rebuilt, rel_tol=NUMBERS)
    if archived != rebuilt and isinstance(archived, str) and SHA256.fullmatch(archived) and SHA256.fullmatch(rebuilt):
        return follows(archived, rebuilt)
    return bool(archived == rebuilt)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def unlike_rows(
    archived: Sequence[Mapping[str, str]], rebuilt: Sequence[Mapping[str, str]], only: Sequence[str] | None = None
) -> str | None:
    """Of two tables. Cells that are numbers may differ as numbers may. `only`: the columns that count; else all."""
    if len(archived) != len(rebuilt):
        return f"{len(archived)} rows archived, {len(rebuilt)} rebuilt"
    for number, (first, second) in enumerate(zip(archived, rebuilt, strict=True), start=1):
        a, b = ({name: _cell(row[name]) for name in row if only is None or name in only} for row in (first, second))
        told = unlike_values(a, b, lambda archived, rebuilt: False, f"row {number}")
        if told:
            return told
    return None


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


def unlike_verdicts(archived: Any, rebuilt: Any) -> str | None:
    """Of files of checks, summaries and controls: the first that was concluded otherwise."""
    first, second = ([_concluded(verdict) for verdict in document["verdicts"]] for document in (archived, rebuilt))
    return unlike_values(first, second, lambda archived, rebuilt: False, "verdicts")


def _concluded(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The controls have it one level deeper."""
    fields = {**verdict, **verdict.get("verdict", {})}
    return {name: fields[name] for name in OF_VERDICTS if name in fields}
