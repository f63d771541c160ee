import math

import numpy
import pytest

from ddp_tokens.checks.gradient_norms import (
    NEAR_ZERO,
    algebra_tolerances,
    calibrated_tolerances,
    errors,
    is_finite,
    largest_ratio,
    norms,
    not_near_zero,
    plain,
    shapes_of,
    weighted_sum,
    whole,
)


def arrays(dtype=numpy.float64, **values):
    return {name: numpy.array(value, dtype=dtype) for name, value in values.items()}


def test_the_norm_of_a_parameter_and_of_all():
    """sqrt(9 + 16) = 5, in any shape; with 12 beside it sqrt(25 + 144) = 13."""
    assert norms(arrays(a=[3.0, 4.0], b=[[3.0], [4.0]])) == {"a": 5.0, "b": 5.0}
    assert whole([5.0, 12.0]) == 13.0


def test_norms_are_taken_in_float64():
    """1e30 squared is beyond float32."""
    assert norms(arrays(numpy.float32, a=[1e30]))["a"] == pytest.approx(1e30, rel=1e-7)


def test_an_error_is_the_norm_of_the_difference():
    assert errors(arrays(a=[4.0, 6.0]), arrays(a=[1.0, 2.0])) == {"a": 5.0}


def test_only_what_both_hold_in_one_shape_has_an_error():
    found = errors(arrays(a=[1.0], b=[1.0, 1.0], d=[1.0]), arrays(a=[0.0], b=[0.0], c=[0.0]))
    assert found == {"a": 1.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_infinitely_wrong(value):
    assert errors(arrays(a=[value]), arrays(a=[0.0])) == {"a": math.inf}


def test_a_parameter_near_zero_is_judged_by_the_whole():
    """Norms 3, 4 and 1e-9: the whole is 5, so the least is 5/64."""
    of_parameters = not_near_zero(arrays(a=[3.0], b=[4.0], c=[1e-9]))
    assert of_parameters == {"a": 3.0, "b": 4.0, "c": pytest.approx(5 / 64)}
    assert NEAR_ZERO == 1 / 64


def test_algebra_allows_a_fraction_of_the_norm():
    assert algebra_tolerances(arrays(a=[3.0, 4.0]), 0.5) == {"a": 2.5}


def test_calibration_allows_a_multiple_of_the_rounding_of_one_process():
    """One process is off by 0.25, far more than epsilon: four times that."""
    single = arrays(numpy.float32, a=[3.25, 4.0])
    assert calibrated_tolerances(arrays(a=[3.0, 4.0]), single, 4) == {"a": 1.0}


def test_where_one_process_is_right_by_luck_an_epsilon_stands_in():
    """2^-23 of the norm 5 in float32, 2^-52 in float64."""
    reference = arrays(a=[3.0, 4.0])
    assert calibrated_tolerances(reference, arrays(numpy.float32, a=[3.0, 4.0]), 4) == {"a": 4 * 5 * 2**-23}
    assert calibrated_tolerances(reference, arrays(a=[3.0, 4.0]), 4) == {"a": 4 * 5 * 2**-52}


def test_the_worst_parameter_is_the_one_with_the_largest_ratio():
    assert largest_ratio({"a": 3.0, "b": 1.0}, {"a": 6.0, "b": 0.5}) == (2.0, "b")


def test_of_equal_ratios_the_first_parameter_is_named():
    assert largest_ratio({"a": 3.0, "b": 1.0}, {"a": 6.0, "b": 2.0}) == (0.5, "a")


def test_no_tolerance_allows_no_error():
    assert largest_ratio({"a": 0.0}, {"a": 0.0}) == (0.0, "a")
    assert largest_ratio({"a": 1e-300}, {"a": 0.0}) == (math.inf, "a")
    assert largest_ratio({"a": 1.0}, {}) == (math.inf, "a")
    assert largest_ratio({}, {}) == (0.0, None)


def test_a_weighted_sum():
    """2 x (1, 2) + 3 x (10, 20) = (32, 64)."""
    found = weighted_sum({"x": 2.0, "y": 3.0}, {"x": arrays(a=[1.0, 2.0]), "y": arrays(a=[10.0, 20.0])})
    assert found["a"].tolist() == [32.0, 64.0]


def test_json_has_no_infinity():
    assert [plain(value) for value in (1.5, math.inf, math.nan)] == [1.5, "inf", "nan"]


@pytest.mark.parametrize(
    ("error", "tolerance"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf), (math.inf, math.inf)]
)
def test_nothing_is_within_what_is_no_finite_number(error, tolerance):
    assert largest_ratio({"a": error}, {"a": tolerance}) == (math.inf, "a")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_no_number_makes_all_not_finite(value):
    assert is_finite(arrays(a=[1.0, 2.0], b=[3.0]))
    assert not is_finite(arrays(a=[1.0, 2.0], b=[3.0, value]))
    assert not is_finite(arrays(a=[value, 1.0], b=[3.0]))


def test_shapes_by_name():
    assert shapes_of(arrays(a=[1.0, 2.0], b=[[1.0], [2.0]])) == {"a": (2,), "b": (2, 1)}
