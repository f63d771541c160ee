"""Two ranks with two and one microbatches; every expected weight is written out by hand.

Tokens 2, 4 | 6 over all 12, coefficient 1; sequences 1, 2 | 1 over all 4, coefficient 3; once 1, 1 | 1 over 3,
coefficient 1/2. Right: c = 1/12, 3/4, 1/6. The regularizer's three parts add up to 1/2, as they must.
"""

from dataclasses import replace
from fractions import Fraction as F

import pytest

from ddp_tokens import formulas
from ddp_tokens.checks.meanings import MEANINGS
from ddp_tokens.formulas import KNOWN_WRONG
from ddp_tokens.term_facts import facts_of_terms, terms_facts
from ddp_tokens.term_formulas import (
    OF_TERMS,
    alike_on,
    between_terms,
    excluded_by,
    is_right_on,
    lifted,
    made_in_every_term,
    objective_told,
    possible_on,
    right_on,
)
from ddp_tokens.terms import Term
from ddp_tokens.window_facts import WindowFacts
from tests.helpers import make_row

TERMS = (Term("lm", "token"), Term("aux", "sequence", 3.0), Term("l2", "once", 0.5))
TOKENS = WindowFacts(((2, 4), (6,)), ((3, 4), (8,)), ((4, 4), (8,)), 3, 20)
SEQUENCES = WindowFacts(((1, 2), (1,)), ((1, 2), (2,)), ((1, 2), (2,)), 3, 5)
ONCE = WindowFacts(((1, 1), (1,)), ((1, 1), (1,)), ((1, 1), (1,)), 3, 4)
FACTS = terms_facts(TERMS, (TOKENS, SEQUENCES, ONCE))
RIGHT = {"lm": ((F(1, 12),) * 2, (F(1, 12),)), "aux": ((F(3, 4),) * 2, (F(3, 4),)), "l2": ((F(1, 6),) * 2, (F(1, 6),))}
BY_NAME = {formula.name: formula for formula in KNOWN_WRONG}


def weights(**changed):
    return tuple(of_rank for of_term in (RIGHT | changed).values() for of_rank in of_term)


def times(factor, name):
    return tuple(tuple(factor * weight for weight in of_rank) for of_rank in RIGHT[name])


def between(name):
    [formula] = [formula for formula in between_terms(FACTS) if formula.name == name]
    return formula.variants(FACTS)


def test_what_is_right():
    assert right_on(FACTS).variants(FACTS) == {"": weights()}
    assert is_right_on(FACTS, weights())
    assert sum(sum(of_rank) for of_rank in RIGHT["l2"]) == F(1, 2)
    assert right_on(TOKENS) is formulas.RIGHT


def test_of_a_term_that_counts_once_only_the_sum_matters():
    assert is_right_on(FACTS, weights(l2=((F(1, 2), 0), (0,))))
    assert not is_right_on(FACTS, weights(l2=((F(1, 2), 0), (F(1, 10),))))
    assert not is_right_on(FACTS, weights(lm=((F(1, 6), 0), (F(1, 12),))))


def test_a_microbatch_without_a_unit_of_a_term_has_no_weight_of_it():
    empty = terms_facts(TERMS, (TOKENS, replace(SEQUENCES, units=((0, 3), (1,))), ONCE))
    assert is_right_on(empty, weights(aux=((F(9), F(3, 4)), (F(3, 4),))))


