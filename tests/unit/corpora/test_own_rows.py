import json
import re

import pytest

from ddp_tokens.config import OwnRows
from ddp_tokens.corpora import known_ids, rows, vocabulary
from ddp_tokens.corpora.own_rows import read
from ddp_tokens.errors import CorpusError
from tests.helpers import record, write_lines


def read_lines(tmp_path, *lines, classes=None):
    return list(read(OwnRows(path=str(write_lines(tmp_path / "mine.jsonl", *lines)), classes=classes)))


def without(row, name):
    return {key: value for key, value in row.items() if key != name}


def test_reads_rows_in_file_order(tmp_path):
    read_back = read_lines(tmp_path, record("b", "test", (5,), (-100,)), record("a", "validation", (0, 2), (1, 0)))
    assert [(row.id, row.split, row.tokens, row.labels) for row in read_back] == [
        ("b", "test", (5,), (-100,)),
        ("a", "validation", (0, 2), (1, 0)),
    ]


def test_a_corpus_with_a_path_is_read_from_it(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", record("a"))
    assert [row.id for row in rows(OwnRows(path=str(path)), seed=0)] == ["a"]


def test_string_tokens_are_numbered_in_the_order_in_which_they_first_appear(tmp_path):
    first, second = read_lines(
        tmp_path, record("a", tokens=("the", "cat"), labels=(0, 0)), record("b", tokens=("a", "the"), labels=(0, 0))
    )
    assert first.tokens == (0, 1)
    assert second.tokens == (2, 0)


def next_token_lines(tmp_path, *lines):
    return OwnRows(path=str(write_lines(tmp_path / "mine.jsonl", *lines)), labels="next_token")


def test_the_label_of_a_token_can_be_the_one_that_comes_next(tmp_path):
    """n tokens supervise n - 1: three, and none in a row of one."""
    lines = [without(record(row_id, tokens=tokens), "labels") for row_id, tokens in (("a", (7, 3, 3, 0)), ("b", (5,)))]
    first, second = read(next_token_lines(tmp_path, *lines))
    assert (first.tokens, first.labels) == ((7, 3, 3, 0), (3, 3, 0, -100))
    assert (second.tokens, second.labels) == ((5,), (-100,))


def test_words_are_labelled_with_the_number_of_the_next_word(tmp_path):
    line = without(record("a", tokens=("to", "be", "or", "not", "to", "be")), "labels")
    corpus = next_token_lines(tmp_path, line)
    [row] = read(corpus)
    assert (row.tokens, row.labels) == ((0, 1, 2, 3, 0, 1), (1, 2, 3, 0, 1, -100))
    assert vocabulary(corpus, seed=0) == ["to", "be", "or", "not"]


def test_labels_that_are_given_where_they_follow_from_the_tokens_are_refused(tmp_path):
    message = r"unknown field 'labels', since corpus.labels says next_token: leave one of them out \(id 'a'\)"
    with pytest.raises(CorpusError, match=message):
        list(read(next_token_lines(tmp_path, record("a"))))
    with pytest.raises(CorpusError, match=r"with the fields id, split, tokens$"):
        list(read(next_token_lines(tmp_path, "[1]")))


BAD_ROWS = {
    "no token": (record("b", tokens=(), labels=()), "the row has no token"),
    "tokens are no list": (record("b") | {"tokens": "ab"}, "tokens must be a list"),
    "bool as token": (record("b", tokens=(True, 1)), "token True is not an integer from 0"),
    "negative token": (record("b", tokens=(-1, 1)), "token -1 is not an integer from 0"),
    "fraction as token": (record("b", tokens=(0.5, 1)), "token 0.5 is not an integer from 0"),
    "mixed tokens": (
        record("b", tokens=("x", 1)),
        "0 to 9,999,999, nor are all tokens strings",
    ),
    "labels are too few": (record("b", labels=(0,)), "1 labels for 2 tokens"),
    "labels are too many": (record("b", labels=(0, 1, 0)), "3 labels for 2 tokens"),
    "labels are no list": (record("b") | {"labels": 0}, "no labels for 2 tokens"),
    "token beyond any table": (
        record("b", tokens=(10**9, 1)),
        "token 1000000000 is not an integer from 0 to",
    ),
    "label beyond any table": (record("b", labels=(2**70, 0)), "is outside the classes, 0 to 9,999,999"),
    "bool as label": (record("b", labels=(True, 0)), "label True is outside the classes"),
    "negative label": (record("b", labels=(-1, 0)), "label -1 is outside the classes, 0 to 9,999,999"),
    "string as label": (record("b", labels=("x", 0)), "label 'x' is outside the classes"),
    "-100 as a fraction": (record("b", labels=(-100.0, 0)), "label -100.0 is outside the classes"),
    "duplicate id": (record("a"), "duplicate id 'a'"),
    "wrong split": (record("b", split="dev"), "split 'dev' is not one of train, validation, test (id 'b')"),
    "missing field": (without(record("b"), "labels"), "field 'labels' is missing (id 'b')"),
    "unknown field": (record("b") | {"weight": 1}, "unknown field 'weight' (id 'b')"),
    "missing id": (without(record("b"), "id"), "the field id must be a non-empty string, not None"),
    "empty id": (record(""), "the field id must be a non-empty string, not ''"),
    "number as id": (record(7), "the field id must be a non-empty string, not 7"),
}


@pytest.mark.parametrize(("row", "problem"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_a_bad_row_is_refused_by_file_line_and_id(tmp_path, row, problem):
    with pytest.raises(CorpusError, match=re.escape(problem)) as refusal:
        read_lines(tmp_path, record("a"), row)
    message = str(refusal.value)
    assert f"{tmp_path}/mine.jsonl, line 2" in message
    if isinstance(row.get("id"), str):
        assert f"id '{row['id']}'" in message or not row["id"]


def test_ids_that_only_share_their_hash_are_no_duplicates(tmp_path, monkeypatch):
    """All of them share it here, so that each is looked for among the rows above it."""
    monkeypatch.setattr(known_ids, "hash", lambda row_id: 7, raising=False)
    path = tmp_path / "mine.jsonl"
    write_lines(path, record("a"), "", record("b"), record("c"))
    assert [row.id for row in read(OwnRows(path=str(path)))] == ["a", "b", "c"]
    write_lines(path, record("a"), "", record("b"), record("c"), record("b"))
    with pytest.raises(CorpusError) as refusal:
        list(read(OwnRows(path=str(path))))
    assert str(refusal.value) == f"{path}, line 5: duplicate id 'b'; every row needs its own"


def test_of_two_faults_the_first_is_told(tmp_path):
    """A duplicate before broken JSON, and a wrong split of a row whose id is a duplicate too."""
    with pytest.raises(CorpusError, match="line 2: duplicate id 'a'"):
        read_lines(tmp_path, record("a"), record("a"), "{")
    with pytest.raises(CorpusError, match="line 2: duplicate id 'a'"):
        read_lines(tmp_path, record("a"), record("a", split="dev"))


def test_a_label_outside_the_given_classes_is_refused(tmp_path):
    assert read_lines(tmp_path, record("a", labels=(0, 2)), classes=3)
    with pytest.raises(
        CorpusError, match=r"mine.jsonl, line 1, id 'a': label 3 is outside the classes, 0 to 2 \(or -100"
    ):
        read_lines(tmp_path, record("a", labels=(0, 3)), classes=3)


def test_without_given_classes_any_label_from_0_is_read(tmp_path):
    [row] = read_lines(tmp_path, record("a", labels=(0, 99)))
    assert row.labels == (0, 99)


@pytest.mark.parametrize("order", [("strings", "integers"), ("integers", "strings")])
def test_rows_of_strings_and_rows_of_integers_do_not_mix(tmp_path, order):
    """String tokens are numbered from 0 too: the number 0 of one kind would be another token than that of the other."""
    kinds = {"strings": ("x", "y"), "integers": (0, 1)}
    lines = [record(f"row-{kind}", tokens=kinds[kind]) for kind in order]
    with pytest.raises(CorpusError, match=rf"line 2, id 'row-{order[1]}'.*use one kind"):
        read_lines(tmp_path, *lines)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": "b", ', "broken JSON"),
        ("[1, 2]", "a row must be a JSON object with the fields id, split, tokens, labels"),
    ],
)
def test_a_line_that_is_no_row_is_refused_with_its_number(tmp_path, line, problem):
    with pytest.raises(CorpusError, match=rf"mine\.jsonl, line 2: {problem}"):
        read_lines(tmp_path, record("a"), line)


def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path):
    path = tmp_path / "mine.jsonl"
    lines = ["", json.dumps(record("a")), "  ", json.dumps(record("b")), "", ""]
    path.write_text("\r\n".join(lines), encoding="utf-8-sig")
    assert [row.id for row in read(OwnRows(path=str(path)))] == ["a", "b"]


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(CorpusError, match=r"mine\.jsonl holds no row"):
        read_lines(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CorpusError, match=r"corpus\.path .*gone\.jsonl cannot be read: No such file"):
        list(read(OwnRows(path=str(tmp_path / "gone.jsonl"))))


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b'{"id": "caf\xe9"}\n')
    with pytest.raises(CorpusError, match=r"mine\.jsonl is not UTF-8 text"):
        list(read(OwnRows(path=str(path))))


