"""What each objective makes of rows: the right weights and units by hand."""

import pytest

from ddp_tokens.corpora.objective import Objective, document_of, objective_in, weights_of_documents
from ddp_tokens.corpora.rows import UNSUPERVISED as NONE
from ddp_tokens.corpora.rows import Criterion, Row, position_weights, supervised, supervised_positions
from ddp_tokens.errors import CorpusError

# Losses of the README's example: 12 tokens at 1 each, 36 at 3 each; in sequences of 12, and of 6, 12 and 18.
SHORT = Row("short", "train", (0,) * 12, (0,) * 12, document="a")
LONG = Row("long", "train", (0,) * 36, (0,) * 36, document="b", starts=(0, 6, 18))
MORE = Row("more", "train", (0,) * 4, (0, NONE, 0, 0), document="a")


def mean_of(rows, losses):
    """sum v_i l_i / sum of units, of rows that were counted; `losses`: row id -> loss of each of its positions."""
    total = sum(weight * losses[row.id] for row in rows for weight in position_weights(row))
    return total / sum(map(supervised, rows))


def counted(unit, *rows, **criterion):
    documents = weights_of_documents(rows, Criterion(**criterion)) if unit == "document" else {}
    objective = Objective(unit, Criterion(**criterion), documents)
    return [objective.counted(row) for row in rows]


@pytest.mark.parametrize(
    ("unit", "units", "mean"),
    [
        ("token", [12, 36], 120 / 48),  # (12 * 1 + 36 * 3) / 48 = 2.5
        ("sequence", [1, 3], (1 + 3 + 3 + 3) / 4),  # of one sequence and of three: 2.5 again, by other weights
        ("sample", [1, 1], (1 + 3) / 2),  # 2.0: the mean of means is right where each row counts the same
        ("document", [1.0, 1.0], (1 + 3) / 2),
    ],
)
def test_the_readmes_example_by_each_unit(unit, units, mean):
    rows = counted(unit, SHORT, LONG)
    assert [supervised(row) for row in rows] == units
    assert mean_of(rows, {"short": 1.0, "long": 3.0}) == pytest.approx(mean, rel=1e-12)


def test_a_document_is_the_mean_over_all_of_its_rows_wherever_they_are():
    """Of document a, 12 tokens at 1 and 3 at 6: 30 / 15 = 2. Of b: 3. Each once: 2.5."""
    rows = counted("document", SHORT, LONG, MORE)
    assert [supervised(row) for row in rows] == pytest.approx([12 / 15, 1, 3 / 15])
    assert mean_of(rows, {"short": 1.0, "long": 3.0, "more": 6.0}) == pytest.approx(2.5, rel=1e-12)
    assert position_weights(rows[2]) == pytest.approx([1 / 15, 0, 1 / 15, 1 / 15])


def test_packed_sequences_count_once_each_whatever_their_length():
    [row] = counted("sequence", LONG)
    assert position_weights(row) == pytest.approx([1 / 6] * 6 + [1 / 12] * 12 + [1 / 18] * 18)
    assert counted("sample", LONG)[0].weights == pytest.approx([1 / 36] * 36)


def test_a_sequence_without_a_supervised_token_is_none():
    row = Row("half", "train", (0,) * 4, (NONE, NONE, 1, 1), starts=(0, 2))
    [one] = counted("sequence", row)
    assert supervised(one) == 1
    assert position_weights(one) == [0, 0, 0.5, 0.5]
    [none] = counted("sequence", one.raw.unsupervised())
    assert supervised(none) == 0


def test_weights_and_class_weights_are_in_the_sum_and_in_the_denominator():
    """Weights 2 and 0.5 on classes that weigh 0.5 and 3: 1 + 1.5; with losses 1 and 4 the mean is 7 / 2.5 = 2.8."""
    row = Row("w", "train", (0, 0, 0), (0, 1, NONE), weights=(2.0, 0.5, 9.0))
    [one] = counted("token", row, class_weights=(0.5, 3.0))
    assert position_weights(one) == [1.0, 1.5, 0.0]
    assert supervised(one) == 2.5
    assert sum(w * loss for w, loss in zip(position_weights(one), (1, 4, 100), strict=True)) / supervised(one) == 2.8
    [same] = counted("sequence", row, class_weights=(0.5, 3.0))
    assert position_weights(same) == pytest.approx([1 / 2.5, 1.5 / 2.5, 0])
    assert same.weights == pytest.approx((2 / 2.5, 0.5 / 2.5, 0)), "the class weight is the loss's own"
    assert supervised(same) == 1


def test_a_position_of_weight_zero_is_not_supervised():
    row = Row("w", "train", (0, 0), (0, 1), weights=(0.0, 1.0))
    assert supervised_positions(row) == 1
    assert supervised_positions(counted("token", row, class_weights=(1.0, 0.0))[0]) == 0
    assert supervised(counted("sequence", row, class_weights=(1.0, 0.0))[0]) == 0


def test_the_mean_over_tokens_leaves_rows_as_they_are():
    [row] = counted("token", SHORT)
    assert (row.weights, row.units) == (None, None)
    assert isinstance(supervised(row), int)
    assert Objective().record() == {}


def test_a_row_without_its_document_is_named():
    with pytest.raises(CorpusError, match=r"^row 'x' has no field document, which unit document needs: give it to"):
        document_of(Row("x", "train", (0,), (0,)))


def test_the_lock_gives_the_objective_back():
    objective = Objective("document", Criterion((1.0, 0.5), 0.1), {"a": 15.0, "b": 36.0})
    lock = {"objective": {**objective.record()["objective"], "class_weights": [1.0, 0.5]}}
    again = objective_in(lock, [SHORT, LONG, MORE])
    assert again == objective
    assert objective_in({}, ()) == Objective()
    assert objective_in(lock, (), "sequence").unit == "sequence"
