"""Is the gradient that DDP leaves the gradient of the objective? Compared value by value, by parameter name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from ddp_tokens.checks.tensor_files import read_arrays
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS, Verdict, outcome
from ddp_tokens.config import Tolerance, Tolerances
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.files import digests, read_json
from ddp_tokens.normalization import FORMULAS, TOKEN_MEAN
from ddp_tokens.plan import counts_per_rank, windows_to_compare

Arrays = Mapping[str, NDArray[Any]]
DTYPES = ("native", "float64")


def check_gradient_parity(
    tolerances: Tolerances,
    references: Mapping[str, Path],
    gradients: Mapping[tuple[str, str], Path],
    counts: Mapping[str, list[int]],
) -> list[Verdict]:
    """One verdict per window, formula and dtype.

    `references`: dtype -> dump. `gradients`: (formula, dtype) -> dump. `counts`: window -> units per rank.
    """
    verdicts = []
    for dtype in DTYPES:
        reference = read_arrays(references[dtype])
        for formula in FORMULAS:
            path = gradients[formula, dtype]
            observed = read_arrays(path)
            for window, of_ranks in counts.items():
                verdicts.append(
                    judge(
                        f"{formula}.{dtype}.{window}",
                        getattr(tolerances, dtype),
                        of_window(observed, window),
                        of_window(reference, window),
                        expected=expected_outcome(formula, of_ranks),
                        counts=of_ranks,
                        evidence=digests([references[dtype], path]),
                    )
                )
    return verdicts


def expected_outcome(formula: str, counts: list[int]) -> str:
    """With equal counts a mean of means is the token mean: the window cannot tell them apart."""
    if formula == TOKEN_MEAN:
        return PASS
    return FAIL if len(set(counts)) > 1 else INCONCLUSIVE


def judge(
    case: str,
    tolerance: Tolerance,
    observed: Arrays,
    reference: Arrays,
    *,
    expected: str,
    counts: list[int],
    evidence: Mapping[str, str],
) -> Verdict:
    """|observed - reference| <= atol + rtol * |reference| for every value of every parameter, and the same names."""
    figures, first_difference = compare(observed, reference, tolerance)
    agrees = first_difference is None
    undecidable = expected == INCONCLUSIVE and agrees
    return Verdict(
        case=case,
        expected=expected,
        outcome=INCONCLUSIVE if undecidable else outcome(agrees),
        criterion=(
            f"|ddp - ref| <= {tolerance.atol:g} + {tolerance.rtol:g} x |ref| for each value, by parameter name"
            + (" (equal counts on all ranks: both formulas are the same here)" if undecidable else "")
        ),
        observed=figures | {"units_per_rank": counts},
        evidence=evidence,
        first_difference=first_difference,
    )


def compare(observed: Arrays, reference: Arrays, tolerance: Tolerance) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Figures over all values, and the first difference or None.

    `max_rel_error` is taken over values with |ref| > atol, since near zero a quotient says nothing. A missing or extra
    name, another shape, and a value that is not a number are differences.
    """
    values = outside = 0
    max_abs = max_rel = worst = -1.0
    worst_parameter = None
    first = _name_difference(observed, reference)
    for name in sorted(set(observed) & set(reference)):
        ddp, ref = observed[name].astype(numpy.float64), reference[name].astype(numpy.float64)
        if ddp.shape != ref.shape:
            first = first or {"parameter": name, "ddp_shape": list(ddp.shape), "reference_shape": list(ref.shape)}
            continue
        error, allowed = numpy.abs(ddp - ref), tolerance.atol + tolerance.rtol * numpy.abs(ref)
        wrong = ~(error <= allowed)
        values += error.size
        outside += int(wrong.sum())
        max_abs = max(max_abs, _largest(error))
        large = numpy.abs(ref) > tolerance.atol
        max_rel = max(max_rel, _largest(error[large] / numpy.abs(ref[large])))
        if (excess := _largest(error / numpy.maximum(allowed, numpy.finfo(numpy.float64).tiny))) > worst:
            worst, worst_parameter = excess, name
        if wrong.any() and first is None:
            place = tuple(int(i) for i in numpy.argwhere(wrong)[0])
            first = {
                "parameter": name,
                "index": list(place),
                "ddp": _plain(ddp[place]),
                "reference": _plain(ref[place]),
            }
    figures = {
        "values": values,
        "outside_tolerance": outside,
        "max_abs_error": _plain(max(max_abs, 0.0)),
        "max_rel_error": _plain(max(max_rel, 0.0)),
        "worst_parameter": worst_parameter,
    }
    if not values and first is None:
        first = {"parameter": None, "problem": "there is no gradient to compare"}
    return figures, first


def of_window(arrays: Arrays, window: str) -> dict[str, NDArray[Any]]:
    prefix = f"{window}/"
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def counts_of_windows(rows_path: Path, lock_path: Path, plan_path: Path) -> dict[str, list[int]]:
    """Units per rank of the windows that are compared."""
    rows, _ = read_corpus(rows_path, lock_path)
    plan = read_json(plan_path)["plan"]
    return {case: counts_per_rank(plan[index], rows) for case, index in windows_to_compare(plan, rows).items()}


def _name_difference(observed: Arrays, reference: Arrays) -> dict[str, Any] | None:
    for name in sorted(set(observed) ^ set(reference)):
        return {"parameter": name, "problem": "missing in ddp" if name in reference else "missing in the reference"}
    return None


def _largest(values: NDArray[Any]) -> float:
    """The maximum, 0 of nothing, infinity where a value is not a number."""
    if not values.size:
        return 0.0
    return float(numpy.nan_to_num(values, nan=numpy.inf, posinf=numpy.inf).max())


def _plain(value: Any) -> float | str:
    """JSON has no NaN and no infinity."""
    return float(value) if numpy.isfinite(value) else str(float(value))
