"""Sums (12, 108) over counts (12, 36), as microbatches (4, 8 | 30, 78) over (4, 8 | 9, 27): the mean is 2.5."""

from dataclasses import replace
from fractions import Fraction

import pytest

from ddp_tokens import formulas
from ddp_tokens.corpora.rows import Criterion, Row
from ddp_tokens.formulas import (
    ACCUMULATION_FORGOTTEN,
    KNOWN_WRONG,
    MEANINGS,
    OF_DATA,
    OF_MICROBATCHES,
    OF_RANKS,
    RIGHT,
    Formula,
    alike_on,
    excluded_by,
    is_right_on,
    possible_on,
)
from ddp_tokens.window_facts import WindowFacts, exact, window_facts
from tests.helpers import make_row

SUMS = ((4, 8), (30, 78))
UNITS = ((4, 8), (9, 27))
FACTS = WindowFacts(
    units=UNITS, labels=((5, 8), (10, 27)), positions=((6, 10), (20, 44)), accumulation=2, previous_units=40
)
BY_NAME = {formula.name: formula for formula in (RIGHT, *KNOWN_WRONG)}


def left_by(name, facts=FACTS, sums=SUMS):
    """What the formula makes of the sums, one value per variant."""
    return [
        sum(
            w * s for of_rank, of_sums in zip(weights, sums, strict=True) for w, s in zip(of_rank, of_sums, strict=True)
        )
        for weights in BY_NAME[name].variants(facts).values()
    ]


def averaged(*of_ranks):
    """What DDP makes of one value per rank."""
    return sum(of_ranks) / Fraction(len(of_ranks))


F = Fraction
BY_HAND = {
    "token_mean": [F(120, 48)],
    "mean_of_means": [averaged(F(12, 12), F(108, 36))],  # 2.0
    "world_size_forgotten": [averaged(F(12, 48), F(108, 48))],  # 1.25
    "world_size_twice": [averaged(F(4 * 12, 48), F(4 * 108, 48))],  # 5.0
    "one_rank_only": [F(2 * 12, 48), F(2 * 108, 48)],
    "another_ranks_rows": [averaged(F(2 * 108, 72), F(2 * 108, 72)), averaged(F(2 * 12, 24), F(2 * 12, 24))],
    "mean_of_microbatch_means": [averaged(F(1, 2) * (F(4, 4) + F(8, 8)), F(1, 2) * (F(30, 9) + F(78, 27)))],
    "extra_division_by_accumulation": [F(120, 48) / 2],  # 1.25
    "one_microbatch_counted": [F(34, 13) + F(86, 35)],
    "microbatches_weigh_alike": [(F(34, 13) + F(86, 35)) / 2],
    "last_microbatch_only": [F(86, 48)],
    "first_microbatch_only": [F(34, 48)],
    "padding_counted": [F(120, 80)],
    "ignored_labels_counted": [F(120, 50)],
    "short_window_as_full": [],  # this one is full
    "stale_count": [F(120, 40)],
    "weights_left_out": [F(120, 48)],  # nothing is weighted here
}


@pytest.mark.parametrize("name", BY_HAND)
def test_what_a_formula_makes_of_the_sums(name):
    assert left_by(name) == BY_HAND[name]


def test_every_formula_is_derived_here():
    assert set(BY_HAND) == set(BY_NAME)
    assert set(MEANINGS) == set(BY_NAME) - {"token_mean"}
    assert KNOWN_WRONG == OF_RANKS + OF_MICROBATCHES + OF_DATA


def made_of(weights, sums=SUMS):
    return sum(w * s for of_rank, of in zip(weights, sums, strict=True) for w, s in zip(of_rank, of, strict=True))


def test_means_that_are_never_divided_by_the_accumulation():
    """Added up by backward and averaged over ranks: twice the mean of means, of two microbatches."""
    found = ACCUMULATION_FORGOTTEN.variants(FACTS)
    assert {name: made_of(weights) for name, weights in found.items()} == {
        "means of microbatches": averaged(F(4, 4) + F(8, 8), F(30, 9) + F(78, 27)),
        "means of ranks": averaged(2 * F(12, 12), 2 * F(108, 36)),
    }
    assert next(iter(found.values())) == ((F(1, 8), F(1, 16)), (F(1, 18), F(1, 54)))


