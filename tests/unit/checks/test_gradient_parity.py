import json
import math
from dataclasses import replace

import numpy
import pytest
from safetensors.numpy import save_file

from ddp_tokens.checks.gradient_conditions import Conditions
from ddp_tokens.checks.gradient_norms import is_finite
from ddp_tokens.checks.gradient_parity import (
    Counted,
    Evidence,
    check_gradient_parity,
    count_windows,
    expected,
    judge,
    named_together,
)
from ddp_tokens.checks.gradient_references import REFERENCES, of_window, parts_of
from ddp_tokens.config import Tolerances
from ddp_tokens.errors import PlanError
from ddp_tokens.files import sha256
from ddp_tokens.formulas import KNOWN_WRONG, excluded_by
from ddp_tokens.layout import DTYPES, FLOAT64, NATIVE, Layout
from ddp_tokens.normalization import FORMULAS, MEAN_OF_MEANS, TOKEN_MEAN
from ddp_tokens.prepare import prepare
from ddp_tokens.window_facts import WindowFacts
from tests.helpers import tiny_experiment
from tests.unit.checks.synthetic import FACTS, UNITS, evidence, left_by, parts_for, rounded, with_observed

BY_NAME = {formula.name: formula for formula in KNOWN_WRONG}
EQUAL = replace(FACTS, units=((3, 5), (2, 6), (6, 2)))
ALONE = WindowFacts(units=((3,),), labels=((4,),), positions=((6,),), accumulation=1)
ONE_RANK = WindowFacts(units=((3, 5),), labels=((4, 5),), positions=((6, 8),), accumulation=2)


def mean_of_means(facts):
    return lambda r, m: 1 / facts.units_per_rank[r] / facts.world_size


def verdict_on(of, formula=TOKEN_MEAN, dtype=FLOAT64, tolerances=None):
    return judge("case", tolerances or Tolerances(), dtype, of, expected(formula, of.facts, is_finite(of.observed)), {})


def scaled(of, factor):
    return replace(of, observed={name: array * factor for name, array in of.observed.items()})


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_right_gradient_passes_and_says_what_it_excludes(dtype):
    verdict = verdict_on(evidence(dtype=numpy.float32 if dtype == NATIVE else numpy.float64), dtype=dtype)
    assert (verdict.outcome, verdict.expected, verdict.as_expected) == ("pass", "pass", True)
    assert (verdict.first_difference, verdict.diagnosis) == (None, ())
    assert verdict.observed["power"] > 1e4
    assert verdict.observed["nearest_formula"] in {formula.name for formula in excluded_by(FACTS)}
    assert verdict.observed["error"] <= verdict.observed["tolerance"]
    assert verdict.observed["units_per_rank"] == [8, 17, 11]
    assert "every excluded formula would be 3 or more tolerances away" in verdict.criterion


def test_the_criterion_tells_its_numbers():
    assert verdict_on(evidence()).criterion.startswith(
        "each parameter's error against the reference in float64 is at most 1e-12 of its norm, and"
    )
    assert verdict_on(evidence(dtype=numpy.float32), dtype=NATIVE).criterion.startswith(
        "each parameter's error against the reference in float64 is at most 4 times that of one process in the same "
        "dtype, and"
    )


@pytest.mark.parametrize(("relative", "outcome"), [(0.9e-12, "pass"), (1.1e-12, "fail")])
def test_in_float64_an_error_of_1e_12_of_the_norm_is_the_limit(relative, outcome):
    assert verdict_on(scaled(evidence(), 1 + relative)).outcome == outcome


def test_float64_and_native_have_criteria_of_their_own():
    """1e-8 is a sixth of a float32's unit roundoff, and ten thousand times what float64 allows."""
    off = scaled(evidence(), 1 + 1e-8)
    assert verdict_on(off, dtype=FLOAT64).outcome == "fail"
    single = replace(off, single=rounded(off.single))
    assert verdict_on(single, dtype=NATIVE).outcome == "pass"


