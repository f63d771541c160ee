from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ddp_tokens.corpora.rows import Row
from ddp_tokens.corpora.training_rows import ENCODING, TrainingRows, sorted_indices
from tests.helpers import make_row


def test_rows_by_index():
    """Of a the first two of five count."""
    rows = TrainingRows([make_row("a", 5, units=2), make_row("a longer id", 1)])
    rows.add(make_row("b", 3))
    assert len(rows) == 3
    assert [rows.id(index) for index in range(3)] == ["a", "a longer id", "b"]
    assert rows.lengths.tolist() == [5, 1, 3]
    assert rows.supervised.tolist() == [2, 1, 3]
    assert rows.texts == {}


def test_the_length_of_an_image_is_that_of_its_labels():
    rows = TrainingRows([Row("a", "train", (), (3,), index=7)])
    assert (rows.lengths[0], rows.supervised[0]) == (1, 1)


def test_texts_are_kept_where_there_are_any():
    rows = TrainingRows([make_row("a", 2), Row("b", "train", (0,), (0,), "She writes.")])
    assert rows.texts == {1: "She writes."}


# What JSON can hold: any code points, among them halves of surrogate pairs.
IDS = st.lists(st.text(st.characters(exclude_categories=()), min_size=1), unique=True, max_size=20)


@given(IDS)
def test_any_id_comes_back(ids):
    rows = TrainingRows(make_row(row_id, 1) for row_id in ids)
    assert [rows.id(index) for index in range(len(rows))] == ids


@given(IDS)
def test_the_bytes_of_ids_sort_as_the_ids_do(ids):
    assert sorted(ids) == sorted(ids, key=lambda row_id: row_id.encode(*ENCODING))


def test_rows_in_order_of_length_then_id():
    rows = TrainingRows([make_row("b", 2), make_row("c", 1), make_row("a", 2), make_row("d", 9, units=0)])
    assert [rows.id(index) for index in rows.in_order_of_length()] == ["c", "a", "b", "d"]


@given(st.lists(st.integers(), unique=True, max_size=60), st.integers(8, 30))
def test_indices_are_sorted_by_their_keys_whatever_the_size_of_a_part(keys, part):
    assert list(sorted_indices(len(keys), keys.__getitem__, part)) == sorted(range(len(keys)), key=keys.__getitem__)


def test_few_keys_are_in_memory_at_once():
    """Of 100,000, drawn in an order of their own, parts of about 1000 are sorted."""
    keys = Random(5).sample(range(10**9), 100_000)
    alive, most = set(), 0

    class Key(int):
        def __init__(self, _):
            nonlocal most
            alive.add(id(self))
            most = max(most, len(alive))

        def __del__(self):
            alive.discard(id(self))

    order = sorted_indices(len(keys), lambda index: Key(keys[index]), 1000)
    assert [keys[index] for index in order] == sorted(keys)
    assert 800 < most < 5000
