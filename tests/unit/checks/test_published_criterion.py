import math

import numpy
import pytest

from ddp_tokens.checks.published_criterion import published_figures
from ddp_tokens.config import Tolerance

QUARTER_PLUS_HALF = Tolerance(atol=0.25, rtol=0.5)  # powers of two: the boundary is exact in floating point


def arrays(**values):
    return {name: numpy.array(value, dtype=numpy.float64) for name, value in values.items()}


def figures(observed, reference):
    return published_figures(observed, reference, QUARTER_PLUS_HALF)


@pytest.mark.parametrize(("value", "outside"), [(3.25, 0), (0.75, 0), (3.25 + 2**-51, 1), (0.75 - 2**-52, 1)], ids=str)
def test_the_boundary_is_inside(value, outside):
    """|ddp - ref| <= 0.25 + 0.5 * |ref| = 1.25 at ref = 2; the next representable distance is outside."""
    assert figures(arrays(w=[value]), arrays(w=[2.0]))["outside_tolerance"] == outside


def test_the_criterion_is_relative_to_the_reference():
    """0.25 + 0.5 * 4 = 2.25 allows ddp 2 for ref -4 + ... of either sign; 1.25 does not allow ddp 4 for ref 2."""
    assert figures(arrays(w=[-2.0]), arrays(w=[-4.0]))["outside_tolerance"] == 0
    assert figures(arrays(w=[4.0]), arrays(w=[2.0]))["outside_tolerance"] == 1


def test_the_figures():
    """Errors 1, 0.5 and 0.1875: relative 1/8, 0.5/1, and 0.1875/0.25 left out, since |ref| is not above atol."""
    found = figures(arrays(a=[9.0, 1.5], b=[0.4375]), arrays(a=[8.0, 1.0], b=[0.25]))
    assert found == {"values": 3, "outside_tolerance": 0, "max_abs_error": 1.0, "max_rel_error": 0.5}


def test_values_outside_are_counted_over_all_parameters():
    found = figures(arrays(b=[9.0], a=[0.0, 9.0]), arrays(b=[0.0], a=[0.0, 0.0]))
    assert (found["values"], found["outside_tolerance"]) == (3, 2)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_a_number_is_outside(value):
    found = figures(arrays(a=[value]), arrays(a=[1.0]))
    assert (found["outside_tolerance"], found["max_abs_error"], found["max_rel_error"]) == (1, "inf", "inf")


def test_what_only_one_side_holds_has_no_figures():
    found = figures(arrays(a=[1.0], b=[1.0, 2.0]), arrays(b=[1.0], c=[1.0]))
    assert found == {"values": 0, "outside_tolerance": 0, "max_abs_error": 0.0, "max_rel_error": 0.0}


def test_what_has_another_shape_does_not_hide_what_follows():
    found = figures(arrays(a=[1.0], b=[2.0]), arrays(a=[1.0, 1.0], b=[1.0]))
    assert found == {"values": 1, "outside_tolerance": 1, "max_abs_error": 1.0, "max_rel_error": 1.0}
