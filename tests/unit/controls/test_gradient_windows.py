"""The made rows are what each case says."""

import random

import pytest

from ddp_tokens.config import GeneratedCorpus, ResNet
from ddp_tokens.controls.gradient_windows import (
    BATCH_FROZEN,
    BATCH_IN_TRAINING,
    CASES,
    CONTROLLED,
    OF_LAYERS,
    REGULAR,
    OfImages,
    at_an_epochs_end,
    prepare_case,
    with_equal_units,
    with_microbatches,
    with_one_microbatch_less_on_rank_0,
    with_one_unit_less_on_rank_0,
    without_units_in_one_microbatch,
    without_units_on_the_last_rank,
)
from ddp_tokens.corpora.images import label_of
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.files import read_json
from ddp_tokens.formulas import KNOWN_WRONG, RIGHT, alike_on, excluded_by, possible_on
from ddp_tokens.layout import Layout
from ddp_tokens.window_facts import window_facts

UNITS = [[[3, 1], [2, 5]], [[9, 8], [7, 7]]]
CORPUS = GeneratedCorpus(max_length=128)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (with_microbatches(1, UNITS), [[[3, 1]], [[9, 8]]]),
        (with_one_microbatch_less_on_rank_0(UNITS), [[[3, 1]], [[9, 8], [7, 7]]]),
        (at_an_epochs_end(2, [[[1], [2], [3]], [[4], [5], [6]]]), [[[1]], [[4], [5]]]),
        (without_units_on_the_last_rank(UNITS), [[[3, 1], [2, 5]], [[0, 0], [0, 0]]]),
        (without_units_in_one_microbatch(UNITS), [[[3, 1], [2, 5]], [[0, 0], [7, 7]]]),
        (with_equal_units(4, UNITS), [[[4, 4], [4, 4]]] * 2),
        (with_one_unit_less_on_rank_0(4, UNITS), [[[3, 4], [4, 4]], [[4, 4], [4, 4]]]),
    ],
)
def test_what_makes_a_window_special(changed, expected):
    assert changed == expected
    assert UNITS == [[[3, 1], [2, 5]], [[9, 8], [7, 7]]], "the window that it was made of is not touched"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    for case in CASES.values():
        prepare_case(case, CORPUS, Layout(folder / case.name))
    return lambda case: Layout(folder / case.name)


def facts_of(prepared, case):
    at = prepared(case)
    rows, _ = read_corpus(at.rows, at.lock)
    return window_facts(read_json(at.plan)["plan"], case.compared["compared"], rows)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_the_compared_window_has_the_cases_shape(prepared, case):
    facts = facts_of(prepared, case)
    assert facts.world_size == case.world_size
    assert facts.accumulation == case.accumulation
    assert facts.previous_units
    assert sum(map(sum, facts.labels)) > facts.total, "some labels are not supervised"
    if case.of_images:
        assert facts.positions == facts.labels, "an image is one position, so none is padded"
    elif case.batch > 1:
        assert sum(map(sum, facts.positions)) > sum(map(sum, facts.labels)), "some rows are padded"


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.decidable], ids=lambda case: case.name)
def test_no_excluded_formula_is_the_right_one_by_chance(prepared, case):
    facts = facts_of(prepared, case)
    assert [formula.name for formula in excluded_by(facts) if alike_on(facts, RIGHT, formula)] == []


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.apart], ids=lambda case: case.name)
def test_the_controls_windows_tell_all_formulas_apart(prepared, case):
    facts = facts_of(prepared, case)
    alike = {
        (one.name, other.name)
        for one in possible_on(facts)
        for other in possible_on(facts)
        if one.name < other.name and alike_on(facts, one, other)
    }
    # With as many microbatches as ranks, 1/W and 1/M are one.
    divisions = {("extra_division_by_accumulation", "world_size_forgotten")}
    assert alike == (divisions if facts.world_size == facts.microbatches else set())


def test_the_controls_run_where_the_number_of_ranks_is_not_that_of_microbatches(prepared):
    facts = facts_of(prepared, CONTROLLED)
    assert (facts.world_size, facts.microbatches) == (3, 2)
    assert set(possible_on(facts)) == set(KNOWN_WRONG)


def test_equal_counts_are_equal(prepared):
    facts = facts_of(prepared, CASES["equal_counts"])
    assert len(set(facts.units_per_rank)) == 1
    assert not CASES["equal_counts"].decidable


