import pytest

from ddp_tokens.checks.verdict import Verdict
from ddp_tokens.published import compare_with_published
from tests.helpers import tiny_experiment


def parity(case, outcome, error, values=100):
    observed = {"values": values, "outside_tolerance": values if outcome == "fail" else 0, "max_abs_error": error}
    return Verdict(case, outcome, outcome, "", observed, {})


def checks(**replaced):
    usual = {
        "gradient_parity": [
            parity("token_mean.native.first", "pass", 2.98e-8),
            parity("token_mean.native.most_unequal", "pass", 2.24e-8),
            parity("mean_of_means.native.first", "fail", 0.0116),
            parity("mean_of_means.native.most_unequal", "fail", 0.01283),
            parity("token_mean.float64.first", "pass", 9.0),
        ],
        "resume": [Verdict("parameters", "pass", "pass", "", {"max_abs_difference": 0.0}, {})],
        "zero_window": [Verdict("empty_window", "pass", "pass", "", {"ranks_that_refused": 2}, {})],
    }
    return usual | replaced


EVALUATION = {"test": {"loss": 1.2358608, "accuracy": 0.5405, "rows": 8, "units": 1860}}


def compared(experiment=None, of_checks=None, evaluation=EVALUATION):
    rows = compare_with_published(experiment or tiny_experiment(), of_checks or checks(), evaluation)
    return {row.quantity: row for row in rows}


def test_published_values_stand_as_published():
    published = {quantity: row.published for quantity, row in compared().items()}
    assert published == {
        "Gradient values compared": "282,628",
        "Tolerance of each value": "atol 1e-06 and rtol 0.0001",
        "Token mean": "within tolerance, largest absolute error 3.73e-08",
        "Mean of means (the known mistake)": "refused, largest absolute error 0.02157",
        "Largest difference of a parameter after the resume": "0 at step 100",
        "Ranks that refuse a window with no supervised token": "2 of 2",
        "Test loss per token": "1.31525",
        "Test accuracy per token": "36.22 %",
        "Test sequences": "256",
        "Test tokens": "18,231",
    }


def test_measured_values_come_from_verdicts_and_evaluation():
    measured = {quantity: row.measured for quantity, row in compared().items()}
    assert measured == {
        "Gradient values compared": "100 in each of 2 windows",
        "Tolerance of each value": "atol 1e-06 and rtol 0.0001",
        "Token mean": "within tolerance, largest absolute error 2.98e-08 (window first)",
        "Mean of means (the known mistake)": "refused, largest absolute error 0.01283 (window most_unequal)",
        "Largest difference of a parameter after the resume": "0 at step 4",
        "Ranks that refuse a window with no supervised token": "2 of 2",
        "Test loss per token": "1.23586",
        "Test accuracy per token": "54.05 %",
        "Test sequences": "8",
        "Test tokens": "1,860",
    }


@pytest.mark.parametrize(
    "changes", [{"workload": "causal_lm"}, {"corpus": {"path": "rows.jsonl"}}, {"corpus": {"kind": "verb_grammar"}}]
)
def test_another_kind_of_work_or_corpus_is_compared_with_nothing(changes):
    assert compared(tiny_experiment(**changes)) == {}
    assert len(compared()) == 10


def test_other_tolerances_are_not_called_the_same_criterion():
    tolerances = {"published": {"atol": 1e-3, "rtol": 1e-4}}
    assert compared()["Token mean"].comparable == "same criterion"
    assert compared(tiny_experiment(tolerances=tolerances))["Token mean"].comparable == "another criterion"


def test_single_rank_cannot_tell_the_formulas_apart():
    windows = ("first", "most_unequal")
    of_one_rank = [parity(f"token_mean.native.{window}", "pass", 0.0) for window in windows]
    of_one_rank += [parity(f"mean_of_means.native.{window}", "inconclusive", 0.0) for window in windows]
    rows = compared(of_checks=checks(gradient_parity=of_one_rank))
    measured = rows["Mean of means (the known mistake)"].measured
    assert measured == "inconclusive, largest absolute error 0 (window most_unequal)"


def test_windows_with_different_outcomes_are_both_told():
    mixed = [parity("mean_of_means.native.first", "inconclusive", 0.0), *checks()["gradient_parity"][3:]]
    assert compared(of_checks=checks(gradient_parity=mixed))["Mean of means (the known mistake)"].measured == (
        "first inconclusive, most_unequal refused; largest absolute error 0.01283 (window most_unequal)"
    )


def test_error_that_is_not_a_number_is_the_larger_one():
    broken = [parity("token_mean.native.first", "fail", "inf"), parity("token_mean.native.most_unequal", "fail", 1.0)]
    measured = compared(of_checks=checks(gradient_parity=broken))["Token mean"].measured
    assert measured == "refused, largest absolute error inf (window first)"


def test_ranks_are_counted_against_the_world_size():
    row = compared(tiny_experiment(world_size=3))["Ranks that refuse a window with no supervised token"]
    assert row.measured == "2 of 3"


@pytest.mark.parametrize("quantity", ["Test loss per token", "Test accuracy per token", "Test tokens"])
def test_corpus_without_test_rows_has_no_test_scores(quantity):
    assert compared(evaluation={"validation": {}})[quantity].measured == "not measured"


def test_the_published_criterion_decides_what_is_said_here():
    """A verdict by the project's own criterion may fail where each value is within the published tolerance."""
    within = Verdict(
        "token_mean.native.first", "pass", "fail", "", {"values": 9, "outside_tolerance": 0, "max_abs_error": 1e-7}, {}
    )
    measured = compared(of_checks=checks(gradient_parity=[within]))["Token mean"].measured
    assert measured == "within tolerance, largest absolute error 1e-07 (window first)"
