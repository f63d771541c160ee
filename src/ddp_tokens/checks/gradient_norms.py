"""Distances between gradients, parameter by parameter, and how large they may be."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
Norms = dict[str, float]

# Below this share of the whole gradient's norm a parameter counts as near zero, and is judged as if it had that share:
# the gradient of an attention key's bias is zero in theory, and rounding leaves up to 2e-2 epsilon of the whole there.
NEAR_ZERO = 1 / 64


def shapes_of(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def norms(arrays: Arrays) -> Norms:
    """Euclidean, in float64, by parameter name."""
    return {name: float(numpy.linalg.norm(array.astype(numpy.float64).ravel())) for name, array in arrays.items()}


def errors(observed: Arrays, reference: Arrays) -> Norms:
    """Norm of the difference, by name, for names that both hold in the same shape; infinite where not a number."""
    both = {name for name in reference if name in observed and observed[name].shape == reference[name].shape}
    differences = {name: observed[name].astype(numpy.float64) - reference[name] for name in sorted(both)}
    return {name: finite_or_infinite(error) for name, error in norms(differences).items()}


def whole(of_parameters: Iterable[float]) -> float:
    """The norm of a gradient from the norms of its parameters."""
    return float(numpy.linalg.norm(list(of_parameters)))


def not_near_zero(reference: Arrays) -> Norms:
    """Norms of a gradient's parameters, none taken as smaller than NEAR_ZERO of the whole."""
    return raised(norms(reference))


def raised(of_parameters: Norms) -> Norms:
    """None smaller than NEAR_ZERO of the whole."""
    least = NEAR_ZERO * whole(of_parameters.values())
    return {name: max(norm, least) for name, norm in of_parameters.items()}


def algebra_tolerances(reference: Arrays, fraction: float) -> Norms:
    """In float64, where rounding is 1e-16 of a parameter's norm: a fraction of that norm."""
    return {name: fraction * norm for name, norm in not_near_zero(reference).items()}


def calibrated_tolerances(reference: Arrays, single: Arrays, factor: float) -> Norms:
    """In the training dtype: a multiple of what rounding does to the same gradient in one process.

    `reference`: float64. `single`: one process, training dtype, on the same microbatches. Where that process is right
    by luck, one epsilon of the parameter's norm stands in. The error over ranks was at most 1.9 times this in float32
    and 2.1 times under bfloat16 autocast (912 parameters of 40 random models, benchmarks/calibration.py); hence 4.
    """
    rounding = errors(single, reference)
    epsilons = {name: float(numpy.finfo(single[name].dtype).eps) for name in rounding}
    return calibrated(norms(reference), rounding, epsilons, factor)


def calibrated(reference: Norms, rounding: Norms, epsilons: Norms, factor: float) -> Norms:
    """The same from norms: of the reference, of what rounding does to it, and the epsilon of each one's dtype."""
    least = raised(reference)
    return {name: factor * max(rounding[name], epsilons[name] * least[name]) for name in rounding}


def largest_ratio(of_errors: Norms, tolerances: Norms) -> tuple[float, str | None]:
    """The largest error in units of its tolerance, and its parameter; (0, None) of nothing."""
    worst, parameter = 0.0, None
    for name, error in of_errors.items():
        ratio = _quotient(error, tolerances.get(name, 0.0))
        if ratio > worst or parameter is None:
            worst, parameter = ratio, name
    return worst, parameter


def weighted_sum(weights: Mapping[Any, float], arrays_of: Mapping[Any, Arrays]) -> dict[str, NDArray[Any]]:
    """sum_k weights[k] * arrays_of[k], by parameter name."""
    total: dict[str, NDArray[Any]] = {}
    for key, weight in weights.items():
        for name, array in arrays_of[key].items():
            total[name] = total[name] + weight * array if name in total else weight * array
    return total


def is_finite(arrays: Arrays) -> bool:
    return all(bool(numpy.isfinite(array).all()) for array in arrays.values())


def finite_or_infinite(value: float) -> float:
    return value if numpy.isfinite(value) else float("inf")


def plain(value: Any) -> float | str:
    """JSON has no NaN and no infinity."""
    return float(value) if numpy.isfinite(value) else str(float(value))


def _quotient(error: float, tolerance: float) -> float:
    """Infinite where either is no finite number: nothing can be within such a tolerance."""
    if not numpy.isfinite(error) or not numpy.isfinite(tolerance):
        return float("inf")
    if tolerance == 0.0:
        return 0.0 if error == 0.0 else float("inf")
    return error / tolerance
