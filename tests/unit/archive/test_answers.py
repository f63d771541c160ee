from dataclasses import replace

import pytest

from ddp_tokens.archive.answers import checks_of, of_controls, of_gradient, of_resume, of_scores
from ddp_tokens.controls.table import headline
from tests.unit.archive.made_up import EVALUATION, SCORE, parity, resume, summary, verdict
from tests.unit.controls.synthetic import caught, judged, missed


def told(answer):
    return answer.word, answer.tone, " ".join(answer.sentences)


def gradient(**changed):
    return told(of_gradient(checks_of(summary(**changed)), "token"))


def resumed(**changed):
    return told(of_resume(checks_of(summary(**changed))))


def scored(scores=EVALUATION, **changed):
    return told(of_scores(checks_of(summary(scores, **changed)), scores))


def controls(of):
    return told(of_controls(of, headline(of)))


def changed(verdicts, case, **changes):
    assert case in [each.case for each in verdicts]
    return [replace(each, **changes) if each.case == case else each for each in verdicts]


def test_a_right_gradient_is_told_with_its_numbers():
    """Of the training dtype 2e-9 of 1e-8 on the first window and half of that on the other."""
    word, tone, text = gradient()
    assert (word, tone) == ("Yes", "good")
    assert "2 ranks leave" in text
    assert "1,234 values in each of 2 windows, the first window (10 and 30 tokens on the ranks)" in text
    assert (
        "in the training dtype: 0.2 of its tolerance (2e-09 against 1e-08), in head.weight, the first window." in text
    )
    assert "in float64: 0.2 of its tolerance (2e-15 against 1e-14), in head.weight, the first window." in text
    assert "The nearest wrong formula (stale count) would be 5,000 tolerances away in the training dtype" in text
    assert "refused and named in all 4 cases, with an error of 50,000,000 tolerances or more." in text
    assert "Besides, the denominator is right" in text
    assert "not as expected" not in text.lower()


def test_the_largest_error_is_that_in_most_tolerances():
    """An error that is larger in itself has a larger tolerance here."""
    larger = changed(parity(), "token_mean.native.first", observed={"error": 1e-3, "tolerance": 1.0, "parameter": "w"})
    assert (
        "0.1 of its tolerance (1e-09 against 1e-08), in head.weight, the window whose"
        in gradient(gradient_parity=larger)[2]
    )


def test_a_wrong_gradient_is_a_no_that_names_case_and_mistake():
    observed = {"error": 2e-3, "tolerance": 1e-8, "parameter": "head.bias"}
    wrong = changed(
        parity(), "token_mean.native.first", outcome="fail", diagnosis=("mean_of_means",), observed=observed
    )
    word, tone, text = gradient(gradient_parity=wrong)
    assert (word, tone) == ("No", "bad")
    assert text.startswith(
        "Not as expected: gradient_parity/token_mean.native.first is fail, expected pass (mean_of_means: "
    )
    assert "2e+05 of its tolerance (0.002 against 1e-08), in head.bias" in text


@pytest.mark.parametrize("check", ["loss", "window", "zero_window"])
def test_what_the_gradient_stands_on_must_pass_too(check):
    word, tone, text = gradient(**{check: [verdict("a_case", "pass", "fail")]})
    assert (word, tone) == ("No", "bad")
    assert f"{check}/a_case is fail, expected pass" in text


@pytest.mark.parametrize("check", ["gradient_parity", "loss", "window", "zero_window"])
def test_a_check_without_verdicts_leaves_the_gradient_untold(check):
    word, tone, text = gradient(**{check: []})
    assert (word, tone) == ("Cannot be told", "unsure")
    assert f"The check {check} holds no verdict." in text


def test_a_control_that_passes_leaves_the_gradient_untold():
    """The check did not see the mistake, so that its passes say nothing."""
    unseen = changed(parity(), "mean_of_means.native.first", outcome="pass", diagnosis=())
    word, tone, text = gradient(gradient_parity=unseen)
    assert (word, tone) == ("Cannot be told", "unsure")
    assert "gradient_parity/mean_of_means.native.first is pass, expected fail" in text
    assert "refused and named in 3 of 4 cases" in text


def test_a_control_that_is_refused_as_something_else_is_not_named():
    other = changed(parity(), "mean_of_means.native.first", diagnosis=("stale_count",))
    word, tone, text = gradient(gradient_parity=other)
    assert (word, tone) == ("Cannot be told", "unsure")
    assert "is diagnosed as stale_count, expected mean_of_means" in text
    assert "refused and named in 3 of 4 cases" in text


