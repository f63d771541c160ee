"""Power and diagnosis, on random gradients of three ranks and two microbatches, where all formulas differ."""

import math
from dataclasses import replace

import numpy
import pytest

from ddp_tokens.checks.gradient_formulas import Diagnosis, diagnose, distances, predicted
from ddp_tokens.checks.gradient_norms import algebra_tolerances, calibrated_tolerances
from ddp_tokens.formulas import ACCUMULATION_FORGOTTEN, KNOWN_WRONG, excluded_by, possible_on
from ddp_tokens.window_facts import WindowFacts
from tests.unit.checks.synthetic import FACTS, UNITS, evidence, parts_for, with_observed

N = 36
OF_RANK = [8, 17, 11]
# Weight of rank r's microbatch m, each written as the mistake is made.
MISTAKES = {
    "mean_of_means": lambda r, m: 1 / OF_RANK[r] / 3,
    "world_size_forgotten": lambda r, m: 1 / N / 3,
    "world_size_twice": lambda r, m: 3 * 3 / N / 3,
    "one_rank_only": lambda r, m: 3 / N if r == 1 else 0,
    "another_ranks_rows": lambda r, m: {0: 0, 1: 2 / (17 + 17 + 11), 2: 1 / (17 + 17 + 11)}[r],
    "mean_of_microbatch_means": lambda r, m: 1 / UNITS[r][m] / 2 / 3,
    "extra_division_by_accumulation": lambda r, m: 1 / N / 2,
    "one_microbatch_counted": lambda r, m: 1 / [3 + 11 + 7, 5 + 6 + 4][m],
    "microbatches_weigh_alike": lambda r, m: 1 / [3 + 11 + 7, 5 + 6 + 4][m] / 2,
    "last_microbatch_only": lambda r, m: 1 / N if m == 1 else 0,
    "first_microbatch_only": lambda r, m: 1 / N if m == 0 else 0,
    "padding_counted": lambda r, m: 1 / 59,
    "ignored_labels_counted": lambda r, m: 1 / 43,
    "stale_count": lambda r, m: 1 / 29,
}


def diagnosis_of(of, tolerances=None):
    tolerances = tolerances or algebra_tolerances(of.reference, 1e-12)
    return diagnose(of.observed, of.reference, of.facts, of.parts, tolerances)


def test_every_formula_of_a_full_window_has_its_mistake_here():
    assert set(MISTAKES) == {formula.name for formula in KNOWN_WRONG} - {"short_window_as_full", "weights_left_out"}
    assert sum(OF_RANK) == N == FACTS.total


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_and_no_other(name):
    found = diagnosis_of(evidence(MISTAKES[name]))
    assert found.names == (name,)
    assert found.figures["residual"] < 1e-14
    assert found.figures["next_best_residual"] > 1e-2


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_in_float32_too(name):
    of = evidence(MISTAKES[name], dtype=numpy.float32)
    found = diagnosis_of(of, calibrated_tolerances(of.reference, of.single, 4))
    assert found.names == (name,)
    assert 0 < found.figures["residual"] < 1e-6


FORGOTTEN = {
    "means of microbatches": lambda r, m: 1 / UNITS[r][m] / 3,
    "means of ranks": lambda r, m: 2 / OF_RANK[r] / 3,
}


@pytest.mark.parametrize("detail", FORGOTTEN)
def test_a_formula_that_only_some_callers_know(detail):
    """Where it is not known, none fits."""
    of = evidence(FORGOTTEN[detail])
    given = (of.observed, of.reference, of.facts, of.parts, algebra_tolerances(of.reference, 1e-12))
    found = diagnose(*given, (ACCUMULATION_FORGOTTEN,))
    assert (found.names, found.figures["detail"]) == (("accumulation_forgotten",), detail)
    assert found.figures["residual"] < 1e-14
    assert diagnose(*given).names == ()


def test_a_short_window_divided_as_if_full():
    facts = replace(FACTS, accumulation=5)
    assert diagnosis_of(evidence(lambda r, m: 2 / 5 / N, facts)).names == ("short_window_as_full",)


