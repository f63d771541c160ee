"""One window from numbers: gradients without a model, of three ranks with two microbatches each."""

import json
import math
from dataclasses import asdict, replace

import numpy
import pytest

from ddp_tokens.audit.judging import Compared, Seen, Undone, is_round, judge, not_comparable, tolerances_of
from ddp_tokens.audit.meanings import MEANINGS
from ddp_tokens.check_settings import Tolerances
from ddp_tokens.checks.gradient_norms import calibrated_tolerances, errors, norms
from ddp_tokens.errors import AuditError
from ddp_tokens.files import to_json
from ddp_tokens.window_facts import WindowFacts
from tests.unit.checks.synthetic import FACTS, UNITS, left_by, parts_for, rounded
from tests.unit.checks.test_gradient_formulas import MISTAKES

EPSILON = float(numpy.finfo(numpy.float32).eps)
TOLERANCES = Tolerances()
CRITERION = (
    "each parameter's error against the objective's gradient, computed in float64 in one process, is at most 4 times "
    "that of one process in the dtype of the run"
)


def compared(weight=None, facts=FACTS, change=None, parts=None, **changes):
    """Of a float32 run whose microbatches weigh `weight`; then `change(gradients)`."""
    parts = parts or parts_for(facts.units)
    right = left_by(lambda r, m: 1 / facts.total, parts, facts.units)
    observed = right if weight is None else left_by(weight, parts, facts.units)
    observed = rounded(observed if change is None else change(observed))
    found = Compared(
        reference=norms(right),
        errors=errors(observed, right),
        rounding=errors(rounded(right), right),
        epsilon=EPSILON,
        observed={name: array.astype(numpy.float64) for name, array in observed.items()},
        parts=parts,
        left_over={},
        norm=math.sqrt(sum(norm**2 for norm in norms(observed).values())),
    )
    return replace(found, **changes)


def judged(of, facts=FACTS, seen=None, tolerances=TOLERANCES):
    verdict = judge("window 1", facts, of, seen or Seen(), tolerances)
    to_json(asdict(verdict))  # JSON, without NaN
    return verdict


def scaled(factor):
    return lambda gradients: {name: factor * array for name, array in gradients.items()}


def test_tolerances_are_those_of_the_gradient_check():
    """From norms alone, what checks.gradient_norms makes of arrays: also where the whole is near zero, and where one
    process is right by luck.
    """
    rng = numpy.random.default_rng(3)
    reference = {"a": rng.normal(size=40), "near zero": 1e-9 * rng.normal(size=7), "zero": numpy.zeros(3)}
    single = rounded(reference) | {"a": rounded(reference)["a"] * numpy.float32(1 + 1e-5)}
    of = Compared(norms(reference), {}, errors(single, reference), EPSILON, {}, {}, {})
    expected = calibrated_tolerances(reference, single, 2.5)
    assert tolerances_of(of, Tolerances(native=2.5)) == pytest.approx(expected, rel=1e-12)
    assert expected["a"] > 5 * expected["near zero"] > 0


def test_a_parameter_that_one_process_did_not_compute_has_the_rounding_of_an_epsilon():
    """It is a third of the whole: 4 * epsilon * norm."""
    of = Compared({"a": 3.0, "b": 4.0}, {}, {"b": 1.0}, EPSILON, {}, {}, {})
    assert tolerances_of(of, TOLERANCES) == {"a": 4 * EPSILON * 3.0, "b": 4.0}


def test_the_right_gradient_passes():
    verdict = judged(compared())
    assert (verdict.outcome, verdict.diagnosis, verdict.first_difference) == ("pass", (), None)
    assert verdict.criterion == CRITERION
    assert verdict.observed["error"] <= verdict.observed["tolerance"]
    assert verdict.observed["power"] > 1e4
    assert verdict.observed["nearest_formula"] in MISTAKES
    assert verdict.observed["units_per_rank"] == [8, 17, 11]
    assert verdict.evidence == {}