def test_ranks_may_add_up_other_numbers_of_means():
    """Rank 0 has one microbatch, and so one mean."""
    uneven = replace(FACTS, units=((4,), (9, 27)))
    of_microbatches, of_ranks = ACCUMULATION_FORGOTTEN.variants(uneven).values()
    assert made_of(of_microbatches, ((4,), (30, 78))) == averaged(F(4, 4), F(30, 9) + F(78, 27))
    assert made_of(of_ranks, ((4,), (30, 78))) == averaged(F(4, 4), 2 * F(108, 36))


def test_one_microbatch_has_no_accumulation_to_be_forgotten():
    assert ACCUMULATION_FORGOTTEN.variants(ONE_OF_EACH) == ACCUMULATION_FORGOTTEN.variants(ALONE) == {}


def test_a_mean_of_nothing_adds_nothing():
    empty = replace(FACTS, units=((0, 0), (9, 27)))
    zero = (F(0), F(0))
    assert list(ACCUMULATION_FORGOTTEN.variants(empty).values()) == [
        (zero, (F(1, 18), F(1, 54))),
        (zero, (F(1, 36),) * 2),
    ]


def test_a_forgotten_accumulation_is_known_to_audits_only():
    """A formula of a check needs a control that makes it."""
    assert ACCUMULATION_FORGOTTEN.name not in BY_NAME
    assert ACCUMULATION_FORGOTTEN not in (*possible_on(FACTS), *excluded_by(FACTS))


def test_a_short_last_window_divided_as_if_full():
    """Accumulation 4, two microbatches left, as reported: the window's mean is halved."""
    assert left_by("short_window_as_full", replace(FACTS, accumulation=4)) == [F(120, 48) * F(2, 4)]


def test_without_a_window_before_no_count_can_be_stale():
    assert left_by("stale_count", replace(FACTS, previous_units=None)) == []


def test_on_one_rank_none_is_alone():
    assert BY_NAME["one_rank_only"].variants(ONE_RANK) == {}


def test_without_a_choice_a_variant_needs_no_phrase():
    assert [list(BY_NAME[name].variants(FACTS)) for name in ("token_mean", "mean_of_means", "stale_count")] == [
        [""]
    ] * 3


def test_the_variants_of_a_choice_are_told_apart():
    three = replace(FACTS, units=((1,), (2,), (3,)), labels=((1,), (2,), (3,)), positions=((1,), (2,), (3,)))
    assert list(BY_NAME["one_rank_only"].variants(three)) == ["rank 0", "rank 1", "rank 2"]
    assert "rank 2 computes the rows of rank 0" in BY_NAME["another_ranks_rows"].variants(three)
    # Rank 2 in place of itself computes rank 0's one unit: 1 + 2 + 1 units, those of rank 0 twice.
    weights = BY_NAME["another_ranks_rows"].variants(three)["rank 2 computes the rows of rank 0"]
    assert weights == ((F(2, 4),), (F(1, 4),), (F(0),))


def test_a_division_of_nothing_by_zero_has_no_weights_or_none_that_matter():
    """Not a number where the loss passes 0/0 on; otherwise the others' weights, here (9 + 27)/2 for each unit."""
    empty = replace(FACTS, units=((0, 0), (9, 27)))
    undefined = [formula.name for formula in possible_on(empty) if None in formula.variants(empty).values()]
    assert undefined == ["mean_of_means", "mean_of_microbatch_means"]
    assert BY_NAME["mean_of_means"].variants(empty) == {"": ((F(0), F(0)), (F(1, 72), F(1, 72))), "0/0": None}


def test_a_weight_that_divides_by_zero_gives_both_variants():
    """Made here as well: mutation.py leaves what the table holds alone, since that is made by an import."""
    variants = formulas._each(lambda facts, r, m: F(1, facts.units[r][m]))
    assert variants(FACTS) == {"": ((F(1, 4), F(1, 8)), (F(1, 9), F(1, 27)))}
    empty = replace(FACTS, units=((0, 8), (9, 27)))
    assert variants(empty) == {"": ((F(0), F(1, 8)), (F(1, 9), F(1, 27))), "0/0": None}