@pytest.mark.parametrize(("times", "outcome"), [(3.9, "pass"), (4.1, "fail")])
def test_in_the_training_dtype_four_times_the_error_of_one_process_is_the_limit(times, outcome):
    """One process is off by 1e-5 of each parameter, far above its epsilon."""
    of = evidence()
    single = {name: (array * (1 + 1e-5)).astype(numpy.float32) for name, array in of.reference.items()}
    rounding = {name: single[name] - of.reference[name] for name in single}
    observed = {name: of.reference[name] + times * rounding[name] for name in single}
    assert verdict_on(replace(of, single=single, observed=observed), dtype=NATIVE).outcome == outcome


def test_the_published_criterion_is_reported_and_decides_nothing():
    """An error of 1e-7 of a float64 gradient is far within 1e-6 + 1e-4 |ref|."""
    verdict = verdict_on(scaled(evidence(), 1 + 1e-7))
    assert verdict.outcome == "fail"
    assert verdict.observed["outside_tolerance"] == 0
    assert verdict.observed["values"] == 16


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_counts_end_inconclusive_never_pass(dtype):
    """8 units on each rank: the right gradient is also that of a mean of means."""
    verdict = verdict_on(evidence(facts=EQUAL, dtype=numpy.float32 if dtype == NATIVE else numpy.float64), dtype=dtype)
    assert (verdict.outcome, verdict.expected) == ("inconclusive", "inconclusive")
    assert verdict.observed["nearest_formula"] == "mean_of_means"
    assert verdict.observed["power"] < 3
    assert "on this window mean_of_means would be fewer than 3 tolerances away" in verdict.criterion


def test_equal_counts_leave_the_control_undecided_too():
    verdict = verdict_on(evidence(mean_of_means(EQUAL), EQUAL), MEAN_OF_MEANS)
    assert (verdict.outcome, verdict.expected) == ("inconclusive", "inconclusive")


def test_an_imbalance_below_the_rounding_is_inconclusive_and_not_expected():
    """One unit of a thousand against an error of one process of 1e-2, as in bfloat16."""
    units = ((500, 500), (500, 501))
    facts = WindowFacts(units=units, labels=units, positions=units, accumulation=2)
    of = evidence(facts=facts)
    single = {name: (array * 1.01).astype(numpy.float32) for name, array in of.reference.items()}
    verdict = verdict_on(replace(of, single=single), dtype=NATIVE)
    assert (verdict.outcome, verdict.expected) == ("inconclusive", "pass")
    assert verdict_on(of).outcome == "pass", "float64 sees the one unit"


def test_the_least_power_is_a_setting():
    of = evidence(dtype=numpy.float32)
    power = verdict_on(of, dtype=NATIVE).observed["power"]
    assert verdict_on(of, dtype=NATIVE, tolerances=Tolerances(power=power * 1.01)).outcome == "inconclusive"
    assert verdict_on(of, dtype=NATIVE, tolerances=Tolerances(power=power * 0.99)).outcome == "pass"


# Loss sums over 1 and 3 units with the gradients -8 and 16 make 8/4 = 2, of which a fraction of 0.25 is 0.5. Off by 1
# and 2, a forgotten world size and one taken twice are 2 and 4 tolerances away; the others are farther.
TWO_RANKS = WindowFacts(units=((1,), (3,)), labels=((1,), (3,)), positions=((1,), (3,)), accumulation=1)


def verdict_by_hand(observed, power):
    right = {"a": numpy.array([2.0])}
    parts = {(0, 0): {"a": numpy.array([-8.0])}, (1, 0): {"a": numpy.array([16.0])}}
    of = Evidence({"a": numpy.array([observed])}, right, right, parts, TWO_RANKS)
    return verdict_on(of, tolerances=Tolerances(float64=0.25, power=power))


@pytest.mark.parametrize(("observed", "outcome"), [(2.5, "pass"), (1.5, "pass"), (2.5 + 2**-51, "fail")], ids=str)
def test_an_error_of_one_tolerance_is_accepted(observed, outcome):
    assert verdict_by_hand(observed, power=1.0).outcome == outcome


