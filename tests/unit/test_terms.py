"""Terms: what is refused, what a row counts for each unit, and how the objective is told."""

import math
from dataclasses import replace

import numpy
import pytest

from ddp_tokens.corpora.rows import UNSUPERVISED, Criterion, Row
from ddp_tokens.errors import CorpusError, WorkloadError
from ddp_tokens.terms import (
    Term,
    as_formula,
    counted,
    in_words,
    require_denominator,
    require_terms,
    require_unit,
    units_of_row,
    with_shares,
)

LM, AUX, L2 = Term("lm", "token"), Term("aux", "sequence", 0.5), Term("l2", "once", -0.01)
# Sequences of 2, 2 and 3 positions: 2, 0 and 1 supervised.
PACKED = Row(
    "a", "train", (0,) * 7, (1, 1, UNSUPERVISED, UNSUPERVISED, 1, UNSUPERVISED, UNSUPERVISED), starts=(0, 2, 4)
)
EMPTY = Row("b", "train", (0, 0), (UNSUPERVISED,) * 2)


def test_terms_are_usable_as_tuple_and_list():
    assert require_terms([LM, AUX, L2], "mine.py") == (LM, AUX, L2)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ((), r"mine\.py: TERMS is \(\): let it be a tuple of one Term"),
        ("lm", "mine.py: TERMS is 'lm': let it be a tuple"),
        ((LM, "aux"), "let it be a tuple of one Term"),
        ((LM, AUX, Term("lm", "sample")), "mine.py: two terms are named 'lm': give each a name of its own"),
        ((Term("a/b", "token"),), "'a/b' names no term: take letters, digits and _"),
        ((Term("0", "token"),), "'0' names no term"),
        ((Term(3, "token"),), "3 names no term"),
        ((Term("lm", "row"),), "the unit of term 'lm' is 'row': take one of token, sequence, sample, document, once"),
        ((LM, Term("aux", "sample", math.nan)), "the coefficient of term 'aux' is nan: take a finite number"),
        ((LM, Term("aux", "sample", math.inf)), "the coefficient of term 'aux' is inf"),
        ((LM, Term("aux", "sample", "1")), "the coefficient of term 'aux' is '1'"),
        ((LM, Term("aux", "sample", True)), "the coefficient of term 'aux' is True"),
        ((LM, Term("aux", "sample", 0)), "the coefficient of term 'aux' is 0: .*or leave the term out"),
        ((L2,), "every term counts once, so nothing is learnt from rows"),
    ],
)
def test_terms_that_are_none_are_refused(terms, said):
    with pytest.raises(WorkloadError, match=said):
        require_terms(terms, "mine.py")


def test_a_unit_of_the_experiment_contradicts_terms():
    require_unit((LM, AUX), "token")
    require_unit((), "document")
    with pytest.raises(WorkloadError, match=r"unit is document, but .*\(lm: token, aux: sequence\): leave the setting"):
        require_unit((LM, AUX), "document")


@pytest.mark.parametrize(("unit", "packed", "empty"), [("token", 3, 0), ("sequence", 2, 0), ("sample", 1, 0)])
def test_units_of_a_row(unit, packed, empty):
    assert (units_of_row(unit, PACKED), units_of_row(unit, EMPTY)) == (packed, empty)
    assert units_of_row(unit, PACKED.unsupervised()) == 0


def test_weights_count_in_tokens_and_a_sequence_of_weight_0_counts_nothing():
    weighted = replace(PACKED, weights=(0.25, 0.5, 1.0, 1.0, 0.0, 1.0, 1.0))
    assert units_of_row("token", weighted) == 0.75
    assert units_of_row("sequence", weighted) == 1
    by_class = replace(PACKED, criterion=Criterion((1.0, 2.5)))
    assert units_of_row("token", by_class) == 7.5