def test_one_unit_less_is_one_unit_less(prepared):
    for name in ("one_unit_less_in_float32", "one_unit_less_in_bfloat16"):
        assert facts_of(prepared, CASES[name]).units_per_rank == [119, 120]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_empty_ranks_and_microbatches_are_empty(prepared, size):
    rank = facts_of(prepared, CASES[f"empty_rank_w{size}"]).units
    assert rank[-1] == (0, 0)
    assert all(all(of_rank) for of_rank in rank[:-1])
    microbatch = facts_of(prepared, CASES[f"empty_microbatch_w{size}"]).units
    assert [of_rank.count(0) for of_rank in microbatch] == [0] * (size - 1) + [1]


def test_the_right_variants_cover_what_they_should():
    assert {case.world_size for case in REGULAR} == {1, 2, 3, 4}
    assert {case.accumulation for case in REGULAR} == {1, 2, 3, 4}
    assert {case.batch for case in REGULAR} >= {1, 8}


@pytest.mark.parametrize("case", [*OF_LAYERS, BATCH_IN_TRAINING], ids=lambda case: case.name)
def test_ranks_and_microbatches_hold_unequal_numbers_of_images(prepared, case):
    """Rank 0 has 1 to `batch` in each microbatch, rank 1 more, up to twice as many; not all of them count."""
    facts = facts_of(prepared, case)
    first, second = facts.labels
    assert all(1 <= number <= case.batch for number in first)
    assert all(case.batch < number <= 2 * case.batch for number in second)
    assert facts.units_per_rank[0] < facts.units_per_rank[1]
    assert len({number for of_rank in facts.labels for number in of_rank}) > 2
    assert {units > 0 for of_rank in facts.units for units in of_rank} == {True}


def test_rows_of_images_have_an_index_and_the_label_that_goes_with_it(prepared):
    at = prepared(BATCH_FROZEN)
    rows, lock = read_corpus(at.rows, at.lock)
    indices = [row.index for row in rows.values()]
    assert indices == list(range(len(rows)))
    shape = {"classes": 4, "channels": 3, "height": 8, "width": 8}
    assert (lock["shape"], lock["images"]["seed"]) == (shape, 17)
    supervised = {row.labels[0] for row in rows.values()} - {-100}
    assert len(supervised) > 1
    assert all(row.labels[0] in (-100, label_of(row.index, 17, 4)) for row in rows.values())
    assert {row.image().shape for row in rows.values()} == {(3, 8, 8)}


def test_frozen_and_in_training_the_window_is_the_same(prepared):
    """So that nothing but the statistics makes the difference, and not of groups either."""
    together = [case for case in (*OF_LAYERS, BATCH_IN_TRAINING) if "short" not in case.name]
    assert len(together) == 3
    assert len({prepared(case).rows.read_bytes() for case in together}) == 1
    assert len({prepared(case).plan.read_bytes() for case in together}) == 1


def test_the_short_window_has_fewer_microbatches_than_others_and_one_rank_the_fewest(prepared):
    facts = facts_of(prepared, CASES["batch_norm_frozen_short_window"])
    assert [len(of_rank) for of_rank in facts.units] == [1, 2]
    assert facts.accumulation == 3


@pytest.mark.parametrize(
    ("norm", "training", "uses"),
    [("batch", True, True), ("sync_batch", True, True), ("batch", False, False), ("group", True, False)],
)
def test_statistics_of_rows_are_used_by_batch_norm_in_training(norm, training, uses):
    assert OfImages(ResNet(norm=norm), training).uses_statistics == uses


def test_the_same_case_gives_the_same_rows(prepared, tmp_path):
    again = Layout(tmp_path)
    prepare_case(CONTROLLED, CORPUS, again)
    first = prepared(CONTROLLED)
    assert again.rows.read_bytes() == first.rows.read_bytes()
    assert again.plan.read_bytes() == first.plan.read_bytes()


def test_rows_of_a_rank_are_longer_than_those_of_the_ranks_before():
    """Rank r draws from 1 + 6r to 6 + 6r units."""
    [_, window] = CONTROLLED.windows(random.Random(0))
    largest = [max(max(rows) for rows in of_rank) for of_rank in window]
    smallest = [min(min(rows) for rows in of_rank) for of_rank in window]
    assert all(low > high for low, high in zip(smallest[1:], largest, strict=False))