@pytest.mark.parametrize(
    ("name", "detail"),
    [("one_rank_only", "rank 1"), ("another_ranks_rows", "rank 0 computes the rows of rank 1")],
)
def test_the_rank_is_named(name, detail):
    assert diagnosis_of(evidence(MISTAKES[name])).figures["detail"] == detail


def test_mistakes_that_coincide_are_named_together():
    """Two ranks and two microbatches: 1/(2N) is a forgotten world size and an extra division by 2."""
    facts = replace(FACTS, units=UNITS[:2], labels=FACTS.labels[:2], positions=FACTS.positions[:2])
    found = diagnosis_of(evidence(lambda r, m: 1 / 25 / 2, facts))
    assert found.names == ("world_size_forgotten", "extra_division_by_accumulation")


def test_an_unknown_mistake_has_no_name():
    of = evidence()
    odd = with_observed(of, **{"head.bias": of.observed["head.bias"] + numpy.array([0.0, 0.0, 0.0, 0.5])})
    found = diagnosis_of(odd)
    assert found.names == ()
    assert found.figures["next_best"] in {formula.name for formula in possible_on(FACTS)}
    assert found.figures["next_best_residual"] > 1e-2


@pytest.mark.parametrize(
    ("factor", "name"),
    [(65536.0, "loss_scale_kept"), (16.0, "loss_scale_kept"), (8.0, "scaled"), (17.0, "scaled"), (-16.0, "scaled")],
)
def test_a_loss_scale_that_was_not_undone(factor, name):
    found = diagnosis_of(evidence(lambda r, m: factor / N))
    assert found.names == (name,)
    assert found.figures["factor"] == pytest.approx(factor, rel=1e-12)


def test_a_gradient_of_zero_is_not_the_right_one_scaled():
    assert diagnosis_of(evidence(lambda r, m: 0.0)).names == ()


def test_a_gradient_that_is_not_a_number_comes_from_a_division_by_zero():
    facts = replace(FACTS, units=((0, 0), *UNITS[1:]))
    of = evidence(facts=facts)
    found = diagnosis_of(with_observed(of, **{"head.bias": numpy.full(4, math.nan)}))
    assert found.names == ("mean_of_means", "mean_of_microbatch_means")
    assert diagnosis_of(with_observed(evidence(), **{"head.bias": numpy.full(4, math.nan)})).names == ()


def with_reference(of, change=0.25):
    """Another gradient in the place of the one that the parts add up to."""
    return replace(of, reference=of.reference | {"head.bias": of.reference["head.bias"] + change})


def test_the_mean_of_parts_that_do_not_add_up_to_the_reference():
    """Each microbatch as one process computes it alone, rightly weighted: what ranks leave with statistics of their
    own, and not what one process makes of the whole window.
    """
    found = diagnosis_of(with_reference(evidence()))
    assert found.names == ("statistics_of_each_microbatch",)
    assert found.figures["residual"] == 0.0
    assert found.figures["next_best"] in {formula.name for formula in possible_on(FACTS)}
    assert found.figures["next_best_residual"] > 1e-2


def test_the_mean_of_parts_that_do_not_add_up_is_named_in_float32_too():
    of = with_reference(evidence(dtype=numpy.float32))
    found = diagnosis_of(of, calibrated_tolerances(of.reference, of.single, 1e-6))
    assert found.names == ("statistics_of_each_microbatch",)


@pytest.mark.parametrize("name", ["mean_of_means", "last_microbatch_only", "stale_count"])
def test_a_mistake_is_named_where_parts_do_not_add_up_either(name):
    assert diagnosis_of(with_reference(evidence(MISTAKES[name]))).names == (name,)


def test_where_parts_add_up_their_mean_is_no_mistake():
    """Off by 1.5 tolerances in one parameter, and by less in both together."""
    of = evidence()
    off = with_observed(of, **{"head.bias": of.observed["head.bias"] * (1 + 1.5e-12)})
    assert diagnosis_of(off).names == ()


def test_counts_on_which_a_formula_is_right_do_not_bring_it_in_where_parts_do_not_add_up():
    """No label is ignored and no row padded: counting them too is the right formula here, and explains nothing."""
    facts = replace(FACTS, labels=UNITS, positions=UNITS)
    assert diagnosis_of(with_reference(evidence(facts=facts))).names == ("statistics_of_each_microbatch",)