def test_rows_of_a_rank_that_holds_nothing_cannot_be_all_there_is():
    """Rank 1 computing rank 0's nothing would leave no unit at all: that is the error of an empty window."""
    empty = replace(FACTS, units=((0, 0), (9, 27)))
    assert list(BY_NAME["another_ranks_rows"].variants(empty)) == ["rank 0 computes the rows of rank 1"]


ONE_RANK = replace(FACTS, units=((4, 8),), labels=((5, 8),), positions=((6, 10),))
ONE_OF_EACH = replace(FACTS, units=((4,), (9,)), labels=((5,), (10,)), positions=((6,), (20,)))
ALONE = replace(FACTS, units=((4,),), labels=((5,),), positions=((6,),))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [(FACTS, OF_RANKS + OF_MICROBATCHES), (ONE_RANK, OF_MICROBATCHES), (ONE_OF_EACH, OF_RANKS), (ALONE, ())],
)
def test_what_a_window_is_meant_to_exclude(facts, expected):
    assert excluded_by(facts) == expected
    assert possible_on(facts) == expected + OF_DATA


def alike(name, facts):
    return alike_on(facts, RIGHT, BY_NAME[name])


def test_equal_counts_make_a_mean_of_means_the_token_mean():
    equal = replace(FACTS, units=((4, 8), (9, 3)))
    assert alike("mean_of_means", equal)
    assert not alike("mean_of_means", FACTS)
    assert not alike("mean_of_microbatch_means", equal)
    assert alike("mean_of_microbatch_means", replace(FACTS, units=((6, 6), (6, 6))))


def test_one_unit_more_makes_them_differ():
    """Fractions are exact: no imbalance is too small."""
    assert not alike("mean_of_means", replace(FACTS, units=((10**9, 0), (10**9 + 1, 0))))


def test_a_division_by_zero_is_like_nothing():
    empty = replace(FACTS, units=((0, 0), (9, 27)))
    assert not alike("mean_of_means", empty)
    assert not alike_on(empty, BY_NAME["mean_of_means"], BY_NAME["mean_of_microbatch_means"])


@pytest.mark.parametrize("weights", [((F(1), F(1)),), ((F(1), F(1)), (F(1),))], ids=["a rank", "a microbatch"])
def test_weights_that_lack_some_of_the_window_are_refused(weights):
    with pytest.raises(ValueError, match="zip"):
        alike_on(FACTS, RIGHT, Formula("incomplete", "", lambda facts: {"": weights}))


def test_a_microbatch_without_units_has_no_say():
    """Everything in the last microbatch: losing the first loses nothing."""
    assert alike("last_microbatch_only", replace(FACTS, units=((0, 8), (0, 27))))
    assert not alike("last_microbatch_only", replace(FACTS, units=((0, 8), (1, 27))))


def test_a_missing_world_size_and_an_extra_division_by_two_are_one_on_two_ranks_and_two_microbatches():
    forgotten, divided = BY_NAME["world_size_forgotten"], BY_NAME["extra_division_by_accumulation"]
    assert alike_on(FACTS, forgotten, divided)
    three_ranks = replace(FACTS, units=(*UNITS, (1, 1)))
    assert not alike_on(three_ranks, forgotten, divided)


def test_weights_that_stand_in_the_sum_only():
    """The weights of 60 tokens are 48: 120 / 60 = 2 in place of 120 / 48 = 2.5."""
    weighted = replace(FACTS, counted=((4, 10), (16, 30)))
    assert left_by("weights_left_out", weighted) == [F(120, 60)]


def test_shares_such_as_thirds_are_exact():
    assert [exact(1 / 3), exact(0.37), exact(5), exact(5.0)] == [F(1, 3), F(37, 100), 5, 5]
    assert sum(map(exact, (1 / 3, 1 / 3, 1 / 3))) == 1


def test_what_is_no_short_fraction_stays_what_it_is():
    """Weights of 1e-10 are not 0, and 1 + 1e-10 is not 1."""
    for units in (1e-10, 1 + 1e-10, 0.1234567890123):
        assert float(exact(units)) == units
        assert exact(units) > 0


