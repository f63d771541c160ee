"""Scores judged from what each batch counted. Values that binary fractions hold exactly, where a test says ==."""

import json
import math

import pytest

from ddp_tokens.checks.evaluation import check_evaluation, judge_mean, rounding, wrong_means
from ddp_tokens.errors import EvidenceError
from ddp_tokens.files import digests, write_json


def batch(loss_sum, units, rank=0, rows=1):
    return {"rank": rank, "rows": rows, "units": units, "correct": 0, "loss_sum": loss_sum}


TWO = [batch(2.0, 1), batch(90.0, 9)]


def score(batches, **changes):
    totals = {name: sum(each[name] for each in batches) for name in ("rows", "units", "correct", "loss_sum")}
    mean, accuracy = (totals[name] / max(1, totals["units"]) for name in ("loss_sum", "correct"))
    ranks = 1 + max(each["rank"] for each in batches)
    loss = changes.get("loss", mean)
    scores = {"unit": "token", "loss": loss, "perplexity": math.exp(loss), "accuracy": accuracy}
    return totals | scores | {"ranks": ranks, "batches": batches} | changes


def verdicts_on(folder, test, rows=None, units=None, **splits):
    """Verdicts on the split `test`, of which the corpus holds `rows` and `units`: as many as counted by default."""
    rows, units = test["rows"] if rows is None else rows, test["units"] if units is None else units
    counts = {"train": (9, 9), "validation": (0, 0), "test": (rows, units)}
    held = {split: {"rows": rows, "tokens": units, "supervised": units} for split, (rows, units) in counts.items()}
    write_json(folder / "evaluation.json", {"checkpoint": "step-0001", "test": test} | splits)
    write_json(folder / "lock.json", {"counts": held})
    verdicts = check_evaluation(folder / "evaluation.json", folder / "lock.json")
    return {verdict.case: verdict for verdict in verdicts}


def test_the_mean_over_all_units_passes(tmp_path):
    """Sums 2 and 90 over 1 and 9 units: 92/10 = 9.2, and the mean of 2 and 10 is 6, which is 3.2 away.

    The tolerance is 3 x 2^-52 x 92/10 = 6.1e-15.
    """
    verdicts = verdicts_on(tmp_path, score(TWO))
    assert list(verdicts) == ["test.rows", "test.mean"]
    assert {verdict.outcome for verdict in verdicts.values()} == {"pass"}
    assert all(verdict.as_expected and verdict.diagnosis == () for verdict in verdicts.values())
    mean = verdicts["test.mean"]
    assert mean.observed["loss"] == mean.observed["mean_over_all_units"] == 9.2
    assert (mean.observed["error"], mean.observed["nearest_wrong_mean"]) == (0.0, 6.0)
    assert mean.observed["tolerance"] == pytest.approx(3 * 2**-52 * 9.2, rel=1e-12)
    assert mean.observed["power"] == pytest.approx(3.2 / (3 * 2**-52 * 9.2), rel=1e-12)
    of_the_sums = {
        "loss": 9.2,
        "perplexity": math.exp(9.2),
        "mean_over_all_units": 9.2,
        "nearest_wrong_mean": 6.0,
        "batches": 2,
        "units": 10,
    }
    assert mean.observed.items() >= of_the_sums.items()
    assert {*mean.observed} == {*of_the_sums, "error", "tolerance", "power"}
    rows = {
        "error": 0,
        "tolerance": 0,
        "rows": 2,
        "units": 10,
        "ranks": 1,
        "rows_in_batches": 2,
        "units_in_batches": 10,
    }
    assert verdicts["test.rows"].observed == rows
    for verdict in verdicts.values():
        assert verdict.evidence == digests([tmp_path / "evaluation.json", tmp_path / "lock.json"])
        assert verdict.first_difference is None


def test_the_criteria_tell_their_numbers(tmp_path):
    verdicts = verdicts_on(tmp_path, score(TWO))
    assert verdicts["test.rows"].criterion == (
        "2 rows and 10 supervised units are counted, as many as the corpus holds, in the totals and over all batches, "
        "whatever the number of ranks"
    )
    assert verdicts["test.mean"].criterion == (
        "accuracy is what all batches got right over all units, perplexity is exp(loss), and "
        "|loss - sum of loss sums / sum of units| <= (batches + 1) x 2^-52 x sum of |loss sums| / units = "
        "6.13e-15, the rounding of float64 sums in any order, and the nearest wrong mean is at least 3 tolerances away"
    )