def test_the_limit_is_the_tolerance():
    of = compared()
    allowed = tolerances_of(of, TOLERANCES)["head.bias"]
    for error, outcome in ((allowed, "pass"), (allowed * 1.001, "fail")):
        verdict = judged(replace(of, errors=of.errors | {"head.bias": error}))
        assert verdict.outcome == outcome
        assert verdict.observed["parameter"] == "head.bias"
        assert (verdict.observed["error"], verdict.observed["tolerance"]) == (error, allowed)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_fails_by_its_name(name):
    verdict = judged(compared(MISTAKES[name]))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", (name,))
    assert verdict.criterion == CRITERION
    assert verdict.observed["residual"] < 1e-6
    assert verdict.first_difference["parameter"] == verdict.observed["parameter"]
    assert verdict.first_difference["error"] > 1
    assert verdict.first_difference["tolerance"] == 1.0


def test_a_mistake_in_one_parameter_is_found_and_not_explained():
    def change(gradients):
        return gradients | {"head.bias": gradients["head.bias"] * 1.01}

    verdict = judged(compared(change=change))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ())
    assert verdict.observed["parameter"] == "head.bias"
    assert verdict.first_difference == {
        "parameter": "head.bias",
        "error": pytest.approx(verdict.observed["error"] / verdict.observed["tolerance"]),
        "tolerance": 1.0,
    }


def test_a_scaled_gradient_fails_as_such():
    verdict = judged(compared(change=scaled(1.7)))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ("scaled",))
    assert verdict.observed["factor"] == pytest.approx(1.7)


@pytest.mark.parametrize("weight", [lambda r, m: 1 / UNITS[r][m] / 3, lambda r, m: 2 / [8, 17, 11][r] / 3])
def test_means_that_are_never_divided_by_the_accumulation(weight):
    verdict = judged(compared(weight))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ("accumulation_forgotten",))
    assert verdict.observed["residual"] < 1e-6


@pytest.mark.parametrize("weight", [lambda r, m: 1 / (3, 5, 2)[m], lambda r, m: 3 / 10])
def test_means_of_one_rank_that_are_never_divided(weight):
    """A count of each microbatch over all ranks would leave the same, and needs another rank."""
    facts = WindowFacts(((3, 5, 2),), ((3, 5, 2),), ((3, 5, 2),), 3)
    verdict = judged(compared(weight, facts), facts)
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ("accumulation_forgotten",))


def test_a_right_window_with_other_means_does_not_need_more_power():
    """It decides neither what is inconclusive nor which formula is the nearest."""
    assert judged(compared()).observed["nearest_formula"] != "accumulation_forgotten"


def test_sums_that_are_never_divided():
    """DDP averages over 3 ranks, so that the gradient is N / 3 times the right one, of N = 36."""
    verdict = judged(compared(change=scaled(12)))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ("not_divided",))
    assert judged(compared(change=scaled(12.01))).diagnosis == ("scaled",)


@pytest.mark.parametrize("norm", [1.0, 0.5, 0.25, 0.01, 12.0])
def test_a_shorter_gradient_of_a_round_norm_may_be_clipped(norm):
    def change(gradients):
        length = math.sqrt(sum(value**2 for value in norms(gradients).values()))
        return scaled(norm / length)(gradients)

    length = compared().norm
    verdict = judged(compared(change=change))
    if norm < length:
        assert (verdict.outcome, verdict.diagnosis) == ("inconclusive", ("clipped",))
        assert verdict.criterion == (
            f"{CRITERION}; the gradient has the right direction and {norm / length:.3g} of its length, and its norm is "
            "a round number, as clipping leaves it; the clipping itself was not seen, so the length before it is not "
            "known"
        )
    else:
        assert (verdict.outcome, verdict.diagnosis) == ("fail", ("scaled",))


def test_a_shorter_gradient_of_another_norm_is_scaled():
    verdict = judged(compared(change=scaled(0.345678 / compared().norm)))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ("scaled",))


