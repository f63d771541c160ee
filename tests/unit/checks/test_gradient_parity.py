import math

import numpy
import pytest
from safetensors.numpy import save_file

from ddp_tokens.checks.gradient_parity import (
    DTYPES,
    check_gradient_parity,
    compare,
    counts_of_windows,
    expected_outcome,
    judge,
    of_window,
)
from ddp_tokens.config import Tolerance, Tolerances
from ddp_tokens.files import sha256
from ddp_tokens.layout import Layout
from ddp_tokens.normalization import FORMULAS
from ddp_tokens.prepare import prepare
from tests.helpers import tiny_experiment

QUARTER_PLUS_HALF = Tolerance(atol=0.25, rtol=0.5)  # powers of two: the boundary is exact in floating point


def arrays(**values):
    return {name: numpy.array(value, dtype=numpy.float64) for name, value in values.items()}


def verdict_on(observed, reference, expected="pass", counts=(3, 5), tolerance=QUARTER_PLUS_HALF):
    return judge("case", tolerance, observed, reference, expected=expected, counts=list(counts), evidence={})


def test_a_value_at_the_boundary_agrees():
    """|ddp - ref| <= 0.25 + 0.5 * |ref| = 1.25 at ref = 2."""
    verdict = verdict_on(arrays(w=[3.25, 0.75]), arrays(w=[2.0, 2.0]))
    assert (verdict.outcome, verdict.first_difference) == ("pass", None)
    assert verdict.observed["outside_tolerance"] == 0


@pytest.mark.parametrize("value", [3.25 + 2**-51, 0.75 - 2**-52])
def test_a_value_just_outside_does_not(value):
    """The nearest values whose distance to 2 is representable and above 1.25."""
    verdict = verdict_on(arrays(w=[2.0, value]), arrays(w=[2.0, 2.0]))
    assert verdict.outcome == "fail"
    assert verdict.first_difference == {"parameter": "w", "index": [1], "ddp": value, "reference": 2.0}
    assert verdict.observed["outside_tolerance"] == 1


def test_the_criterion_is_relative_to_the_reference():
    """0.25 + 0.5 * 4 = 2.25 allows ddp 2 for ref 4, and 0.25 + 0.5 * 2 = 1.25 does not allow ddp 4 for ref 2."""
    assert verdict_on(arrays(w=[2.0]), arrays(w=[4.0])).outcome == "pass"
    assert verdict_on(arrays(w=[4.0]), arrays(w=[2.0])).outcome == "fail"


def test_the_figures():
    """Errors 1, 0.5 and 0.125: relative 1/8, 0.5/1, and 0.125/0.25 left out, since |ref| is not above atol."""
    figures, first = compare(arrays(a=[9.0, 1.5], b=[0.375]), arrays(a=[8.0, 1.0], b=[0.25]), QUARTER_PLUS_HALF)
    assert first is None
    assert figures["values"] == 3
    assert figures["max_abs_error"] == 1.0
    assert figures["max_rel_error"] == 0.5


def test_relative_errors_below_atol_are_left_out():
    figures, _ = compare(arrays(a=[0.25]), arrays(a=[0.125]), QUARTER_PLUS_HALF)
    assert (figures["max_abs_error"], figures["max_rel_error"]) == (0.125, 0.0)


def test_the_worst_parameter_is_the_one_nearest_to_its_limit():
    """Error 1 of 4.25 allowed at ref 8; error 0.25 of 0.375 allowed at ref 0.25: the smaller error is the worse."""
    figures, _ = compare(arrays(large=[9.0], small=[0.5]), arrays(large=[8.0], small=[0.25]), QUARTER_PLUS_HALF)
    assert figures["worst_parameter"] == "small"


def test_the_first_difference_is_the_first_in_order_of_names():
    figures, first = compare(arrays(b=[9.0], a=[0.0, 9.0]), arrays(b=[0.0], a=[0.0, 0.0]), QUARTER_PLUS_HALF)
    assert (first["parameter"], first["index"]) == ("a", [1])
    assert figures["outside_tolerance"] == 2


@pytest.mark.parametrize("expected", ["pass", "fail", "inconclusive"])
@pytest.mark.parametrize(
    ("observed", "first"),
    [
        (arrays(a=[1.0]), {"parameter": "b", "problem": "missing in ddp"}),
        (arrays(a=[1.0], b=[1.0], c=[1.0]), {"parameter": "c", "problem": "missing in the reference"}),
        (arrays(a=[1.0], b=[[1.0]]), {"parameter": "b", "ddp_shape": [1, 1], "reference_shape": [1]}),
        (arrays(a=[1.0], b=[math.nan]), {"parameter": "b", "index": [0], "ddp": "nan", "reference": 1.0}),
        (arrays(a=[1.0], b=[math.inf]), {"parameter": "b", "index": [0], "ddp": "inf", "reference": 1.0}),
        ({}, {"parameter": "a", "problem": "missing in ddp"}),
    ],
    ids=["missing", "extra", "shape", "NaN", "infinity", "empty"],
)
def test_what_is_no_agreement_fails_whatever_was_expected(observed, first, expected):
    verdict = verdict_on(observed, arrays(a=[1.0], b=[1.0]), expected)
    assert verdict.outcome == "fail"
    assert verdict.first_difference == first


def test_nan_on_both_sides_is_no_agreement():
    verdict = verdict_on(arrays(a=[math.nan]), arrays(a=[math.nan]))
    assert verdict.outcome == "fail"
    assert verdict.observed["outside_tolerance"] == 1
    assert verdict.observed["max_abs_error"] == "inf"  # JSON has no infinity