@pytest.mark.parametrize(
    ("power", "near"),
    [
        (2.0, None),
        (2.1, "world_size_forgotten"),
        (4.0, "world_size_forgotten"),
        (4.1, "world_size_forgotten, world_size_twice"),
    ],
)
def test_formulas_that_are_nearer_than_the_least_power_are_named(power, near):
    verdict = verdict_by_hand(2.0, power)
    assert (verdict.observed["power"], verdict.observed["nearest_formula"]) == (2.0, "world_size_forgotten")
    if near is None:
        assert verdict.outcome == "pass"
    else:
        assert verdict.outcome == "inconclusive"
        assert verdict.criterion.endswith(f"but on this window {near} would be fewer than {power:g} tolerances away")


def test_a_failure_is_no_matter_of_power():
    assert verdict_on(scaled(evidence(facts=EQUAL), 2.0)).outcome == "fail"


def test_one_rank_and_one_microbatch_judge_the_algebra_only():
    verdict = verdict_on(evidence(facts=ALONE))
    assert (verdict.outcome, verdict.as_expected) == ("pass", True)
    assert (verdict.observed["power"], verdict.observed["nearest_formula"]) == (None, None)
    assert "only the algebra is judged" in verdict.criterion


def test_one_rank_excludes_the_microbatch_formulas():
    verdict = verdict_on(evidence(facts=ONE_RANK))
    assert verdict.outcome == "pass"
    assert verdict.observed["nearest_formula"] in {formula.name for formula in excluded_by(ONE_RANK)}
    assert verdict_on(evidence(facts=ONE_RANK), MEAN_OF_MEANS).outcome == "inconclusive"


def test_a_control_is_refused_and_named():
    verdict = verdict_on(evidence(mean_of_means(FACTS)), MEAN_OF_MEANS)
    assert (verdict.outcome, verdict.expected, verdict.as_expected) == ("fail", "fail", True)
    assert verdict.diagnosis == verdict.expected_diagnosis == ("mean_of_means",)
    assert verdict.observed["residual"] < 1e-14
    assert verdict.observed["next_best"] in BY_NAME


def test_another_mistake_in_place_of_the_control_is_not_as_expected():
    verdict = verdict_on(evidence(lambda r, m: 1 / 36 / 3), MEAN_OF_MEANS)
    assert verdict.outcome == verdict.expected == "fail"
    assert verdict.problem == "is diagnosed as world_size_forgotten, expected mean_of_means"


def test_a_control_that_agrees_is_a_pass_and_so_not_as_expected():
    verdict = verdict_on(evidence(), MEAN_OF_MEANS)
    assert (verdict.outcome, verdict.as_expected) == ("pass", False)


def test_a_control_is_expected_to_be_named_with_what_it_cannot_be_told_from():
    one_microbatch = replace(FACTS, units=((3,), (11,), (7,)), labels=((3,),) * 3, positions=((3,),) * 3)
    assert named_together(BY_NAME["mean_of_means"], FACTS) == ("mean_of_means",)
    assert named_together(BY_NAME["mean_of_means"], one_microbatch) == ("mean_of_means",)
    twice_two = replace(FACTS, units=UNITS[:2], labels=FACTS.labels[:2], positions=FACTS.positions[:2])
    together = ("world_size_forgotten", "extra_division_by_accumulation")
    assert named_together(BY_NAME["world_size_forgotten"], twice_two) == together


def test_a_rank_without_units_makes_the_control_not_a_number():
    empty = replace(FACTS, units=((0, 0), *UNITS[1:]))
    of = evidence(facts=empty)
    nothing = {name: numpy.full_like(array, math.nan) for name, array in of.observed.items()}
    verdict = verdict_on(replace(of, observed=nothing), MEAN_OF_MEANS)
    assert verdict.as_expected
    assert verdict.diagnosis == ("mean_of_means", "mean_of_microbatch_means")
    json.dumps(verdict.observed, allow_nan=False)
    right = verdict_on(of)
    assert (right.outcome, right.expected) == ("pass", "pass")