def test_the_vocabulary_holds_the_strings_in_the_order_of_their_numbers(tmp_path):
    lines = [
        record("a", tokens=("the", "cat", "the"), labels=(0, 0, 0)),
        record("b", "test", tokens=("a", "the"), labels=(0, 0)),
    ]
    corpus = OwnRows(path=str(write_lines(tmp_path / "mine.jsonl", *lines)))
    words = vocabulary(corpus, seed=0)
    assert words == ["the", "cat", "a"]
    assert [[words[token] for token in row.tokens] for row in rows(corpus, 0)] == [line["tokens"] for line in lines]


def test_integers_have_no_vocabulary(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", record("a"), record("b", "test"))
    assert vocabulary(OwnRows(path=str(path)), seed=0) is None


@pytest.mark.parametrize("name", ["no token", "tokens are no list", "missing field", "missing id"])
def test_the_vocabulary_of_a_bad_row_is_refused_as_the_row_is(tmp_path, name):
    """It may be asked for first, before the rows are read."""
    row, problem = BAD_ROWS[name]
    strings = record("a", tokens=("x",), labels=(0,))
    path = write_lines(tmp_path / "mine.jsonl", strings, row)
    with pytest.raises(CorpusError, match=rf"mine\.jsonl, line 2.*{re.escape(problem)}"):
        vocabulary(OwnRows(path=str(path)), seed=0)
