"""Whether a file that was built again is what was archived, but for rounding.

Other processors and other versions of a library add in another order. What that leaves was measured on three
experiments, built once with the widest vector instructions of a processor and once with none: the initial weights
differ by 2e-7 of their norm, in references and gradients one tensor by 4e-4 of its own. Updates make more of it: after
100 of `minimum` one momentum differs by 3.7e-3, after 52 of `images_small` the weights by 3.2e-2, one tensor of them by
0.19, one momentum by 0.31. A mean of means in place of the token mean moves every tensor of the gradient by 2.8e-2 or
more.
"""

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy
from numpy.typing import NDArray

from ddp_tokens.archive import differing
from ddp_tokens.archive.comparison import ACCURACY, scores
from ddp_tokens.checks.tensor_files import layout_problem, read_arrays
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import from_json

# Of a tensor's norm: the norm of its difference. Above all rounding before the first update, below the known mistake.
TENSORS = 1e-2
# Of a number: losses differed by 1.3e-6 of themselves, what is computed from them by 2.3e-5.
NUMBERS = 1e-4
# Of a score, or of 1 where it is less than that. The mean loss of images_small, 0.0153 after 52 updates, was 0.0163
# without vector instructions: 9e-4 away, 6% of itself; minimum and grammar differed by 1e-6. Perplexity is exp of the
# loss: a part of it is as much in the loss.
SCORES = 1e-2
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


def must_hold(name: str) -> bool:
    """What differs by rounding alone wherever it is built: all that is computed before the first update, and what is
    concluded. Weights and histories drift apart with every update.
    """
    path = PurePosixPath(name)
    before_updates = path.name == "initial.safetensors" or bool({"reference", "gradients"} & {*path.parts[:-1]})
    return is_exact(name) or holds_verdicts(name) or before_updates


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
            return unlike_concluded(first, second) if holds_verdicts(name) else unlike_values(first, second, follows)
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
    """The first place of two JSON values that is another."""
    found = differing.unlike(archived, rebuilt, partial(_is_alike, follows=follows), where)
    return next((f"{place or 'the whole'}: {a} archived, {b} rebuilt" for place, a, b in found), None)


def _is_alike(archived: Any, rebuilt: Any, follows: Follows) -> bool:
    if type(archived) is not type(rebuilt):
        return False
    if isinstance(archived, float):
        return math.isclose(archived, rebuilt, rel_tol=NUMBERS)
    if archived != rebuilt and isinstance(archived, str) and SHA256.fullmatch(archived) and SHA256.fullmatch(rebuilt):
        return follows(archived, rebuilt)
    return bool(archived == rebuilt)


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


def unlike_concluded(archived: Any, rebuilt: Any) -> str | None:
    """Of files of checks, summaries and controls. A summary has the scores too."""
    found = unlike_verdicts(archived, rebuilt)
    if found is None:
        rows = compare_scores(archived.get("evaluation", {}), rebuilt.get("evaluation", {}))
        problems = (f"evaluation.{row['split']}.{row['name']} {row['problem']}" for row in rows if row["problem"])
        found = next(problems, None)
    return found


def compare_scores(archived: Mapping[str, Any], rebuilt: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each score of two evaluations. `problem`: None where it is within the tolerance of scores."""
    return [
        {
            "split": row["split"],
            "name": row["name"],
            "archived": row.get("before"),
            "rebuilt": row.get("after"),
            "problem": _problem_of_score(row, rebuilt.get(row["split"])),
        }
        for row in scores(archived, rebuilt)
    ]


def _problem_of_score(row: Mapping[str, Any], split: Any) -> str | None:
    archived, rebuilt = (row.get(side, differing.NOTHING) for side in ("before", "after"))
    if isinstance(archived, float) and isinstance(rebuilt, float):
        allowed = SCORES * max(1, abs(archived))
        if row["name"] == ACCURACY and isinstance(split.get("units"), int) and split["units"] > 0:
            allowed = max(allowed, 1.01 / split["units"])  # of few units, one more that is right
        same = abs(archived - rebuilt) <= allowed
    else:
        same = archived == rebuilt
    return None if same else f"was {differing.shown(archived)}, rebuilt {differing.shown(rebuilt)}"


def unlike_verdicts(archived: Any, rebuilt: Any) -> str | None:
    """The first that was concluded otherwise."""
    first, second = ([_concluded(verdict) for verdict in document["verdicts"]] for document in (archived, rebuilt))
    return unlike_values(first, second, lambda archived, rebuilt: False, "verdicts")


def _concluded(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """The controls have it one level deeper."""
    fields = {**verdict, **verdict.get("verdict", {})}
    return {name: fields[name] for name in OF_VERDICTS if name in fields}
