"""Windows of whole documents."""

from collections import Counter

import pytest

from ddp_tokens.corpora.rows import UNSUPERVISED, Row
from ddp_tokens.corpora.training_rows import TrainingRows
from ddp_tokens.document_plan import make_document_plan, require_whole_documents, whole_documents
from ddp_tokens.errors import PlanError

SIZES = {"a": 1, "b": 5, "c": 2, "d": 9, "e": 3}
ROWS = [
    Row(f"{name}{index}", "train", (0,), (0,), document=name)
    for index in range(9)
    for name, n in SIZES.items()
    if index < n
]


def plan_of(rows=ROWS, **changes):
    how = {"seed": 3, "steps": 12, "world_size": 2, "accumulation": 2, "batch": 2} | changes
    return list(make_document_plan(TrainingRows(rows), **how))


def rows_in(window):
    return [row for of_rank in window for microbatch in of_rank for row in microbatch]


def test_every_window_holds_documents_as_a_whole():
    for window in plan_of():
        held = Counter(row[0] for row in rows_in(window))
        assert held == {name: SIZES[name] for name in held}
        assert len(rows_in(window)) <= 8 or len(held) == 1, "2 x 2 x 2 rows, or one document that is longer"


def test_an_epoch_holds_every_document_once_in_an_order_of_its_own():
    plan = plan_of(steps=40)
    order = [name for window in plan for name in dict.fromkeys(row[0] for row in rows_in(window))]
    epochs = [order[start : start + 5] for start in range(0, 40, 5)]
    assert all(sorted(epoch) == list(SIZES) for epoch in epochs if len(epoch) == 5)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_ranks_differ_by_a_row_at_most_and_then_in_microbatches():
    shapes = [[[len(batch) for batch in of_rank] for of_rank in window] for window in plan_of(steps=40)]
    rows = [[sum(of_rank) for of_rank in window] for window in shapes]
    assert all(max(window) - min(window) <= 1 for window in rows)
    assert any(len(window[0]) != len(window[1]) for window in shapes), "nine rows are 5 and 4: 3 and 2 microbatches"
    assert any(len({row[0] for row in rows_in([of_rank])} & {"d"}) for window in plan_of() for of_rank in window)


def test_a_rank_without_a_row_has_an_empty_microbatch():
    assert plan_of([ROWS[0]], steps=1) == [[[["a0"]], [[]]]]


def test_the_seed_decides():
    assert plan_of() == plan_of()
    assert plan_of() != plan_of(seed=4)


def test_rows_without_a_document_are_refused():
    with pytest.raises(PlanError, match=r"^sharding by_document needs a field document in every row"):
        plan_of([*ROWS, Row("x", "train", (0,), (0,))])


def test_a_window_without_a_supervised_unit_is_refused():
    with pytest.raises(PlanError, match=r"^window 1 of the plan, from row 'x' on, holds no supervised token"):
        plan_of([Row("x", "train", (0,), (UNSUPERVISED,), document="x")])


def test_a_document_that_is_split_over_windows_is_named():
    training = TrainingRows(ROWS)
    windows = [[[0], [5]], [[1], [2, 6, 9]]]
    texts = [training.id(index) for window in windows for own in window for index in own]
    assert texts[:2] == ["a0", "b1"]
    with pytest.raises(
        PlanError,
        match=r"^window 1 holds 1 of the 5 rows of document 'b', and with unit document all rows of a document belong "
        "into one window: set sharding to by_document$",
    ):
        list(whole_documents(iter(windows), training))
    whole = [[[0], [index for index in range(len(training)) if training.id(index)[0] == "c"]]]
    assert list(whole_documents(iter(whole), training)) == whole


def test_a_term_per_document_needs_them_whole_as_well():
    document_of = {row.id: row.document for row in ROWS}
    require_whole_documents(plan_of(), document_of)
    with pytest.raises(
        PlanError,
        match=r"^window 2 holds 1 of the 2 rows of document 'c', and with a term per document all rows of a document "
        "belong into one window: set sharding to by_document$",
    ):
        require_whole_documents([[[["a0"]], [[]]], [[["c0"]], [["a0"]]], [[["c1"]], [[]]]], document_of)
