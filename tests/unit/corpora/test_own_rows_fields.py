"""What rows may hold besides tokens and labels, each by hand."""

import re

import pytest

from ddp_tokens.config import OwnRows
from ddp_tokens.corpora.lock import Shape, read_corpus, shape_in, write_corpus
from ddp_tokens.corpora.own_rows import read
from ddp_tokens.corpora.rows import longest_sequence, next_tokens, supervised
from ddp_tokens.errors import CorpusError
from tests.helpers import record, write_lines

X = -100
FIVE = {"tokens": (5, 6, 7, 8, 9), "labels": (0, 1, 2, 3, 4)}


def read_one(tmp_path, labels="given", **fields):
    """One row of five tokens, of which `fields` are besides."""
    line = record("a", **FIVE) | fields
    if labels == "next_token":
        del line["labels"]
    [row] = read(OwnRows(path=str(write_lines(tmp_path / "mine.jsonl", line)), labels=labels))
    return row


def test_a_row_without_these_fields_is_as_before(tmp_path):
    row = read_one(tmp_path)
    assert (row.weights, row.document, row.starts, row.units) == (None, None, None, None)
    assert set(row.record()) == {"id", "split", "tokens", "labels"}


def test_a_field_that_is_null_is_a_field_that_is_not_there(tmp_path):
    """As in a table, where every row has every column."""
    fields = dict.fromkeys(("weights", "document", "starts", "prompt"))
    assert read_one(tmp_path, **fields) == read_one(tmp_path)


def test_weights_are_read_as_fractions(tmp_path):
    row = read_one(tmp_path, weights=[1, 0, 0.5, 2.25, 0.0])
    assert row.weights == (1.0, 0.0, 0.5, 2.25, 0.0)
    assert {type(weight) for weight in row.weights} == {float}
    assert supervised(row) == 3.75


def test_a_document_is_a_name(tmp_path):
    assert read_one(tmp_path, document="chapter 1").document == "chapter 1"


def test_a_packed_row_says_where_its_sequences_start(tmp_path):
    row = read_one(tmp_path, starts=[0, 2, 3])
    assert row.starts == (0, 2, 3)
    assert row.labels == FIVE["labels"]
    assert longest_sequence(row) == 2  # tokens 0 and 1, 2, 3 and 4


def test_no_token_of_a_packed_row_is_labelled_with_the_next_sequence(tmp_path):
    """5 6 | 7 | 8 9: only 6 and 9 come next in their own sequence."""
    row = read_one(tmp_path, "next_token", starts=[0, 2, 3])
    assert row.labels == (6, X, X, 9, X)
    assert next_tokens(row.tokens) == (6, 7, 8, 9, X)


@pytest.mark.parametrize(
    ("prompt", "labels"),
    [
        (0, (6, 7, 8, 9, X)),
        (1, (6, 7, 8, 9, X)),  # the prompt is 5, and 6 is the first token of the answer
        (2, (X, 7, 8, 9, X)),
        (4, (X, X, X, 9, X)),
        (5, (X, X, X, X, X)),
    ],
)
def test_the_last_token_of_a_prompt_predicts_the_first_of_the_answer(tmp_path, prompt, labels):
    """Prompt n: the labels at 0 to n - 2 are tokens 1 to n - 1, all of the prompt. That at n - 1 is token n."""
    assert read_one(tmp_path, "next_token", prompt=prompt).labels == labels


@pytest.mark.parametrize(("prompt", "labels"), [(0, (0, 1, 2, 3, 4)), (1, (X, 1, 2, 3, 4)), (5, (X,) * 5)])
def test_labels_that_are_given_belong_to_the_token_at_their_place(tmp_path, prompt, labels):
    assert read_one(tmp_path, prompt=prompt).labels == labels


def test_each_sequence_of_a_packed_row_has_a_prompt_of_its_own(tmp_path):
    """5 6 7 | 8 9, of which 5 6 are a prompt, and all of 8 9."""
    assert read_one(tmp_path, "next_token", starts=[0, 3], prompt=[2, 2]).labels == (X, 7, X, X, X)
    assert read_one(tmp_path, "next_token", starts=[0, 3], prompt=[0, 1]).labels == (6, 7, X, 9, X)
    assert read_one(tmp_path, starts=[0, 3], prompt=[1, 1]).labels == (X, 1, 2, X, 4)


