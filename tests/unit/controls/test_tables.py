"""The tables of controls: each expects a diagnosis that has a meaning, and every kind that was asked for is there."""

import pytest

from ddp_tokens.checks.meanings import MEANINGS
from ddp_tokens.checks.verdict import FAIL, INCONCLUSIVE, PASS
from ddp_tokens.controls import evaluation_cases, gradient_cases, resume_cases
from ddp_tokens.controls.counted_cases import COUNTED
from ddp_tokens.controls.evaluations import WAYS
from ddp_tokens.controls.gradient_windows import CASES, OF_LAYERS, REGULAR, SPECIAL
from ddp_tokens.controls.gradients import ways
from ddp_tokens.controls.resumes import VARIANTS
from ddp_tokens.controls.term_cases import TERM_CASES
from ddp_tokens.corpora.lock import Shape
from ddp_tokens.formulas import KNOWN_WRONG
from ddp_tokens.inputs import Prepared
from ddp_tokens.term_formulas import OF_TERMS
from ddp_tokens.workflow import CONTROL_WORLD_SIZES
from tests.helpers import PROJECT, make_row

EVERY = [*gradient_cases.VARIANTS, *resume_cases.CASES, *evaluation_cases.CASES]


def of(expected):
    return [variant.name for variant in EVERY if variant.expected == expected]


def test_names_are_unique():
    names = [variant.name for variant in EVERY]
    assert len(set(names)) == len(names)


def test_there_are_enough_of_both():
    assert len(of(FAIL)) >= 24
    assert len(of(PASS)) >= 24
    assert len(of(INCONCLUSIVE)) >= 2


@pytest.mark.parametrize("variant", EVERY, ids=lambda variant: variant.name)
def test_exactly_a_control_expects_a_diagnosis(variant):
    assert (variant.expected == FAIL) == bool(variant.diagnosis)
    assert set(variant.diagnosis) <= set(MEANINGS)


def test_every_known_wrong_formula_is_the_diagnosis_of_a_control():
    diagnosed = {name for variant in gradient_cases.VARIANTS for name in variant.diagnosis}
    assert diagnosed >= {formula.name for formula in (*KNOWN_WRONG, *OF_TERMS)}


def test_every_case_is_used_and_every_way_exists():
    assert {variant.case.name for variant in gradient_cases.VARIANTS} == {*CASES, *COUNTED, *TERM_CASES}
    row = make_row("a", 2)
    prepared = Prepared({"a": row}, {"shape": vars(Shape(2, 2, 2))}, [[[["a"]]], [[["a"]]]])
    known = set(ways(prepared, 1))
    assert {variant.way for variant in gradient_cases.VARIANTS} == known
    assert {case.way for case in evaluation_cases.CASES} == set(WAYS)
    assert {case.name for case in resume_cases.CASES} == set(VARIANTS)


def test_every_regular_and_special_case_and_every_kind_of_layer_has_a_right_variant():
    right = {variant.case.name for variant in gradient_cases.RIGHTS if variant.check == gradient_cases.PARITY}
    assert right == {case.name for case in (*REGULAR, *SPECIAL, *OF_LAYERS, *COUNTED.values(), *TERM_CASES.values())}


def test_the_workflow_starts_every_number_of_ranks_that_is_needed():
    sizes = {variant.case.world_size for variant in gradient_cases.VARIANTS}
    sizes |= {case.world_size for case in evaluation_cases.CASES}
    sizes |= set(resume_cases.WORLD_SIZES)
    assert sizes == set(CONTROL_WORLD_SIZES)


def test_the_names_of_every_known_failure_that_was_asked_for():
    asked = {
        "mean_of_means",
        "mean_of_microbatch_means",
        "world_size_forgotten",
        "world_size_twice",
        "extra_division_by_accumulation",
        "padding_counted",
        "ignored_labels_counted",
        "one_microbatch_counted",
        "short_window_as_full",
        "stale_count",
        "gradients_cleared_per_microbatch",
        "weights_updated_between_microbatches",
        "last_microbatch_only",
        "all_reduce_skipped",
        "synchronized_forward_left",
        "forward_outside_no_sync",
        "weights_perturbed_after_wrapping",
        "another_ranks_rows",
        "generators_not_restored",
        "only_seed_restored",
        "restored_before_a_skip_that_draws",
        "momentum_lost",
        "schedule_lost",
        "scaler_lost",
        "buffers_kept_apart",
        "position_off_by_one",
        "position_reset",
        "another_corpus",
        "rank_files_swapped",
        "history_not_continued",
        "mean_of_batch_means",
        "padded_sampler",
        "batch_norm_in_training",
    }
    assert asked <= set(of(FAIL))


def test_the_readme_counts_them_right():
    text = (PROJECT / "README.md").read_text()
    assert f"compute {len(of(FAIL))} variants in which one thing is wrong" in text
    assert f"{len(of(PASS))} right variants must pass, and {len(of(INCONCLUSIVE))} cases must end" in text