def test_a_failure_shows_the_worst_parameter_and_its_worst_value():
    of = evidence()
    bias = of.reference["head.bias"]
    verdict = verdict_on(with_observed(of, **{"head.bias": bias + numpy.array([0.0, 0.25, 1.0, 0.0])}))
    first = verdict.first_difference
    assert (first["parameter"], first["index"]) == ("head.bias", [2])
    assert (first["ddp"], first["reference"]) == (bias[2] + 1.0, bias[2])
    assert first["error"] == pytest.approx(math.hypot(0.25, 1.0))
    assert (verdict.observed["error"], verdict.observed["parameter"]) == (first["error"], "head.bias")
    assert first["tolerance"] == verdict.observed["tolerance"] == pytest.approx(1e-12 * numpy.linalg.norm(bias))


def test_the_worst_value_need_not_be_the_largest():
    of = evidence()
    bias = of.reference["head.bias"].copy()
    smallest = int(abs(bias).argmin())
    bias[smallest] += 0.001
    first = verdict_on(with_observed(of, **{"head.bias": bias})).first_difference
    assert first["index"] == [smallest]
    assert abs(bias[smallest]) < abs(bias).max()


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({"head.bias": None}, {"parameter": "head.bias", "problem": "missing in ddp"}),
        ({"more": numpy.ones(1)}, {"parameter": "more", "problem": "missing in the reference"}),
        (
            {"head.bias": numpy.ones((4, 1))},
            {"parameter": "head.bias", "ddp_shape": [4, 1], "reference_shape": [4]},
        ),
    ],
    ids=["missing", "extra", "shape"],
)
def test_other_names_or_shapes_fail_whatever_was_expected(formula, change, first):
    of = evidence()
    observed = {name: array for name, array in (of.observed | change).items() if array is not None}
    verdict = verdict_on(replace(of, observed=observed), formula)
    assert verdict.outcome == "fail"
    assert verdict.first_difference == first


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_fails(value):
    of = evidence()
    bias = of.reference["head.bias"].copy()
    bias[1] = value
    verdict = verdict_on(with_observed(of, **{"head.bias": bias}))
    assert verdict.outcome == "fail"
    assert (verdict.first_difference["index"], verdict.first_difference["ddp"]) == ([1], str(value))
    json.dumps([verdict.observed, verdict.first_difference], allow_nan=False)


def test_nothing_to_compare_is_no_pass():
    verdict = verdict_on(replace(evidence(), observed={}, reference={}, single={}))
    assert verdict.outcome == "fail"
    assert verdict.first_difference == {"parameter": None, "problem": "there is no gradient to compare"}


def test_names_of_a_window_lose_their_prefix():
    both = {"first/a": numpy.ones(1), "most_unequal/a": numpy.zeros(1), "first_of_all/a": numpy.zeros(1)}
    assert list(of_window(both, "first")) == ["a"]
    assert of_window(both, "first")["a"] == 1


def test_parts_are_told_by_rank_and_microbatch():
    names = {"first/0/1/a": numpy.ones(1), "first/10/0/a/b": numpy.zeros(1), "other/0/0/a": numpy.ones(1)}
    assert {key: list(arrays) for key, arrays in parts_of(names, "first").items()} == {(0, 1): ["a"], (10, 0): ["a/b"]}


@pytest.fixture
def dumps(tmp_path):
    """Two windows, of which only the second has unequal counts."""
    return written(tmp_path, {"first": EQUAL, "most_unequal": FACTS})


def written(folder, facts, mean_of_means=mean_of_means):
    """The references and what each formula leaves."""
    right, wrong, parts = {}, {}, {}
    for window, of in facts.items():
        of_window_ = parts_for(of.units)
        for target, weight in ((right, lambda r, m, of=of: 1 / of.total), (wrong, mean_of_means(of))):
            left = left_by(weight, of_window_, of.units)
            target |= {f"{window}/{name}": array for name, array in left.items()}
        for (rank, index), arrays in of_window_.items():
            parts |= {f"{window}/{rank}/{index}/{name}": array for name, array in arrays.items()}
    references = {name: folder / f"reference.{name}" for name in REFERENCES}
    gradients = {(formula, dtype): folder / f"{formula}.{dtype}" for formula in FORMULAS for dtype in DTYPES}
    save_file(parts, references["parts"])
    for dtype, kind in ((NATIVE, numpy.float32), (FLOAT64, numpy.float64)):
        save_file(rounded(right, kind), references[dtype])
        save_file(rounded(right, kind), gradients[TOKEN_MEAN, dtype])
        save_file(rounded(wrong, kind), gradients[MEAN_OF_MEANS, dtype])
    return references, gradients, facts