@pytest.mark.parametrize("nothing", [{}, arrays(a=[])], ids=["no name", "no value"])
def test_nothing_to_compare_is_no_pass(nothing):
    verdict = verdict_on(nothing, nothing)
    assert verdict.outcome == "fail"
    assert verdict.first_difference == {"parameter": None, "problem": "there is no gradient to compare"}


@pytest.mark.parametrize(
    ("formula", "counts", "expected"),
    [
        ("token_mean", [3, 5], "pass"),
        ("token_mean", [4, 4], "pass"),
        ("mean_of_means", [3, 5], "fail"),
        ("mean_of_means", [4, 4, 5], "fail"),
        ("mean_of_means", [4, 4], "inconclusive"),
        ("mean_of_means", [4], "inconclusive"),
    ],
)
def test_equal_counts_cannot_tell_the_formulas_apart(formula, counts, expected):
    assert expected_outcome(formula, counts) == expected


def test_agreement_on_equal_counts_is_inconclusive_and_says_why():
    verdict = verdict_on(arrays(a=[1.0]), arrays(a=[1.0]), "inconclusive", counts=[4, 4])
    assert verdict.outcome == "inconclusive"
    assert "equal counts on all ranks" in verdict.criterion


def test_a_control_that_agrees_is_a_pass_and_so_not_as_expected():
    verdict = verdict_on(arrays(a=[1.0]), arrays(a=[1.0]), "fail")
    assert (verdict.outcome, verdict.as_expected) == ("pass", False)


def test_the_criterion_tells_its_numbers():
    verdict = verdict_on(arrays(a=[1.0]), arrays(a=[1.0]), tolerance=Tolerances().native)
    assert verdict.criterion == "|ddp - ref| <= 1e-06 + 0.0001 x |ref| for each value, by parameter name"


def test_names_of_a_window_lose_their_prefix():
    both = {"first/a": numpy.ones(1), "most_unequal/a": numpy.zeros(1), "first_of_all/a": numpy.zeros(1)}
    assert list(of_window(both, "first")) == ["a"]
    assert of_window(both, "first")["a"] == 1


@pytest.fixture
def dumps(tmp_path):
    """Two windows, of which only the second has unequal counts; the reference and what each formula leaves."""
    reference = {"first/w": [1.0, 2.0], "most_unequal/w": [1.0, 2.0]}
    observed = {"token_mean": reference, "mean_of_means": reference | {"most_unequal/w": [1.0, 2.5]}}
    references, gradients = {}, {}
    for dtype, kind in zip(DTYPES, (numpy.float32, numpy.float64), strict=True):
        references[dtype] = tmp_path / f"reference.{dtype}"
        save_file({name: numpy.array(value, kind) for name, value in reference.items()}, references[dtype])
        for formula in FORMULAS:
            gradients[formula, dtype] = tmp_path / f"{formula}.{dtype}"
            of_formula = {name: numpy.array(value, kind) for name, value in observed[formula].items()}
            save_file(of_formula, gradients[formula, dtype])
    return references, gradients


COUNTS = {"first": [4, 4], "most_unequal": [3, 5]}


def test_every_window_formula_and_dtype_gets_a_verdict(dumps):
    references, gradients = dumps
    verdicts = {verdict.case: verdict for verdict in check_gradient_parity(Tolerances(), references, gradients, COUNTS)}
    assert len(verdicts) == 8
    assert all(verdict.as_expected for verdict in verdicts.values())
    for dtype in DTYPES:
        assert verdicts[f"token_mean.{dtype}.first"].outcome == "pass"
        assert verdicts[f"token_mean.{dtype}.most_unequal"].outcome == "pass"
        assert verdicts[f"mean_of_means.{dtype}.first"].outcome == "inconclusive"
        control = verdicts[f"mean_of_means.{dtype}.most_unequal"]
        assert (control.outcome, control.observed["units_per_rank"]) == ("fail", [3, 5])
        assert control.observed["max_abs_error"] == 0.5
    evidence = verdicts["token_mean.native.first"].evidence
    paths = references["native"], gradients["token_mean", "native"]
    assert evidence == {str(path): sha256(path) for path in paths}


def test_float64_has_a_criterion_of_its_own(dumps):
    """1e-7 is within 1e-6 + 1e-4 * |ref| of the native dtype and far outside that of float64."""
    references, gradients = dumps
    off = {"first/w": numpy.array([1.0 + 1e-7, 2.0]), "most_unequal/w": numpy.array([1.0, 2.0])}
    for dtype in DTYPES:
        save_file(off, gradients["token_mean", dtype])
    verdicts = {verdict.case: verdict for verdict in check_gradient_parity(Tolerances(), references, gradients, COUNTS)}
    assert verdicts["token_mean.native.first"].outcome == "pass"
    assert verdicts["token_mean.float64.first"].outcome == "fail"
    assert verdicts["token_mean.float64.first"].first_difference["parameter"] == "w"


def test_counts_of_the_windows_that_are_compared(tmp_path):
    at = Layout(tmp_path)
    prepare(tiny_experiment(), at.rows, at.lock, at.plan)
    counts = counts_of_windows(at.rows, at.lock, at.plan)
    assert list(counts) == ["first", "most_unequal"]
    # Rank 0 draws sequences of 2 to 4 tokens and rank 1 of 5 to 8, four per window.
    for short, long in counts.values():
        assert 8 <= short <= 16
        assert 20 <= long <= 32