def test_a_document_is_shared_by_its_rows():
    """3 supervised positions in a, 1 in c: three quarters and one, and one row of a document without any."""
    rows = {
        "a": replace(PACKED, document="x"),
        "c": replace(PACKED, id="c", labels=(1, *(UNSUPERVISED,) * 6), document="x"),
        "b": replace(EMPTY, document="y"),
    }
    shared = with_shares(rows, (LM, Term("doc", "document")))
    assert [units_of_row("document", row) for row in shared.values()] == [0.75, 0.25, 0.0]
    assert shared["a"].unsupervised().share == 0.0
    assert with_shares(rows, (LM, AUX)) is rows
    with pytest.raises(CorpusError, match="row 'a' has no field document"):
        with_shares({"a": PACKED}, (Term("doc", "document"),))


def test_a_document_in_two_splits_is_named():
    """Its mean would be made of rows that are trained on and of rows that are not."""
    rows = {"a": replace(PACKED, document="x"), "b": replace(PACKED, id="b", split="test", document="x")}
    assert with_shares(rows, (LM, AUX)) is rows
    with pytest.raises(
        CorpusError,
        match=r"^document 'x' has rows in the splits train and test \(row 'b'\), and with a term per document all rows "
        "of a document count together: give them one split$",
    ):
        with_shares(rows, (LM, Term("doc", "document")))


def test_a_microbatch_counts_each_term():
    assert counted((LM, AUX, L2), [PACKED, EMPTY, PACKED]) == (6, 4, 1)
    assert counted((LM, AUX, L2), []) == (0, 0, 1)


def test_a_workload_may_count_a_term_itself():
    assert counted((LM, AUX, L2), [PACKED, EMPTY], lambda row: {"aux": len(row.tokens) / 2}) == (3, 4.5, 1)


class Tracked(float):
    requires_grad = True


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            {"aux": -1},
            "^denominators, row 'a', term 'aux': the denominator is -1, where a number of units, or a sum of weights, "
            "is at least 0 and finite: count units in the row$",
        ),
        ({"aux": math.nan}, "the denominator is nan"),
        ({"l2": 1}, "denominators counts 'l2' of row 'a': it may count lm, aux and nothing else"),
        ({"what": 1}, "denominators counts 'what'"),
        (
            3,
            "^denominators returns a int for row 'a': let it return a mapping from the name of a term \\(lm, aux\\)",
        ),
        (None, "^denominators returns None for row 'a'"),
        ({"aux": None}, "the denominator is None, no number: count units in the row$"),
        ({"aux": "3"}, "the denominator is a str, no number"),
        ({"aux": numpy.array([1.0, 2.0])}, "the denominator is a ndarray, no number"),
        ({"aux": Tracked(1)}, r"depends on the model's weights \(it requires grad\)"),
    ],
)
def test_numbers_that_count_nothing_are_refused(found, said):
    with pytest.raises(WorkloadError, match=said):
        counted((LM, AUX, L2), [PACKED], lambda row: found)


def test_a_denominator_of_0_is_a_number():
    assert require_denominator(0, "here", "do this") == 0


@pytest.mark.parametrize("number", [2, 2.0, numpy.int64(2), numpy.float32(2), numpy.array([2.0])])
def test_a_number_of_numpy_is_one(number):
    assert require_denominator(number, "here", "do this") == 2
    assert counted((LM, AUX, L2), [PACKED], lambda row: {"aux": number})[1] == 2


def test_whether_a_row_counts_is_a_number_in_denominators_only():
    assert counted((LM, AUX, L2), [PACKED, PACKED], lambda row: {"aux": True})[1] == 2
    with pytest.raises(WorkloadError, match=r"^here is a bool, no number: do this$"):
        require_denominator(True, "here", "do this")


def test_the_objective_in_words_and_as_a_formula():
    assert in_words((LM,)) == "the loss is the mean of 'lm' over all tokens of the window"
    assert in_words((LM, AUX, L2)) == (
        "the loss is the sum of the mean of 'lm' over all tokens of the window, 0.5 times the mean of 'aux' over all "
        "sequences of the window and -0.01 times 'l2', which counts once per update, whatever the ranks and "
        "microbatches"
    )
    assert as_formula((LM, AUX, L2)) == (
        "L = (sum of lm over tokens) / (number of tokens) + 0.5 * (sum of aux over sequences) / (number of sequences) "
        "- 0.01 * l2"
    )