@pytest.mark.parametrize("norm", [1.0, 0.1, 2.5, 0.00012, 1 - 1e-6, 130.0])
def test_round_norms(norm):
    assert is_round(norm)


@pytest.mark.parametrize("norm", [0.0, 1.234, 0.999, 131.0, -1.0, math.nan])
def test_norms_that_are_not_round(norm):
    assert not is_round(norm)


@pytest.mark.parametrize("scale", [64.0, 65536.0])
def test_a_loss_scale_is_not_decided(scale):
    verdict = judged(compared(change=scaled(scale)))
    assert (verdict.outcome, verdict.diagnosis) == ("inconclusive", ("loss_scale_kept",))
    assert verdict.criterion == (
        f"{CRITERION}; the gradient is scaled by {scale:g}, a loss scale: that is right if the optimizer undoes it, "
        "which it does inside its step or not at all"
    )


@pytest.mark.parametrize("kept", [1.0, 0.3, 5.0])
def test_gradients_of_the_window_before(kept):
    left_over = {name: kept * numpy.ones(shape) for name, shape in (("head.weight", (4, 3)), ("head.bias", (4,)))}

    def change(gradients):
        return {name: array + left_over[name] for name, array in gradients.items()}

    verdict = judged(compared(change=change, left_over=left_over))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ("gradients_not_cleared",))
    assert verdict.observed["residual"] < 1e-6


def test_the_residual_of_gradients_of_the_window_before_is_a_fraction():
    """As of every other mistake: rounding of float32, however large the gradient is."""
    parts = {key: {name: 1e6 * array for name, array in part.items()} for key, part in parts_for(FACTS.units).items()}
    left_over = {"head.weight": numpy.full((4, 3), 1e6), "head.bias": numpy.full(4, 1e6)}

    def change(gradients):
        return {name: array + left_over[name] for name, array in gradients.items()}

    verdict = judged(compared(parts=parts, change=change, left_over=left_over))
    assert verdict.diagnosis == ("gradients_not_cleared",)
    assert 0 < verdict.observed["residual"] < 1e-6


def test_the_same_rows_twice_and_not_cleared_is_no_other_mistake():
    """Twice the gradient would be world_size_twice with two ranks; but that it was there has been seen."""
    facts = WindowFacts(((3,), (9,)), ((3,), (9,)), ((3,), (9,)), 1)
    right = left_by(lambda r, m: 1 / 12, parts_for(facts.units), facts.units)
    of = compared(facts=facts, change=scaled(2))
    assert judged(of, facts).diagnosis == ("world_size_twice",)
    assert judged(replace(of, left_over=right), facts).diagnosis == ("gradients_not_cleared",)


def test_an_objective_without_a_gradient_and_gradients_of_the_window_before():
    parts = {key: scaled(0.0)(part) for key, part in parts_for(FACTS.units).items()}
    left_over = {"head.weight": numpy.ones((4, 3)), "head.bias": numpy.ones(4)}
    verdict = judged(compared(parts=parts, change=lambda gradients: left_over, left_over=left_over))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ("gradients_not_cleared",))
    assert judged(compared(parts=parts)).observed["error"] == 0.0


def test_what_was_there_and_was_cleared_explains_nothing():
    """Gradients are there at a window's first forward, and zeroed after it, as in many loops."""
    left_over = left_by(lambda r, m: 1 / 5, parts_for(FACTS.units), FACTS.units)
    assert judged(compared(left_over=left_over)).outcome == "pass"
    assert judged(compared(MISTAKES["mean_of_means"], left_over=left_over)).diagnosis == ("mean_of_means",)