def test_an_outcome_that_is_inconclusive_and_should_pass_is_untold():
    unsure = changed(parity(), "token_mean.float64.first", outcome="inconclusive")
    word, tone, text = gradient(gradient_parity=unsure)
    assert (word, tone) == ("Cannot be told", "unsure")
    assert "token_mean.float64.first is inconclusive, expected pass" in text


def undecidable(window):
    """As with equal counts: both formulas are the same, and that is expected."""
    changes = {"expected": "inconclusive", "outcome": "inconclusive", "diagnosis": (), "expected_diagnosis": None}
    observed = {"power": 0.0, "nearest_formula": "mean_of_means"}
    return [replace(each, **changes, observed=observed) if window in each.case else each for each in parity()]


def test_a_window_that_cannot_be_decided_is_named_and_the_other_is_not_hidden():
    word, tone, text = gradient(gradient_parity=undecidable("first"))
    assert tone == "good"
    assert word == "Yes on the window whose ranks differ most; cannot be told on the first window"
    assert "On the first window it cannot be told: mean of means would leave the same gradient" in text
    assert "refused and named in 2 of 4 cases" in text


def test_where_no_window_can_be_decided_nothing_is_claimed():
    word, tone, text = gradient(gradient_parity=undecidable("."))
    assert (word, tone) == ("Cannot be told", "unsure")
    assert "refused and named in 0 of 4 cases" in text
    assert "nearest wrong formula" not in text


def test_a_single_rank_and_microbatch_exclude_no_formula():
    alone = [
        replace(each, observed={**each.observed, "power": None, "nearest_formula": None, "units_per_rank": [10]})
        for each in parity()
        if each.case.startswith("token_mean")
    ]
    word, _, text = gradient(gradient_parity=alone)
    assert word == "Yes"
    assert "1 rank leaves" in text
    assert "There is no other formula to exclude: one rank, one microbatch." in text
    assert "The mean of means, the known mistake, was not tried." in text


def test_an_error_that_is_no_number_is_outside_of_any_tolerance():
    nan = {"error": "nan", "tolerance": 1e-8, "parameter": "head.bias"}
    wrong = changed(parity(), "token_mean.native.first", outcome="fail", observed=nan)
    word, _, text = gradient(gradient_parity=wrong)
    assert word == "No"
    assert "Largest error in the training dtype: outside of any tolerance (nan against 1e-08), in head.bias" in text


def test_conditions_of_the_comparison_are_told_once():
    frozen = parity(criterion="each error is small; BatchNorm layers with frozen statistics")
    assert gradient(gradient_parity=frozen)[2].count("this condition: BatchNorm layers with frozen statistics.") == 1


def test_what_a_summary_says_of_its_own_problems_is_not_believed():
    told_well = summary(loss=[verdict("a_case", "pass", "fail")])
    for entry in told_well["verdicts"]:
        entry |= {"problem": None, "as_expected": True}
    assert of_gradient(checks_of(told_well), "token").word == "No"


def test_an_exact_resume_is_told_with_its_numbers():
    word, tone, text = resumed()
    assert (word, tone) == ("Yes", "good")
    assert "Stopped after update 2, resumed, and compared with the uninterrupted run after update 4" in text
    assert "1,234 values of the model and 2,468 values of optimizer state, the largest difference is 0;" in text
    assert "3 of the model's 3 tensors changed, by up to 0.125" in text
    assert "All 2 ranks hold the same bits at the end of each of 3 runs." in text
    assert "All 2 checkpoints are whole" in text


def test_a_difference_is_a_no_that_names_it():
    observed = {"values": 1234, "max_abs_difference": 0.25}
    off = changed(resume(), "parameters", outcome="fail", diagnosis=("optimizer_state_lost",), observed=observed)
    word, tone, text = resumed(resume=off)
    assert (word, tone) == ("No", "bad")
    assert "resume/parameters is fail, expected pass (optimizer_state_lost: the optimizer starts without" in text
    assert "the largest difference is 0.25" in text


@pytest.mark.parametrize("check", ["replicas", "checkpoints"])
def test_replicas_and_checkpoints_are_part_of_the_answer(check):
    word, tone, text = resumed(**{check: [verdict("a_case", "pass", "fail", ranks=2)]})
    assert (word, tone) == ("No", "bad")
    assert f"{check}/a_case is fail, expected pass" in text
    assert {"replicas": "the same bits", "checkpoints": "are whole"}[check] not in text


@pytest.mark.parametrize("check", ["resume", "replicas", "checkpoints"])
def test_a_check_without_verdicts_leaves_the_resume_untold(check):
    word, tone, text = resumed(**{check: []})
    assert (word, tone) == ("Cannot be told", "unsure")
    assert f"The check {check} holds no verdict." in text