def test_a_missing_parameter_fits_nothing():
    of = evidence(MISTAKES["mean_of_means"])
    incomplete = replace(of, observed={"head.bias": of.observed["head.bias"]})
    assert diagnosis_of(incomplete).names == ()


# One value: the loss sums of two ranks, over 1 and 3 units, have the gradients -8 and 16, so 8/4 = 2 is right. It is 1
# without the world size, 4 with it twice, -4 or 8 of one rank alone, 16/3 or -8 with another's rows, -4/3 as a mean of
# means, 8/5 over all labels, 8/16 over all positions, 8/32 over the units before.
BY_HAND = WindowFacts(units=((1,), (3,)), labels=((2,), (3,)), positions=((6,), (10,)), accumulation=1)
BY_HAND = replace(BY_HAND, previous_units=32)


def diagnosis_by_hand(observed, *gradients, facts=BY_HAND, right=2.0):
    """With a tolerance of 0.25."""
    parts = {(rank, 0): {"a": numpy.array([value])} for rank, value in enumerate(gradients or (-8.0, 16.0))}
    return diagnose({"a": numpy.array([observed])}, {"a": numpy.array([right])}, facts, parts, {"a": 0.25})


@pytest.mark.parametrize(
    ("observed", "name"),
    [
        (1.25, "world_size_forgotten"),
        (1.25 + 2**-52, "scaled"),
        (4.5, "world_size_twice"),  # twice as long as the right one, so twice the tolerance
        (4.5 + 2**-50, "scaled"),
    ],
    ids=str,
)
def test_a_formula_fits_up_to_the_tolerance(observed, name):
    assert diagnosis_by_hand(observed).names == (name,)


def test_residuals_are_fractions_of_a_formulas_own_norm():
    """1.25 is off by 0.25 of 1, and by 0.35 of 1.6, which the tolerance does not allow."""
    assert diagnosis_by_hand(1.25).figures == {
        "residual": 0.25,
        "next_best": "ignored_labels_counted",
        "next_best_residual": pytest.approx(0.35 / 1.6),
    }


def test_a_length_that_no_formula_gives_is_told_with_its_factor():
    """3 is 1.5 times the right one, and nearest to 4."""
    found = diagnosis_by_hand(3.0)
    figures = {"residual": 0.0, "factor": 1.5, "next_best": "world_size_twice", "next_best_residual": 0.25}
    assert (found.names, found.figures) == (("scaled",), figures)


@pytest.mark.parametrize(("observed", "names"), [(2.25, ()), (2.25 + 2**-51, ("scaled",))], ids=str)
def test_a_length_within_the_tolerance_is_not_scaled(observed, names):
    assert diagnosis_by_hand(observed).names == names


LEAST = 16 * (1 - 1e-4)


@pytest.mark.parametrize(
    ("factor", "name"), [(LEAST, "loss_scale_kept"), (math.nextafter(LEAST, 0), "scaled")], ids=["least", "less"]
)
def test_the_least_loss_scale_is_16_but_for_one_part_in_10000(factor, name):
    assert diagnosis_by_hand(2 * factor).names == (name,)


def test_where_the_right_gradient_is_zero_nothing_is_named():
    assert diagnosis_by_hand(1.0, -8.0, 8.0, right=0.0) == Diagnosis()


def test_of_ranks_that_leave_the_same_the_first_is_named():
    """(8 + 8 - 24)/4 = -2 is right, and rank 0 or rank 1 alone leaves 3 x 8/4."""
    facts = WindowFacts(
        units=((1,), (1,), (2,)), labels=((1,), (1,), (2,)), positions=((1,), (1,), (2,)), accumulation=1
    )
    found = diagnosis_by_hand(6.0, 8.0, 8.0, -24.0, facts=facts, right=-2.0)
    assert (found.names, found.figures["detail"]) == (("one_rank_only",), "rank 0")