def test_a_gradient_that_is_missing_is_named():
    """The others are right; without it the optimizer leaves the parameter as it is."""

    def change(gradients):
        return gradients | {"head.bias": 0 * gradients["head.bias"]}

    verdict = judged(compared(change=change, missing=["head.bias"]))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ("gradient_missing",))
    assert verdict.first_difference == {"parameter": "head.bias", "problem": "gradient_missing"}
    assert verdict.observed["parameter"] == "head.bias"
    assert verdict.observed["error"] > verdict.observed["tolerance"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_a_number(value):
    """No count is 0 here, so that no formula divides by zero."""

    def change(gradients):
        return gradients | {"head.bias": gradients["head.bias"] * value}

    of = compared(change=change)
    verdict = judged(of)
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ())
    assert verdict.observed["error"] == "inf"
    assert verdict.observed["parameter"] == "head.bias"
    assert judged(replace(of, errors=of.errors | {"head.bias": math.nan})).observed["error"] == "nan"


def test_a_mean_over_no_units_is_not_a_number():
    facts = WindowFacts(((3, 5), (0, 0)), ((3, 5), (1, 1)), ((3, 5), (1, 1)), 2)
    of = compared(facts=facts, change=lambda gradients: scaled(math.nan)(gradients))
    verdict = judged(of, facts)
    assert verdict.outcome == "fail"
    assert verdict.diagnosis == ("mean_of_means", "mean_of_microbatch_means")


def test_equal_counts_cannot_tell():
    facts = WindowFacts(((4,), (4,)), ((4,), (4,)), ((4,), (4,)), 1)
    verdict = judged(compared(facts=facts), facts)
    assert (verdict.outcome, verdict.diagnosis, verdict.first_difference) == ("inconclusive", (), None)
    assert verdict.criterion == (
        f"{CRITERION}; counts make mean_of_means the same as the mean over all units in this window"
    )
    assert verdict.observed["power"] == 0.0
    assert verdict.observed["nearest_formula"] == "mean_of_means"


def test_equal_counts_do_not_excuse_a_wrong_gradient():
    facts = WindowFacts(((4,), (4,)), ((4,), (4,)), ((4,), (4,)), 1)
    verdict = judged(compared(facts=facts, weight=lambda r, m: 1 / 8 / 2), facts)
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ("world_size_forgotten",))


def test_a_formula_that_is_too_near_cannot_be_told():
    """Counts differ, and each unit of a rank has the same gradient, so that means of means are means of all."""
    facts = WindowFacts(((4,), (6,)), ((4,), (6,)), ((4,), (6,)), 1)
    parts = {(0, 0): {"a": 4 * numpy.ones(3)}, (1, 0): {"a": 6 * numpy.ones(3)}}
    verdict = judged(compared(facts=facts, parts=parts), facts)
    assert verdict.outcome == "inconclusive"
    assert verdict.criterion == f"{CRITERION}; mean_of_means would be fewer than 3 tolerances away in this window"
    assert verdict.observed["power"] < 3


def test_how_near_is_too_near():
    of = compared()
    power = judged(of).observed["power"]
    below, above = Tolerances(power=power * 0.999), Tolerances(power=power * 1.001)
    assert judged(of, tolerances=below).outcome == "pass"
    assert judged(of, tolerances=above).outcome == "inconclusive"


def test_one_microbatch_of_one_rank_has_nothing_to_be_mistaken_for():
    facts = WindowFacts(((4,),), ((4,),), ((4,),), 1)
    verdict = judged(compared(facts=facts), facts)
    assert verdict.outcome == "inconclusive"
    assert "with one rank and one microbatch there is nothing that could be weighed wrongly" in verdict.criterion
    assert (verdict.observed["power"], verdict.observed["nearest_formula"]) == (None, None)


def test_a_doubt_comes_before_everything():
    doubted = Seen(doubts=("x is y", "z is w"), causes={"gradients_cleared_inside": "seen"})
    for of in (compared(), compared(MISTAKES["mean_of_means"])):
        verdict = judged(of, seen=doubted)
        assert verdict.outcome == "inconclusive"
        assert verdict.criterion == f"{CRITERION}; x is y; z is w"


