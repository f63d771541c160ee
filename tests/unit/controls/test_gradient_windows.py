"""The made rows are what each case says."""

import random

import pytest

from ddp_tokens.config import GeneratedCorpus
from ddp_tokens.controls.gradient_windows import (
    CASES,
    CONTROLLED,
    REGULAR,
    prepare_case,
    with_equal_units,
    with_microbatches,
    with_one_microbatch_less_on_rank_0,
    with_one_unit_less_on_rank_0,
    without_units_in_one_microbatch,
    without_units_on_the_last_rank,
)
from ddp_tokens.corpora.lock import read_corpus
from ddp_tokens.files import read_json
from ddp_tokens.formulas import KNOWN_WRONG, RIGHT, alike_on, excluded_by, possible_on, window_facts
from ddp_tokens.layout import Layout

UNITS = [[[3, 1], [2, 5]], [[9, 8], [7, 7]]]
CORPUS = GeneratedCorpus(max_length=128)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (with_microbatches(1, UNITS), [[[3, 1]], [[9, 8]]]),
        (with_one_microbatch_less_on_rank_0(UNITS), [[[3, 1]], [[9, 8], [7, 7]]]),
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
    if case.batch > 1:
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
