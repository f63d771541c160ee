import json

from ddp_tokens.corpora.rows import Row, supervised, supervised_in
from tests.helpers import make_row


def test_only_labels_other_than_minus_100_are_units():
    row = Row("a", "train", (3, 1, 2), (0, -100, 1))
    assert supervised(row) == 2
    assert supervised_in([row, make_row("b", 4)]) == 6
    assert supervised_in([]) == 0


def test_an_emptied_row_keeps_its_tokens():
    row = Row("a", "train", (3, 1, 2), (0, -100, 1))
    assert row.unsupervised() == Row("a", "train", (3, 1, 2), (-100, -100, -100))
    assert supervised(row.unsupervised()) == 0


def test_a_row_survives_its_record():
    row = Row("a", "train", (3, 1), (0, -100))
    assert Row.from_record(row.record()) == row


def test_a_text_is_in_the_record_where_there_is_one():
    silent = Row("a", "train", (3, 1), (0, -100))
    assert silent.record() == {"id": "a", "split": "train", "tokens": (3, 1), "labels": (0, -100)}
    spoken = Row("a", "train", (3, 1), (0, -100), "They sleep.")
    assert spoken.record() == silent.record() | {"text": "They sleep."}
    assert Row.from_record(silent.record()).text is None


def test_a_text_survives_its_record():
    row = Row("a", "train", (3, 1), (0, -100), "They sleep.")
    assert Row.from_record(json.loads(json.dumps(row.record()))) == row
    assert row.unsupervised().text == "They sleep."