def test_causes_explain_a_difference_and_do_not_make_one():
    """As where the first microbatch's gradient is zero, or where a loop adds up in buffers of its own."""
    names = ("gradients_cleared_inside", "weights_updated_inside", "clipped_inside_window")
    seen = Seen(causes=dict.fromkeys(names, "so"))
    verdict = judged(compared(), seen=seen)
    assert (verdict.outcome, verdict.diagnosis, verdict.first_difference) == ("pass", (), None)
    assert verdict.criterion == CRITERION
    assert judged(compared(change=scaled(1.01)), seen=seen).outcome == "fail"


def test_causes_do_not_decide_where_counts_cannot_tell():
    facts = WindowFacts(((4,), (4,)), ((4,), (4,)), ((4,), (4,)), 1)
    verdict = judged(compared(facts=facts), facts, seen=Seen(causes={"gradients_cleared_inside": "so"}))
    assert (verdict.outcome, verdict.diagnosis) == ("inconclusive", ())


@pytest.mark.parametrize("name", ["weights_differ_between_ranks", "gradients_differ_between_ranks"])
def test_ranks_that_differ_are_wrong_though_the_gradient_is_right(name):
    seen = Seen(causes={"gradients_cleared_inside": "on rank 1 so", name: "on rank 0 so"})
    verdict = judged(compared(), seen=seen)
    assert (verdict.outcome, verdict.diagnosis) == ("fail", (name,))
    assert verdict.criterion == f"{CRITERION}; on rank 0 so"
    assert verdict.first_difference == {"parameter": None, "problem": "on rank 0 so", "cause": name}


def lengths_at_clipping(times, max_norm=0.1, **changes):
    """The gradient of both parameters was `times` as long as the objective's when it was clipped."""
    of = compared(**changes)
    length = math.hypot(*of.reference.values())
    return replace(of, undone=[Undone(list(of.reference), max_norm, times * length)]), length


@pytest.mark.parametrize("times", [65536.0, 2.0, 1.02, 0.5, 12.0])
def test_clipping_while_a_scale_is_in_the_gradient(times):
    """The numbers are right once the clipping is undone; what the optimizer applies is `times` too short."""
    verdict = judged(lengths_at_clipping(times)[0])
    sentence = f"the gradient had {times:.6g} times the objective's length when it was clipped to 0.1"
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ("clipped_while_scaled",))
    assert verdict.criterion == f"{CRITERION}; {sentence}"
    assert verdict.first_difference == {"parameter": None, "problem": sentence, "cause": "clipped_while_scaled"}


@pytest.mark.parametrize("times", [1.0, 1.005, 0.995])
def test_clipping_of_the_objectives_length_is_undone(times):
    assert judged(lengths_at_clipping(times)[0]).outcome == "pass"


def test_a_limit_that_is_scaled_with_the_gradient_is_no_mistake():
    """clip_grad_norm_(parameters, 0.1 * scaler.get_scale()) before unscale_ is right."""
    assert judged(lengths_at_clipping(65536.0, 0.1 * 65536)[0]).outcome == "pass"
    assert judged(lengths_at_clipping(65536.0, 0.1)[0]).outcome == "fail"
    assert judged(lengths_at_clipping(65536.0, 0.1 * 65536 * 1.2345)[0]).outcome == "fail"


def test_lengths_at_clipping_are_as_exact_as_the_gradient():
    """Of a run in half precision, the gradient itself may be off by more."""
    of, _ = lengths_at_clipping(1.05)
    half = replace(of, rounding={name: 0.02 * norm for name, norm in of.reference.items()})
    assert (judged(of).outcome, judged(half).outcome) == ("fail", "inconclusive")
    assert "clipped" not in judged(half).criterion


def test_a_second_clipping_finds_what_the_first_has_left():
    of, length = lengths_at_clipping(1.0)
    once = Undone(list(of.reference), 0.05, 0.25 * length, dict.fromkeys(of.reference, 0.25))
    assert judged(replace(of, undone=[*of.undone, once])).outcome == "pass"
    assert judged(replace(of, undone=[*of.undone, replace(once, before={})])).outcome == "fail"