def test_every_window_formula_and_dtype_gets_a_verdict(dumps):
    references, gradients, facts = dumps
    found = check_gradient_parity(Tolerances(), references, gradients, Counted(facts))
    verdicts = {verdict.case: verdict for verdict in found}
    assert len(verdicts) == 8
    assert [verdict.case for verdict in verdicts.values() if not verdict.as_expected] == []
    for dtype in DTYPES:
        assert verdicts[f"token_mean.{dtype}.first"].outcome == "inconclusive"
        assert verdicts[f"token_mean.{dtype}.most_unequal"].outcome == "pass"
        assert verdicts[f"mean_of_means.{dtype}.first"].outcome == "inconclusive"
        assert verdicts[f"mean_of_means.{dtype}.most_unequal"].outcome == "fail"
        bound = {FLOAT64: "1e-12 of its norm", NATIVE: "4 times that of one process in the same dtype"}[dtype]
        assert f"is at most {bound}" in verdicts[f"token_mean.{dtype}.most_unequal"].criterion
    evidence_of = verdicts["token_mean.native.first"].evidence
    paths = [*references.values(), gradients[TOKEN_MEAN, NATIVE]]
    assert evidence_of == {str(path): sha256(path) for path in paths}


def test_the_dump_of_another_formula_is_noticed(dumps):
    references, gradients, facts = dumps
    swapped = gradients | {
        (TOKEN_MEAN, FLOAT64): gradients[MEAN_OF_MEANS, FLOAT64],
        (MEAN_OF_MEANS, FLOAT64): gradients[TOKEN_MEAN, FLOAT64],
    }
    problems = {
        verdict.case: verdict.problem
        for verdict in check_gradient_parity(Tolerances(), references, swapped, Counted(facts))
        if verdict.problem
    }
    assert problems == {
        "token_mean.float64.most_unequal": "is fail, expected pass",
        "mean_of_means.float64.most_unequal": "is pass, expected fail",
    }