def test_a_choice_that_is_right_here_or_impossible_leaves_the_other_formulas():
    """Rank 0 cannot compute the rows of rank 1, which has no unit; the other way round 2 x 8/8 = 2 is right. Next to
    2.5 is rank 0 alone, 2 x 8/4 = 4: off by 1.5/4.
    """
    facts = WindowFacts(units=((4,), (0,)), labels=((8,), (0,)), positions=((8,), (0,)), accumulation=1)
    found = diagnosis_by_hand(2.5, 8.0, 0.0, facts=facts)
    assert (found.figures["next_best"], found.figures["next_best_residual"]) == ("one_rank_only", 0.375)


def test_a_choice_that_is_right_here_leaves_the_other_choices():
    """Rank 0 may compute the nothing of rank 1. With the rows of rank 3 it leaves (-8 + 2 x 16)/7, not (-8 + 16)/4."""
    counts = ((0,), (0,), (1,), (3,))
    facts = WindowFacts(units=counts, labels=((2,),) * 4, positions=((4,),) * 4, accumulation=1)
    found = diagnosis_by_hand(24 / 7, 0.0, 0.0, -8.0, 16.0, facts=facts)
    assert (found.names, found.figures["detail"]) == (("another_ranks_rows",), "rank 0 computes the rows of rank 3")


def test_where_all_possible_formulas_fit_none_is_next():
    """One rank and one microbatch: 8/4 is right, and 8/8 over all labels as well as over all positions."""
    facts = WindowFacts(units=((4,),), labels=((8,),), positions=((8,),), accumulation=1)
    found = diagnosis_by_hand(1.0, 8.0, facts=facts)
    assert (found.names, found.figures) == (("padding_counted", "ignored_labels_counted"), {"residual": 0.0})


def distances_on(facts, seed=0, excluded=None):
    of = evidence(facts=facts, seed=seed)
    tolerances = algebra_tolerances(of.reference, 1e-12)
    return distances(excluded or excluded_by(facts), facts, of.parts, of.reference, tolerances)


def test_the_distance_is_the_error_of_the_worst_parameter_in_tolerances():
    """With the norm 1 and a tolerance of 0.25: W twice on three ranks is off by 2, so 8 tolerances."""
    parts = {
        (rank, index): {"a": numpy.array([float(u)])} for rank, of in enumerate(UNITS) for index, u in enumerate(of)
    }
    found = distances(excluded_by(FACTS), FACTS, parts, {"a": numpy.array([1.0])}, {"a": 0.25})
    assert found["world_size_twice"] == pytest.approx(8.0)
    assert found["world_size_forgotten"] == pytest.approx((1 - 1 / 3) * 4)
    # Every unit has the gradient 1, so each rank's mean is 1 as well: the rows cannot tell, whatever the counts.
    assert found["mean_of_means"] == pytest.approx(0.0, abs=1e-12)


def test_the_nearest_variant_counts():
    """Rank k alone leaves 3 x 8/36, 3 x 17/36 or 3 x 11/36 of the units' 1: the nearest, 33/36, is off by 3/36."""
    parts = {
        (rank, index): {"a": numpy.array([float(u)])} for rank, of in enumerate(UNITS) for index, u in enumerate(of)
    }
    found = distances(excluded_by(FACTS), FACTS, parts, {"a": numpy.array([1.0])}, {"a": 1.0})
    assert found["one_rank_only"] == pytest.approx(3 / 36)


def test_equal_counts_bring_a_mean_of_means_to_no_distance():
    """Up to rounding, which is 1e-16 of a norm and so 1e-4 tolerances."""
    assert distances_on(replace(FACTS, units=((3, 5), (2, 6), (7, 1))))["mean_of_means"] < 0.01
    assert distances_on(FACTS)["mean_of_means"] > 1e9


def test_a_rank_without_units_weighs_nothing_in_a_mean_of_means():
    found = distances_on(replace(FACTS, units=((0, 0), *UNITS[1:])))
    assert 1e9 < found["mean_of_means"] < math.inf


def test_a_prediction_is_the_weighted_sum_of_the_parts():
    parts = parts_for(UNITS)
    weights = tuple(tuple((r + 1) * 10.0 + m for m in range(2)) for r in range(3))
    found = predicted(weights, parts)["head.bias"]
    by_hand = sum(weights[r][m] * parts[r, m]["head.bias"] for r in range(3) for m in range(2))
    assert found == pytest.approx(by_hand, rel=1e-15)