def test_clipping_of_one_parameter_is_compared_with_its_own_length():
    of = compared()
    own = of.reference["head.bias"]
    assert judged(replace(of, undone=[Undone(["head.bias"], 0.1, own)])).outcome == "pass"
    assert judged(replace(of, undone=[Undone(["head.bias"], 0.1, 8 * own)])).diagnosis == ("clipped_while_scaled",)


@pytest.mark.parametrize("length", [math.nan, math.inf])
def test_lengths_that_are_no_number_tell_nothing(length):
    of = compared()
    assert judged(replace(of, undone=[Undone(["head.bias"], 0.1, length)])).outcome == "pass"


def test_a_gradient_that_differs_is_named_by_its_formula():
    of, _ = lengths_at_clipping(65536.0, weight=MISTAKES["mean_of_means"])
    assert judged(of).diagnosis == ("mean_of_means",)


def test_causes_stand_before_the_formula():
    seen = Seen(causes={"gradients_cleared_inside": "so"})
    verdict = judged(compared(MISTAKES["last_microbatch_only"]), seen=seen)
    assert verdict.diagnosis == ("gradients_cleared_inside", "last_microbatch_only")
    assert verdict.first_difference["error"] > 1


def test_a_loss_sum_that_is_a_mean_is_noticed_by_what_it_makes_of_the_gradient():
    """The right gradient, while each microbatch's loss sum was taken to be its mean."""
    sums = parts_for(FACTS.units)
    means = {
        (rank, index): {name: array / FACTS.units[rank][index] for name, array in part.items()}
        for (rank, index), part in sums.items()
    }
    right = left_by(lambda r, m: 1 / FACTS.total, sums)
    of = compared(parts=means)
    of = replace(of, observed=right, errors=errors(right, left_by(lambda r, m: 1 / FACTS.total, means)))
    with pytest.raises(AuditError) as refused:
        judged(of, seen=Seen(is_surely_sum=False))
    assert str(refused.value) == (
        "loss_sum seems to return a mean: if every loss sum of this window is taken as one, the gradient is the right "
        "one, and otherwise no known formula's: let it return the sum of the losses and their number"
    )
    assert judged(of).outcome == "fail"
    wrong = left_by(MISTAKES["mean_of_means"], sums)
    with pytest.raises(AuditError, match=r"taken as one, the gradient is mean_of_means, and otherwise"):
        judged(replace(of, observed=wrong), seen=Seen(is_surely_sum=False))


def test_a_sum_that_was_not_seen_as_such_can_pass_and_fail():
    unsure = Seen(is_surely_sum=False)
    assert judged(compared(), seen=unsure).outcome == "pass"
    assert judged(compared(MISTAKES["mean_of_means"]), seen=unsure).diagnosis == ("mean_of_means",)
    assert judged(compared(change=scaled(1.7)), seen=unsure).diagnosis == ("scaled",)


def test_a_window_that_was_not_compared():
    verdict = not_comparable("window 2", [3, 4], ["x is y", "z; w"])
    assert (verdict.case, verdict.outcome, verdict.expected) == ("window 2", "inconclusive", "pass")
    assert verdict.criterion.endswith("; x is y; z; w")
    assert verdict.observed == {
        "error": None,
        "tolerance": None,
        "parameter": None,
        "power": None,
        "nearest_formula": None,
        "units_per_rank": [3, 4],
    }
    assert (verdict.diagnosis, verdict.first_difference) == ((), None)
    json.dumps(asdict(verdict))


def test_every_name_that_can_be_given_has_a_meaning():
    given = {
        *MISTAKES,
        "short_window_as_full",
        "clipped",
        "clipped_while_scaled",
        "accumulation_forgotten",
        "not_divided",
        "scaled",
        "loss_scale_kept",
    }
    given |= {"gradients_not_cleared", "gradient_missing", "clipped_inside_window", "weights_differ_between_ranks"}
    given |= {"gradients_differ_between_ranks", "weights_updated_inside", "gradients_cleared_inside"}
    assert given <= set(MEANINGS)