def test_facts_of_the_windows_that_are_compared(tmp_path):
    at = Layout(tmp_path)
    prepare(tiny_experiment(), at.rows, at.lock, at.plan)
    counted = count_windows(at.rows, at.lock, at.plan)
    assert counted.files == (at.rows, at.lock, at.plan)
    facts = counted.facts
    assert list(facts) == ["first", "most_unequal"]
    # Rank 0 draws sequences of 2 to 4 tokens and rank 1 of 5 to 8, two per microbatch.
    for of in facts.values():
        short, long = of.units_per_rank
        assert 8 <= short <= 16
        assert 20 <= long <= 32
        assert of.accumulation == of.microbatches == 2
        assert of.labels == of.units
        assert all(p >= u for ps, us in zip(of.positions, of.units, strict=True) for p, u in zip(ps, us, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("parameter", ["head.bias", "head.weight"])
def test_a_reference_that_is_no_number_proves_nothing(dtype, value, parameter):
    """On both sides, or on the reference's alone; whether or not the parameter comes first."""
    of = evidence()
    broken = of.reference | {parameter: numpy.full_like(of.reference[parameter], value)}
    for observed in (of.observed, broken):
        verdict = verdict_on(replace(of, observed=observed, reference=broken, single=broken), dtype=dtype)
        assert verdict.outcome == "fail"
        json.dumps([verdict.observed, verdict.first_difference], allow_nan=False)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_single_process_that_is_no_number_allows_nothing(value):
    of = evidence(dtype=numpy.float32)
    single = of.single | {"head.weight": numpy.full_like(of.single["head.weight"], value)}
    assert verdict_on(replace(of, single=single), dtype=NATIVE).outcome == "fail"


def test_a_rank_without_units_whose_zero_gradient_stays_zero():
    """0/0 is hidden where the loss has no unit to pass it on to: the mean of means then halves what rank 0 holds."""
    facts = WindowFacts(((16,), (0,)), ((16,), (9,)), ((16,), (9,)), accumulation=1)
    of = evidence(lambda r, m: [1 / 16 / 2, 0.0][r], facts)
    verdict = verdict_on(of, MEAN_OF_MEANS)
    assert verdict.as_expected
    assert verdict.diagnosis == ("mean_of_means", "world_size_forgotten")
    three = WindowFacts(((8, 3), (4, 2), (0, 0)), ((8, 3), (4, 2), (9, 9)), ((8, 3), (4, 2), (9, 9)), accumulation=2)
    verdict = verdict_on(evidence(lambda r, m: [1 / 11 / 3, 1 / 6 / 3, 0.0][r], three), MEAN_OF_MEANS)
    assert verdict.as_expected
    assert verdict.diagnosis == ("mean_of_means",)


def test_a_formula_that_is_the_right_one_here_explains_nothing():
    """No label is ignored, no row padded: counting them too changes nothing, and is not why the gradient is off."""
    facts = replace(FACTS, labels=UNITS, positions=UNITS)
    off = evidence(facts=facts)
    off = with_observed(off, **{"head.bias": off.observed["head.bias"] * (1 + 2e-12)})
    verdict = verdict_on(off)
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ())


def test_another_shape_is_no_formula():
    of = evidence()
    verdict = verdict_on(with_observed(of, **{"head.bias": of.observed["head.bias"].reshape(4, 1)}))
    assert (verdict.outcome, verdict.diagnosis) == ("fail", ())


def test_a_plan_without_a_window_is_named(tmp_path):
    at = Layout(tmp_path)
    prepare(tiny_experiment(), at.rows, at.lock, at.plan)
    at.plan.write_text('{"made_for": {}, "plan": []}')
    with pytest.raises(PlanError, match=r"plan\.json holds no window: prepare again"):
        count_windows(at.rows, at.lock, at.plan)


def test_what_the_counts_come_from_is_evidence_too(dumps, tmp_path):
    references, gradients, facts = dumps
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    [verdict, *_] = check_gradient_parity(Tolerances(), references, gradients, Counted(facts, (plan,)))
    assert verdict.evidence[str(plan)] == sha256(plan)


def test_conditions_are_stated_in_every_verdict_of_their_dtype(dumps, tmp_path):
    references, gradients, facts = dumps
    initial = tmp_path / "initial"
    initial.write_text("weights")
    conditions = Conditions(("frozen",), ("not mixed",), (initial,))
    found = check_gradient_parity(Tolerances(), references, gradients, Counted(facts), conditions)
    plain = check_gradient_parity(Tolerances(), references, gradients, Counted(facts))
    assert [verdict.case for verdict in found] == [verdict.case for verdict in plain]
    for verdict, before in zip(found, plain, strict=True):
        ending = "; frozen; not mixed" if ".native." in verdict.case else "; frozen"
        assert verdict.criterion == before.criterion + ending
        assert verdict.evidence == before.evidence | {str(initial): sha256(initial)}


def test_a_control_of_which_nothing_is_a_number_is_recognised_by_that(tmp_path):
    """Rank 0 has no unit and passes its 0/0 on: a mean of microbatch means would too."""
    facts = {"first": replace(FACTS, units=((0, 0), *UNITS[1:]))}
    dumped = written(tmp_path, facts, lambda of: lambda r, m: math.nan)
    found = check_gradient_parity(Tolerances(), *dumped[:2], Counted(facts))
    assert [verdict.problem for verdict in found] == [None] * 4
    controls = [verdict for verdict in found if verdict.case.startswith(MEAN_OF_MEANS)]
    assert [verdict.diagnosis for verdict in controls] == [("mean_of_means", "mean_of_microbatch_means")] * 2


def test_values_are_numbers_unless_it_is_said_that_they_are_not():
    empty = replace(FACTS, units=((0, 0), *UNITS[1:]))
    assert expected(MEAN_OF_MEANS, empty) == expected(MEAN_OF_MEANS, empty, finite=True)
    assert expected(MEAN_OF_MEANS, empty) != expected(MEAN_OF_MEANS, empty, finite=False)