BAD_FIELDS = {
    "negative weight": ({"weights": [1, -0.5, 1, 1, 1]}, "weight -0.5 at position 1 is not a number from 0 to 1e+15"),
    "NaN as weight": ({"weights": [1, 1, 1, float("nan"), 1]}, "weight nan at position 3 is not a number"),
    "endless weight": ({"weights": [float("inf"), 1, 1, 1, 1]}, "weight inf at position 0 is not a number"),
    "weight beyond fractions": ({"weights": [1, 1, 1, 1, 10**400]}, "at position 4 is not a number from 0 to 1e+15"),
    "bool as weight": ({"weights": [True, 1, 1, 1, 1]}, "weight True at position 0 is not a number"),
    "string as weight": ({"weights": [1, 1, "x", 1, 1]}, "weight 'x' at position 2 is not a number"),
    "null as weight": ({"weights": [1, None, 1, 1, 1]}, "weight None at position 1 is not a number"),
    "too few weights": ({"weights": [1, 1]}, "2 weights for 5 tokens; one weight per token is needed"),
    "one weight for all": ({"weights": 0.5}, "no weights for 5 tokens; one weight per token is needed"),
    "empty document": ({"document": ""}, "the field document must be a non-empty string, not ''"),
    "number as document": ({"document": 3}, "the field document must be a non-empty string, not 3"),
    "starts are no list": ({"starts": 0}, "starts must be a list of the positions at which sequences start, not 0"),
    "bool as start": ({"starts": [False]}, "starts must be a list of the positions at which sequences start"),
    "fraction as start": ({"starts": [0, 1.0]}, "starts must be a list of the positions at which sequences start"),
    "no start": ({"starts": []}, "starts must begin with 0, where the row does, not []"),
    "first start": ({"starts": [1, 3]}, "starts must begin with 0, where the row does, not [1, 3]"),
    "starts that stay": ({"starts": [0, 3, 3]}, "starts must increase, and 3 comes after 3"),
    "starts that fall": ({"starts": [0, 3, 1]}, "starts must increase, and 1 comes after 3"),
    "start outside": ({"starts": [0, 5]}, "starts names position 5 in a row of 5 tokens; the first is 0"),
    "prompt too long": ({"prompt": 6}, "prompt 6 is not a number from 0 to 5, the tokens of the row"),
    "negative prompt": ({"prompt": -1}, "prompt -1 is not a number from 0 to 5, the tokens of the row"),
    "bool as prompt": ({"prompt": True}, "prompt must be the number of tokens at the start whose labels do not count"),
    "list as prompt": ({"prompt": [2]}, "prompt must be the number of tokens at the start whose labels do not count"),
    "number for all sequences": (
        {"starts": [0, 3], "prompt": 2},
        "prompt of a packed row must be a list with a number for each of its 2 sequences, not 2",
    ),
    "too few prompts": (
        {"starts": [0, 3], "prompt": [2]},
        "prompt of a packed row must be a list with a number for each of its 2 sequences, not [2]",
    ),
    "prompt longer than its sequence": (
        {"starts": [0, 3], "prompt": [1, 3]},
        "prompt 3 is not a number from 0 to 2, the tokens of sequence 1 (the first is 0)",
    ),
    "string in prompts": ({"starts": [0, 3], "prompt": [1, "x"]}, "prompt 'x' is not a number from 0 to 2"),
}


@pytest.mark.parametrize(("fields", "problem"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_a_bad_field_is_refused_by_file_line_and_id(tmp_path, fields, problem):
    path = write_lines(tmp_path / "mine.jsonl", record("a"), record("b", **FIVE) | fields)
    with pytest.raises(CorpusError) as refusal:
        list(read(OwnRows(path=str(path))))
    assert str(refusal.value).startswith(f"{path}, line 2, id 'b': ")
    assert problem in str(refusal.value)


@pytest.mark.parametrize("name", ["split", "tokens", "labels"])
def test_a_needed_field_that_is_null_is_named(tmp_path, name):
    path = write_lines(tmp_path / "mine.jsonl", record("a") | {name: None})
    with pytest.raises(CorpusError, match=re.escape(f"{path}, line 1: field '{name}' is null (id 'a')")):
        list(read(OwnRows(path=str(path))))


def test_json_that_is_nested_too_deeply_is_broken(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", "[" * 100_000)
    with pytest.raises(CorpusError, match=r"mine\.jsonl, line 1: broken JSON"):
        list(read(OwnRows(path=str(path))))


def test_the_corpus_holds_what_the_rows_say(tmp_path):
    """Weights, documents and starts as they are; the prompt in the labels. Positions: the longest sequence, 3."""
    lines = [
        record("a", **FIVE) | {"starts": [0, 3], "prompt": [1, 0], "weights": [1, 1, 0.5, 0, 1]},
        record("b", "test") | {"document": "d"},
    ]
    corpus = OwnRows(path=str(write_lines(tmp_path / "mine.jsonl", *lines)))
    paths = tmp_path / "rows.jsonl", tmp_path / "lock.json"
    write_corpus(read(corpus), corpus, *paths)
    read_back, lock = read_corpus(*paths)
    assert list(read_back.values()) == list(read(corpus))
    assert read_back["a"].labels == (X, 1, 2, 3, 4)
    assert supervised(read_back["a"]) == 2.5  # 1 + 0.5 + 0 + 1
    assert lock["counts"]["train"] == {"rows": 1, "tokens": 5, "supervised": 3}
    assert shape_in(lock) == Shape(vocabulary=10, classes=5, positions=3)