def test_a_mean_of_batch_means_is_refused_by_name(tmp_path):
    verdicts = verdicts_on(tmp_path, score(TWO, loss=6.0))
    assert verdicts["test.rows"].outcome == "pass"
    mean = verdicts["test.mean"]
    assert (mean.expected, mean.outcome, mean.diagnosis) == ("pass", "fail", ("mean_of_batch_means",))
    assert mean.first_difference == {
        "loss": 6.0,
        "perplexity": math.exp(6.0),
        "mean_over_all_units": 9.2,
        "accuracy": 0.0,
        "right_over_all_units": 0.0,
    }


# Rank 0: 2 over 1 unit, 4 over 4; rank 1: 90 over 9. Right: 96/14. Means of batches: 2, 1, 10.
THREE = [batch(2.0, 1), batch(4.0, 4), batch(90.0, 9, rank=1)]


@pytest.mark.parametrize(
    ("found", "diagnosis"),
    [
        (13 / 3, ("mean_of_batch_means",)),  # (2 + 1 + 10) / 3
        (5.75, ("mean_of_batch_means",)),  # ((2 + 1) / 2 + 10) / 2, averaged on each rank first
        (5.6, ("mean_of_rank_means",)),  # (6/5 + 10) / 2
        (96 / 13, ()),  # no mistake that is known here
    ],
)
def test_each_wrong_mean_is_named(tmp_path, found, diagnosis):
    mean = verdicts_on(tmp_path, score(THREE, loss=found))["test.mean"]
    assert (mean.outcome, mean.diagnosis) == ("fail", diagnosis)
    assert verdicts_on(tmp_path, score(THREE))["test.mean"].outcome == "pass"


def test_one_batch_per_rank_makes_two_mistakes_one(tmp_path):
    batches = [batch(2.0, 1), batch(90.0, 9, rank=1)]
    mean = verdicts_on(tmp_path, score(batches, loss=6.0))["test.mean"]
    assert mean.diagnosis == ("mean_of_batch_means", "mean_of_rank_means")


@pytest.mark.parametrize(
    "batches",
    [
        [batch(92.0, 10)],
        [batch(2.0, 5), batch(90.0, 5)],
        [batch(2.0, 5), batch(90.0, 5), batch(7.0, 5, rank=1)],
        [batch(92.0, 10), batch(0.0, 0)],
    ],
    ids=["one batch", "equal units", "equal units on ranks with other numbers of batches", "one batch with units"],
)
def test_one_formula_is_inconclusive_and_never_passes(tmp_path, batches):
    mean = verdicts_on(tmp_path, score(batches))["test.mean"]
    assert (mean.expected, mean.outcome, mean.observed["power"]) == ("inconclusive", "inconclusive", 0.0)
    assert mean.criterion.endswith(" tolerances away (all batches have the same number of units)")


def test_one_formula_still_refuses_another_value(tmp_path):
    mean = verdicts_on(tmp_path, score([batch(92.0, 10)], loss=9.0))["test.mean"]
    assert (mean.outcome, mean.diagnosis) == ("fail", ())


@pytest.mark.parametrize("batches", [[batch(2.0, 2), batch(3.0, 3)], [batch(0.0, 2), batch(0.0, 3)]])
def test_equal_batch_means_are_inconclusive_and_not_expected(tmp_path, batches):
    """The units are unequal, so the formulas are two, but these losses cannot tell them apart."""
    mean = verdicts_on(tmp_path, score(batches))["test.mean"]
    assert (mean.expected, mean.outcome) == ("pass", "inconclusive")
    assert mean.observed["power"] == 0.0
    assert (mean.first_difference, mean.diagnosis) == (None, ()), "the right mean is no mistake"