BETWEEN = {
    # 12 tokens, 4 sequences, 3 microbatches: what each would be divided by in another's place.
    "shared_denominator": {
        "the units of term lm divide every term": weights(aux=times(F(4, 12), "aux"), l2=times(F(3, 12), "l2")),
        "the units of term lm divide term aux": weights(aux=times(F(4, 12), "aux")),
        "the units of term lm divide term l2": weights(l2=times(F(3, 12), "l2")),
        "the units of term aux divide every term": weights(lm=times(F(12, 4), "lm"), l2=times(F(3, 4), "l2")),
        "the units of term aux divide term lm": weights(lm=times(F(12, 4), "lm")),
        "the units of term aux divide term l2": weights(l2=times(F(3, 4), "l2")),
        "the units of term l2 divide every term": weights(lm=times(F(12, 3), "lm"), aux=times(F(4, 3), "aux")),
        "the units of term l2 divide term lm": weights(lm=times(F(12, 3), "lm")),
        "the units of term l2 divide term aux": weights(aux=times(F(4, 3), "aux")),
    },
    "regularizer_times_world_size": {"in term l2": weights(l2=times(2, "l2"))},
    # Added in each of 2 and 1 microbatches and averaged over 2 ranks: 3/2 of it; times W: 3 of it.
    "regularizer_times_microbatches": {
        "once per microbatch, in term l2": weights(l2=times(F(3, 2), "l2")),
        "once per microbatch, times W, in term l2": weights(l2=times(3, "l2")),
    },
    "coefficient_forgotten": {
        "in term aux": weights(aux=times(F(1, 3), "aux")),
        "in term l2": weights(l2=times(2, "l2")),
        "in every term": weights(aux=times(F(1, 3), "aux"), l2=times(2, "l2")),
    },
    "term_forgotten": {f"term {name}": weights(**{name: times(0, name)}) for name in RIGHT},
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_mistake_between_terms(name):
    assert between(name) == BETWEEN[name]


def test_every_mistake_between_terms_is_derived_here_and_has_a_meaning():
    assert set(BETWEEN) == {of.name for of in OF_TERMS} == {of.name for of in between_terms(FACTS)}
    assert all(MEANINGS[name] for name in BETWEEN)


def test_a_mistake_of_one_loss_in_each_term_and_in_all():
    """Rank 0 holds 6 of 12 tokens, as rank 1, and 3 of 4 sequences; a mean of means of a constant is the constant."""
    means = lifted(BY_NAME["mean_of_means"], FACTS).variants(FACTS)
    pooled = ((3 * F(1, 6),) * 2, (3 * F(1, 2),))
    regularizer = ((F(1, 8),) * 2, (F(1, 4),))
    assert means == {"in every term": weights(aux=pooled, l2=regularizer)}
    assert sum(sum(of_rank) for of_rank in regularizer) == F(1, 2)
    unequal = terms_facts(TERMS, (replace(TOKENS, units=((2, 4), (2,))), SEQUENCES, ONCE))
    assert list(lifted(BY_NAME["mean_of_means"], unequal).variants(unequal)) == [
        "in every term",
        "in term lm",
        "in term aux",
    ]


def test_a_scaled_gradient_in_each_term_and_in_all():
    halves = lifted(BY_NAME["world_size_forgotten"], FACTS).variants(FACTS)
    lm, aux, l2 = (times(F(1, 2), name) for name in RIGHT)
    assert halves == {
        "in every term": weights(lm=lm, aux=aux, l2=l2),
        "in every term but those that count once": weights(lm=lm, aux=aux),
        "in term lm": weights(lm=lm),
        "in term aux": weights(aux=aux),
        "in term l2": weights(l2=l2),
    }


def test_where_a_mistake_has_a_choice_it_is_the_same_in_all_terms():
    alone = lifted(BY_NAME["one_rank_only"], FACTS).variants(FACTS)
    assert alone["rank 1, in every term"] == weights(
        lm=((0, 0), (F(2, 12),)), aux=((0, 0), (F(6, 4),)), l2=((0, 0), (F(1, 3),))
    )


def test_padding_is_in_the_denominator_of_tokens_only():
    """16 padded positions; a sequence has none, but one of rank 1's two has no label that counts."""
    padded = lifted(BY_NAME["padding_counted"], FACTS).variants(FACTS)
    assert padded["in term lm"] == weights(lm=((F(1, 16),) * 2, (F(1, 16),)))
    assert padded["in term aux"] == weights(aux=((F(3, 5),) * 2, (F(3, 5),)))


def test_division_by_zero_in_one_term_is_0_by_0_in_all():
    empty = terms_facts(TERMS, (TOKENS, replace(SEQUENCES, units=((1, 3), (0,))), ONCE))
    means = made_in_every_term(BY_NAME["mean_of_means"], empty).variants(empty)
    assert list(means) == ["", "0/0"]
    assert means["0/0"] is None
    assert "0/0, in term aux" in lifted(BY_NAME["mean_of_means"], empty).variants(empty)
    assert "0/0, in term lm" not in lifted(BY_NAME["mean_of_means"], empty).variants(empty)


def test_what_is_excluded_and_what_is_possible():
    names = [formula.name for formula in formulas.excluded_by(TOKENS)] + list(BETWEEN)
    assert [formula.name for formula in excluded_by(FACTS)] == names
    assert {formula.name for formula in possible_on(FACTS)} == set(BETWEEN) | {
        formula.name for formula in formulas.possible_on(TOKENS)
    }
    assert excluded_by(TOKENS) == formulas.excluded_by(TOKENS)


def test_one_rank_and_one_microbatch_can_still_mix_terms_up():
    one = WindowFacts(((12,),), ((12,),), ((12,),), 1)
    alone = terms_facts(TERMS, (one, replace(one, units=((4,),)), replace(one, units=((1,),))))
    assert [formula.name for formula in excluded_by(alone)] == [
        "shared_denominator",
        "coefficient_forgotten",
        "term_forgotten",
    ]


def test_terms_of_the_same_unit_share_their_denominator_rightly():
    same = terms_facts((Term("a", "token"), Term("b", "token")), (TOKENS, TOKENS))
    assert [formula.name for formula in between_terms(same)] == ["term_forgotten"]


def test_alike_is_by_what_matters():
    twice = lifted(BY_NAME["world_size_twice"], FACTS)
    of_once, forgotten = (between_terms(FACTS)[index] for index in (1, 3))
    assert (of_once.name, forgotten.name) == ("regularizer_times_world_size", "coefficient_forgotten")
    assert alike_on(FACTS, of_once, forgotten)  # W is 2 and the coefficient one half
    assert not alike_on(FACTS, of_once, twice)
    assert not alike_on(FACTS, right_on(FACTS), of_once)


def test_a_verdict_says_what_a_window_cannot_show():
    """Both ranks hold 6 tokens, and the microbatches of either index 2 sequences."""
    told = objective_told(FACTS)
    assert told["objective"].startswith("L = (sum of lm over tokens)")
    assert told["not_seen_here"] == ["mean_of_means in term lm", "microbatches_weigh_alike in term aux"]
    assert objective_told(TOKENS) == {}


def test_facts_are_counted_from_rows_by_each_terms_unit():
    rows = {
        row.id: row
        for row in (make_row("a", 3, units=2), make_row("b", 5, units=0), make_row("c", 4), make_row("d", 1))
    }
    plan = [[[["d"]], [["a"]]], [[["a", "b"], ["c"]], [["d"]]]]
    [facts] = facts_of_terms(plan, {"first": 1}, rows, TERMS, {}).values()
    tokens, sequences, once = facts.of
    assert (tokens.units, sequences.units, once.units) == (((2, 4), (1,)), ((1, 1), (1,)), ((1, 1), (1,)))
    assert (tokens.labels, sequences.labels, once.labels) == (((8, 4), (1,)), ((2, 1), (1,)), ((1, 1), (1,)))
    assert (tokens.positions, sequences.positions) == (((10, 4), (1,)), ((2, 1), (1,)))
    assert [of.previous_units for of in facts.of] == [3, 2, 2]
    assert facts.units == (*tokens.units, *sequences.units, *once.units)
    assert (facts.world_size, facts.microbatches, facts.accumulation) == (2, 2, 2)
    assert facts.told_units_per_rank == {"lm": [6, 1], "aux": [2, 1], "l2": [2, 1]}


def test_numbers_that_the_workload_counts_are_taken_as_told():
    rows = {"a": make_row("a", 3)}
    told = {"aux": {"first": {"units": [[0.5]], "previous_units": None}}}
    [facts] = facts_of_terms([[[["a"]]]], {"first": 0}, rows, TERMS, told).values()
    assert facts.of[1].units == facts.of[1].labels == ((F(1, 2),),)