@pytest.mark.parametrize("missing", ["parameters", "weights_moved"])
def test_equality_without_movement_says_nothing_nor_the_other_way_round(missing):
    word, tone, text = resumed(resume=[each for each in resume() if each.case != missing])
    assert (word, tone) == ("Cannot be told", "unsure")
    assert "No verdict says that the weights are equal and have moved." in text


def test_weights_that_stood_still_are_a_no():
    still = changed(
        resume(), "weights_moved", outcome="fail", observed={"parameters": 3, "unmoved": 3, "max_abs_difference": 0.0}
    )
    word, _, text = resumed(resume=still)
    assert word == "No"
    assert "0 of the model's 3 tensors changed, by up to 0:" in text


def test_a_resume_that_was_let_differ_claims_no_equal_bits():
    inexact = changed(
        resume(), "identity", expected="inconclusive", outcome="inconclusive", criterion="inexact: threads differ"
    )
    word, tone, text = resumed(resume=inexact)
    assert (word, tone) == ("Cannot be told", "unsure")
    assert "Inconclusive: identity, inexact: threads differ." in text


def test_an_optimizer_without_state_is_named_and_takes_nothing_away():
    nothing = {"values": 0, "max_abs_difference": 0.0, "tensors": 0}
    empty = changed(
        resume(),
        "optimizer_state",
        **{"expected": "inconclusive", "outcome": "inconclusive", "observed": nothing, "criterion": "no value there"},
    )
    word, _, text = resumed(resume=empty)
    assert word == "Yes"
    assert "1,234 values of the model, the largest difference is 0" in text
    assert "Inconclusive: optimizer_state, no value there." in text


def test_scores_are_told_with_units():
    word, tone, text = scored()
    assert (word, tone) == ("54.05 % of the test tokens right", "good")
    assert "Test: loss 1.23586 nats per token, perplexity 3.44, accuracy 54.05 % of 1,860 tokens in 8 rows." in text
    assert "Validation: loss 1.23586 nats per token, perplexity 3.44, accuracy 50.00 % of 900 tokens in 4 rows." in text


def test_scores_of_images_have_no_perplexity():
    images = {name: value for name, value in SCORE.items() if name != "perplexity"} | {"unit": "image"}
    word, _, text = scored({"test": images})
    assert word == "54.05 % of the test images right"
    assert "Test: loss 1.23586 nats per image, accuracy" in text


@pytest.mark.parametrize(
    ("verdicts", "word", "said"),
    [
        ([], "Cannot be told", "The check evaluation holds no verdict."),
        ([verdict("test.mean", "pass", "fail")], "No score to rely on", "test.mean is fail, expected pass"),
        ([verdict("test.mean", "pass", "inconclusive")], "Cannot be told", "test.mean is inconclusive, expected pass"),
    ],
)
def test_scores_that_cannot_be_relied_on_are_not_the_answer(verdicts, word, said):
    found, tone, text = scored(evaluation=verdicts)
    assert (found, tone == "good") == (word, False)
    assert said in text


def test_nothing_scored_is_no_answer():
    assert scored({})[:2] == ("Cannot be told", "unsure")


def test_a_mean_that_cannot_be_told_from_another_is_named():
    _, _, text = scored(evaluation=[verdict("test.mean", "inconclusive")])
    assert "Whether the score of the test split is a mean over all units or of batch means cannot be told" in text


def test_controls_that_are_all_caught_are_a_yes():
    word, tone, text = controls(caught())
    assert (word, tone) == ("Yes", "good")
    assert "3 of 3 controls are refused, each by its check and as what it is; 3 of 3 right variants pass;" in text
    assert "Controls by kind: normalization 1, resume 2." in text


def test_controls_that_are_missed_are_a_no_that_names_each():
    word, tone, text = controls(missed())
    assert (word, tone) == ("No", "bad")
    assert "Not as expected: gradient_parity/mean_of_means is pass, expected fail." in text
    assert "resume/momentum_lost is diagnosed as position_reset, expected optimizer_state_lost" in text
    assert "gradient_parity/w2_a2_b4 is fail, expected pass" in text


def test_a_right_variant_that_is_refused_leaves_it_untold():
    """A check that refuses everything catches every mistake."""
    refused = judged("w2_a2_b4", "right", "gradient_parity", "pass", "fail", error=2e-3, tolerance=1e-6)
    assert controls([*caught(), refused])[:2] == ("Cannot be told", "unsure")


def test_without_controls_nothing_can_be_told():
    assert controls([]) == ("Cannot be told", "unsure", "There is no control.")