@pytest.mark.parametrize(("ulps", "power", "outcome"), [(32, 8 / 3, "inconclusive"), (40, 10 / 3, "pass")])
def test_the_power_decides_at_three_tolerances(tmp_path, ulps, power, outcome):
    """Sums 1 + d and 3 over 1 and 3 units: 1 + d/4, where the mean of 1 + d and 1 is 1 + d/2. The tolerance is
    3 x 2^-52 x (4 + d)/4, so with d = k x 2^-52 the means are k/12 tolerances apart."""
    batches = [batch(1 + ulps * 2**-52, 1), batch(3.0, 3)]
    mean = verdicts_on(tmp_path, score(batches))["test.mean"]
    assert mean.observed["power"] == pytest.approx(power, rel=1e-12)
    assert (mean.expected, mean.outcome) == ("pass", outcome)


# With e = 2^-52, sums 6 + 216e, -6 + 216e and 0 over 1, 1 and 2 units: 432e/4 = 108e is right, with a tolerance of
# 4e x 12/4 = 12e, and the mean of 2 + 72e, -2 + 72e and 0, each over 3, is 144e with 4e x 4 = 16e. All of it is exact.
E = 2.0**-52
EXACT = [batch(6 + 216 * E, 1), batch(-6 + 216 * E, 1), batch(0.0, 2)]


def test_three_tolerances_are_enough(tmp_path):
    mean = verdicts_on(tmp_path, score(EXACT))["test.mean"]
    assert (mean.observed["mean_over_all_units"], mean.observed["nearest_wrong_mean"]) == (108 * E, 144 * E)
    assert (mean.outcome, mean.observed["power"], mean.observed["tolerance"]) == ("pass", 3.0, 12 * E)


@pytest.mark.parametrize(("found", "diagnosis"), [(160, ("mean_of_batch_means",)), (161, ()), (127, ())])
def test_a_wrong_mean_is_named_up_to_its_own_rounding(tmp_path, found, diagnosis):
    mean = verdicts_on(tmp_path, score(EXACT, loss=found * E))["test.mean"]
    assert (mean.outcome, mean.diagnosis) == ("fail", diagnosis)


@pytest.mark.parametrize(("found", "outcome"), [(120, "pass"), (96, "pass"), (121, "fail")])
def test_a_mean_is_right_up_to_one_tolerance(tmp_path, found, outcome):
    assert verdicts_on(tmp_path, score(EXACT, loss=found * E))["test.mean"].outcome == outcome


def test_the_tolerance_holds_for_another_order_of_sums_and_for_little_else(tmp_path):
    """1000 batches: sums forwards, backwards and pairwise agree; one part in 10^12 does not."""
    batches = [batch(math.pi * (1 + index % 7) / (1 + index % 5), 1 + index % 3) for index in range(1000)]
    units = sum(each["units"] for each in batches)
    sums = [each["loss_sum"] for each in batches]
    orders = {sum(sums), sum(reversed(sums)), sum(sums[::2]) + sum(sums[1::2])}
    assert len(orders) > 1
    for total in orders:
        assert verdicts_on(tmp_path, score(batches, loss=total / units))["test.mean"].outcome == "pass"
    wrong = sum(sums) / units * (1 + 1e-12)
    assert verdicts_on(tmp_path, score(batches, loss=wrong))["test.mean"].outcome == "fail"


def test_equal_ranks_make_a_mean_of_rank_means_right():
    """Two ranks of 10 units each: sums over 20 either way, so it is no mistake here, while batch means are."""
    batches = [batch(2.0, 1), batch(90.0, 9), batch(4.0, 4, rank=1), batch(6.0, 6, rank=1)]
    assert {name for name, *_ in wrong_means(batches)} == {"mean_of_batch_means"}
    assert {name for name, *_ in wrong_means(THREE)} == {"mean_of_batch_means", "mean_of_rank_means"}


def test_weights_whose_sum_depends_on_the_order_make_no_other_formula():
    """All batches on one rank: its mean is the mean, however its weights are added up, and no mistake."""
    weights = [0.1, 0.2, 0.3]
    assert sum(weights) == 0.6000000000000001
    assert math.fsum(weights) == 0.6
    batches = [batch(float(number), 1) | {"weight": weight} for number, weight in enumerate(weights)]
    assert {name for name, *_ in wrong_means(batches)} == {"mean_of_batch_means"}


