"""The published criterion, value by value: |ddp - ref| <= atol + rtol * |ref|. Reported, and decides nothing."""

from typing import Any

import numpy
from numpy.typing import NDArray

from ddp_tokens.checks.gradient_norms import Arrays, plain
from ddp_tokens.config import Tolerance


def published_figures(observed: Arrays, reference: Arrays, tolerance: Tolerance) -> dict[str, Any]:
    """Over all values that both sides hold in the same shape.

    `max_rel_error` is taken over values with |ref| > atol, since near zero a quotient says nothing.
    """
    values = outside = 0
    max_abs = max_rel = 0.0
    for name in sorted(set(observed) & set(reference)):
        ddp, ref = observed[name].astype(numpy.float64), reference[name].astype(numpy.float64)
        if ddp.shape != ref.shape:
            continue
        error, size = numpy.abs(ddp - ref), numpy.abs(ref)
        values += error.size
        outside += int((~(error <= tolerance.atol + tolerance.rtol * size)).sum())
        max_abs = max(max_abs, _largest(error))
        large = size > tolerance.atol
        max_rel = max(max_rel, _largest(error[large] / size[large]))
    return {
        "values": values,
        "outside_tolerance": outside,
        "max_abs_error": plain(max_abs),
        "max_rel_error": plain(max_rel),
    }


def _largest(values: NDArray[Any]) -> float:
    """The maximum, 0 of nothing, infinity where a value is not a number."""
    if not values.size:
        return 0.0
    return float(numpy.nan_to_num(values, nan=numpy.inf, posinf=numpy.inf).max())