def test_a_class_of_weight_zero_has_a_gradient_where_labels_are_smoothed():
    """Its labels weigh nothing, and the smoothed part of their loss is there: losing it is no right formula."""
    plain, smoothed = (Criterion((0.0, 1.0), smoothing) for smoothing in (0.0, 0.1))
    rows = {name: Row(name, "train", (0, 0), (label, label)) for name, label in (("a", 1), ("b", 0))}

    def facts(criterion):
        counted = {name: replace(row, criterion=criterion) for name, row in rows.items()}
        return window_facts([[[["a"], ["b"]], [["a"], ["b"]]]], 0, counted)

    assert facts(plain).units == facts(smoothed).units == ((2, 0), (2, 0))
    first = BY_NAME["first_microbatch_only"]
    assert alike_on(facts(plain), RIGHT, first), "what the second microbatch holds is nothing"
    assert not alike_on(facts(smoothed), RIGHT, first)


def test_facts_are_counted_from_rows():
    """Rows of 3 and 5 tokens in one microbatch hold 2 x 5 padded positions."""
    rows = {"a": make_row("a", 3, units=2), "b": make_row("b", 5), "c": make_row("c", 4, units=1)}
    plan = [[[["a", "b"], ["c"]], [["c"], ["c"]]], [[["c"]], [["a"]]]]
    units, labels, positions = ((7, 1), (1, 1)), ((8, 4), (4, 4)), ((10, 4), (4, 4))
    assert window_facts(plan, 0, rows) == WindowFacts(units, labels, positions, 2, None, counted=units, reached=units)
    short = window_facts(plan, 1, rows)
    assert (short.units, short.accumulation, short.microbatches) == (((1,), (2,)), 2, 1)
    assert short.previous_units == 10
    assert (short.total, short.units_per_rank, short.world_size) == (3, [1, 2], 2)


def test_a_rank_without_a_row_counts_nothing_and_holds_one_row():
    """Rank 1 computes row "c" without its labels: 4 of them, as many positions, no unit."""
    rows = {"a": make_row("a", 3), "c": make_row("c", 4)}
    left_over = window_facts([[[["a"], ["c"]], [["a"], ["a"]]], [[["c"]], [[]]]], 1, rows)
    assert left_over == WindowFacts(
        ((4,), (0,)), ((4,), (4,)), ((4,), (4,)), 2, 13, counted=((4,), (0,)), reached=((4,), (0,))
    )
    assert not alike("mean_of_means", left_over)
    assert left_by("token_mean", left_over, ((12,), (0,))) == [F(12, 4)]
    assert left_by("short_window_as_full", left_over, ((12,), (0,))) == [F(12, 4) / 2]
    assert [f.name for f in possible_on(left_over) if None in f.variants(left_over).values()] == ["mean_of_means"]


def test_microbatches_may_differ_in_number_between_ranks():
    uneven = replace(FACTS, units=((4,), (9, 27)), labels=((5,), (10, 27)), positions=((6,), (20, 44)))
    assert (uneven.microbatches, uneven.units_in_microbatch(0), uneven.units_in_microbatch(1)) == (2, 13, 27)
    assert left_by("last_microbatch_only", uneven, ((4,), (30, 78))) == [F(4 + 78, 40)]
    assert left_by("mean_of_microbatch_means", uneven, ((4,), (30, 78))) == [
        averaged(F(4, 4), (F(30, 9) + F(78, 27)) / 2)
    ]


@pytest.mark.parametrize(
    ("weights", "right"),
    [
        (((F(1, 48), F(1, 48)), (F(1, 48), F(1, 48))), True),
        (((F(1, 48), F(1, 48)), (F(1, 48), F(1, 49))), False),
        (((F(1, 24), F(1, 24)), (F(1, 24), F(1, 24))), False),
    ],
)
def test_weights_are_right_when_every_unit_weighs_one_over_all(weights, right):
    """4 + 8 + 9 + 27 = 48 units."""
    assert is_right_on(FACTS, weights) is right


def test_the_weight_of_a_microbatch_without_units_may_be_any():
    assert is_right_on(replace(FACTS, units=((0, 8), (9, 27))), ((F(7), F(1, 44)), (F(1, 44), F(1, 44))))