def test_weights_that_differ_by_rounding_only_are_one_formula():
    """A document counts 1 in each batch; made of the shares of three rows, 0.7 + 0.2 + 0.1, 2^-53 less."""
    shares = 0.7 + 0.2 + 0.1
    assert 0 < abs(shares - 1.0) < 2e-16
    batches = [batch(2.0, 5) | {"weight": 1.0}, batch(90.0, 9) | {"weight": shares}]
    mean = judge_mean("test", score(batches, unit="document", loss=46.0), {})
    assert (mean.expected, mean.outcome) == ("inconclusive", "inconclusive")


def test_rounding_scales_with_the_terms():
    assert rounding(TWO, [10, 10]) == pytest.approx(3 * 2**-52 * (2 + 90) / 10, rel=1e-12)
    assert rounding([batch(-2.0, 1), batch(2.0, 1)], [2, 2]) == 3 * 2**-52 * 2
    with pytest.raises(ValueError, match="zip"):
        rounding(TWO, [10])


@pytest.mark.parametrize(
    ("counted", "ranks", "diagnosis"),
    [(22, 2, ("padded_duplicates",)), (24, 4, ("padded_duplicates",)), (20, 2, ()), (22, 3, ()), (23, 2, ())],
)
def test_another_number_of_rows_fails(tmp_path, counted, ranks, diagnosis):
    """21 rows: the next multiple of 2 is 22, of 4 is 24, of 3 is 21."""
    batches = [batch(1.0, 3, rows=counted - 1), batch(1.0, 4, rank=ranks - 1)]
    rows = verdicts_on(tmp_path, score(batches), rows=21)["test.rows"]
    assert (rows.expected, rows.outcome, rows.diagnosis) == ("pass", "fail", diagnosis)
    assert rows.first_difference == {
        "quantity": "rows",
        "counted": counted,
        "in_batches": counted,
        "in_the_corpus": 21,
    }
    assert (rows.observed["ranks"], rows.observed["error"]) == (ranks, abs(counted - 21))


def test_rows_that_divide_by_the_ranks_are_not_called_padded(tmp_path):
    rows = verdicts_on(tmp_path, score([batch(1.0, 3, rows=20), batch(2.0, 3, rank=1)]), rows=21)["test.rows"]
    assert (rows.outcome, rows.diagnosis) == ("pass", ())


def test_other_units_fail(tmp_path):
    """Padding that counts, say."""
    rows = verdicts_on(tmp_path, score(TWO), units=9)["test.rows"]
    assert (rows.outcome, rows.diagnosis) == ("fail", ())
    assert rows.first_difference == {"quantity": "units", "counted": 10, "in_batches": 10, "in_the_corpus": 9}


def test_totals_that_batches_do_not_add_up_to_fail(tmp_path):
    rows = verdicts_on(tmp_path, score(TWO, rows=3), rows=3)["test.rows"]
    assert rows.first_difference == {"quantity": "rows", "counted": 3, "in_batches": 2, "in_the_corpus": 3}


def test_both_splits_are_judged(tmp_path):
    verdicts = verdicts_on(tmp_path, score(TWO), validation=score(TWO))
    assert list(verdicts) == ["validation.rows", "validation.mean", "test.rows", "test.mean"]
    assert verdicts["validation.rows"].outcome == "fail"  # the corpus holds no validation row


def test_a_split_that_was_not_scored_fails(tmp_path):
    write_json(tmp_path / "evaluation.json", {"checkpoint": "step-0001"})
    counts = {"validation": {"rows": 0, "supervised": 0}, "test": {"rows": 2, "supervised": 10}}
    write_json(tmp_path / "lock.json", {"counts": counts})
    [verdict] = check_evaluation(tmp_path / "evaluation.json", tmp_path / "lock.json")
    assert (verdict.case, verdict.outcome, verdict.diagnosis) == ("test.rows", "fail", ())


@pytest.mark.parametrize("names", [("unit",), ("batches",), ("perplexity",), ("batches", "perplexity")])
def test_scores_of_an_older_version_are_an_error(tmp_path, names):
    test = {name: value for name, value in score(TWO).items() if name not in names}
    message = rf"evaluation\.json lacks {', '.join(names)} of split 'test': run evaluate again"
    with pytest.raises(EvidenceError, match=message):
        verdicts_on(tmp_path, test)


def test_images_have_no_perplexity(tmp_path):
    """A perplexity is a number of equally likely tokens: other units lack it, and no sentence speaks of it."""
    images = {name: value for name, value in score(TWO, unit="image").items() if name != "perplexity"}
    mean = verdicts_on(tmp_path, images)["test.mean"]
    assert (mean.outcome, mean.problem) == ("pass", None)
    assert "perplexity" not in mean.observed
    assert "perplexity" not in mean.criterion
    wrong = verdicts_on(tmp_path, images | {"loss": 6.0})["test.mean"]
    assert (wrong.outcome, wrong.diagnosis) == ("fail", ("mean_of_batch_means",))
    assert wrong.first_difference["loss"] == 6.0


def test_a_mean_of_perplexities_is_refused(tmp_path):
    """Batch means 2 and 10: (e^2 + e^10) / 2 = 11,017, where e^9.2 = 9,897 is right. Equal units do not hide it."""
    wrong = (math.exp(2) + math.exp(10)) / 2
    mean = verdicts_on(tmp_path, score(TWO, perplexity=wrong))["test.mean"]
    assert (mean.expected, mean.outcome, mean.diagnosis) == ("pass", "fail", ())
    assert mean.first_difference == {
        "loss": 9.2,
        "perplexity": wrong,
        "mean_over_all_units": 9.2,
        "accuracy": 0.0,
        "right_over_all_units": 0.0,
    }
    equal = [batch(2.0, 1), batch(10.0, 1)]
    assert verdicts_on(tmp_path, score(equal))["test.mean"].outcome == "inconclusive"
    assert verdicts_on(tmp_path, score(equal, perplexity=wrong))["test.mean"].outcome == "fail"


@pytest.mark.parametrize(("ulps", "outcome"), [(-2, "pass"), (2, "pass"), (-3, "fail"), (3, "fail")])
def test_a_perplexity_is_right_up_to_the_rounding_of_two_libraries(tmp_path, ulps, outcome):
    """A loss of 0 has the perplexity 1. Two libraries' exp may each be off by 2^-52."""
    zero = [batch(-1.0, 1), batch(1.0, 3)]
    assert verdicts_on(tmp_path, score(zero, perplexity=1 + ulps * E))["test.mean"].outcome == outcome


@pytest.mark.parametrize(("ulps", "outcome"), [(-2, "pass"), (2, "pass"), (-3, "fail"), (3, "fail")])
def test_the_rounding_of_a_perplexity_grows_with_it(tmp_path, ulps, outcome):
    """e^9.2 = 9,897 = 1.21 x 2^13: its last place is 2^-39, of which 2^-51 of it are 2 x 1.21."""
    found = math.exp(9.2) + ulps * 2**-39
    assert verdicts_on(tmp_path, score(TWO, perplexity=found))["test.mean"].outcome == outcome


@pytest.mark.parametrize("perplexity", [math.inf, 1.0, math.nan])
def test_a_loss_beyond_all_exponentials_has_no_right_perplexity(perplexity):
    """e^710 is no float64. evaluate refuses such a loss itself."""
    far = score([batch(1.0, 1), batch(709.0, 2)]) | {"batches": [batch(710.0, 1), batch(2130.0, 3)]}
    mean = judge_mean("test", far | {"loss": 710.0, "perplexity": perplexity}, {})
    assert mean.outcome == "fail"
    json.dumps([mean.observed, mean.first_difference], allow_nan=False)


@pytest.mark.parametrize("changes", [{"correct": 6}, {"accuracy": 0.6}, {"correct": 6, "accuracy": 0.6}])
def test_accuracy_is_what_all_batches_got_right(tmp_path, changes):
    """1 and 4 of 1 and 9 units are right: 5/10."""
    batches = [batch(2.0, 1) | {"correct": 1}, batch(90.0, 9) | {"correct": 4}]
    assert verdicts_on(tmp_path, score(batches))["test.mean"].outcome == "pass"
    mean = verdicts_on(tmp_path, score(batches, **changes))["test.mean"]
    assert (mean.outcome, mean.diagnosis) == ("fail", ())
    assert mean.first_difference["right_over_all_units"] == 0.5


def test_a_loss_that_is_no_number_fails():
    mean = judge_mean("test", score([batch(math.nan, 1), batch(90.0, 9)]), {})
    assert (mean.case, mean.outcome) == ("test.mean", "fail")
    json.dumps([mean.observed, mean.first_difference], allow_nan=False)
