"""A user's own rows from a JSONL file, read in one pass and validated row by row."""

import json
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

from ddp_tokens.config import OwnRows
from ddp_tokens.corpora.known_ids import KnownIds
from ddp_tokens.corpora.rows import SPLITS, UNSUPERVISED, Row, next_tokens
from ddp_tokens.errors import CorpusError

LARGEST_ID = 9_999_999
FIELDS = ("id", "split", "tokens", "labels")


def read(corpus: OwnRows) -> Iterator[Row]:
    """Tokens are integers from 0, or strings, which are numbered in the order in which they first appear. Ids count
    rows of an embedding table, so they end at LARGEST_ID. Blank lines are skipped.

    Raises CorpusError, naming file, line and id: broken JSON, a missing or unknown field, an unknown split, a duplicate
    id, no token, labels that are not one per token, a token or label of a wrong type or out of range.

    With `labels: next_token` the rows have none: each token is labelled with the next, the last with none.
    """
    return _read(corpus, {})


def vocabulary(corpus: OwnRows) -> list[str] | None:
    """The strings behind the tokens, by number; None where the tokens are integers.

    Raises CorpusError as `read` does.
    """
    numbers: dict[str, int] = {}
    for _ in _read(corpus, numbers):
        if not numbers:
            return None
    return list(numbers)


def _read(corpus: OwnRows, numbers: dict[str, int]) -> Iterator[Row]:
    """Each string that is a token gets its number in `numbers`."""
    known = KnownIds()
    kinds: set[str] = set()
    for where, record in _records(corpus.path, fields_of(corpus)):
        try:
            row_id = _checked_id(record, fields_of(corpus))
            if known.add(row_id) and _stands_before(where, row_id, corpus):
                raise ValueError(f"duplicate id '{row_id}'; every row needs its own")
            if record["split"] not in SPLITS:
                raise ValueError(f"split {record['split']!r} is not one of {', '.join(SPLITS)} (id '{row_id}')")
            where = f"{where}, id '{row_id}'"
            tokens = _checked_tokens(record["tokens"], numbers, kinds)
            labels = _labels(record, tokens, corpus)
        except ValueError as error:
            raise CorpusError(f"{where}: {error}") from None
        yield Row(row_id, record["split"], tokens, labels)
    if not known:
        raise CorpusError(f"{corpus.path} holds no row")


def _records(path: str, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with open(path, encoding="utf-8-sig") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise CorpusError(f"{where}: broken JSON ({error})") from None
                if not isinstance(record, dict):
                    raise CorpusError(f"{where}: a row must be a JSON object with the fields {', '.join(fields)}")
                yield where, record
    except OSError as error:
        raise CorpusError(f"corpus.path {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8 text: {error}") from None


def fields_of(corpus: OwnRows) -> tuple[str, ...]:
    return FIELDS if corpus.labels == "given" else FIELDS[:-1]


def _labels(record: dict[str, Any], tokens: tuple[int, ...], corpus: OwnRows) -> tuple[int, ...]:
    if corpus.labels == "given":
        return _checked_labels(record["labels"], len(tokens), corpus.classes)
    return next_tokens(tokens)


def _checked_id(record: dict[str, Any], fields: Sequence[str]) -> str:
    row_id = record.get("id")
    if not isinstance(row_id, str) or not row_id:
        raise ValueError(f"the field id must be a non-empty string, not {row_id!r}")
    missing = [name for name in fields if name not in record]
    unknown = sorted(set(record) - set(fields))
    if missing or unknown:
        problem = f"field '{missing[0]}' is missing" if missing else f"unknown field '{unknown[0]}'"
        if unknown == ["labels"] and not missing:
            problem += ", since corpus.labels says next_token: leave one of them out"
        raise ValueError(f"{problem} (id '{row_id}')")
    return row_id


def _stands_before(where: str, row_id: str, corpus: OwnRows) -> bool:
    """Whether an earlier row than the one at `where` has this id."""
    earlier = takewhile(lambda each: each[0] != where, _records(corpus.path, fields_of(corpus)))
    return any(record["id"] == row_id for _, record in earlier)


def _checked_tokens(tokens: Any, numbers: dict[str, int], kinds: set[str]) -> tuple[int, ...]:
    if not isinstance(tokens, list):
        raise ValueError(f"tokens must be a list, not {tokens!r}")
    if not tokens:
        raise ValueError("the row has no token; tokens must be a list of at least one")
    strings = all(isinstance(token, str) for token in tokens)
    for token in tokens:
        if not strings and (not _is_integer(token) or not 0 <= token <= LARGEST_ID):
            raise ValueError(f"token {token!r} is not an integer from 0 to {LARGEST_ID:,}, nor are all tokens strings")
    kinds.add("strings" if strings else "integers")
    if len(kinds) > 1:
        here, before = ("strings", "integers") if strings else ("integers", "strings")
        raise ValueError(f"tokens are {here} here and {before} in an earlier row; use one kind")
    return tuple(numbers.setdefault(token, len(numbers)) for token in tokens) if strings else tuple(tokens)


def _checked_labels(labels: Any, number_of_tokens: int, classes: int | None) -> tuple[int, ...]:
    if not isinstance(labels, list) or len(labels) != number_of_tokens:
        number = len(labels) if isinstance(labels, list) else "no"
        raise ValueError(f"{number} labels for {number_of_tokens} tokens; one label per token is needed")
    for label in labels:
        inside = _is_integer(label) and 0 <= label < (classes or LARGEST_ID + 1)
        if not inside and not (_is_integer(label) and label == UNSUPERVISED):
            allowed = f"0 to {classes - 1 if classes else LARGEST_ID:,}"
            raise ValueError(f"label {label!r} is outside the classes, {allowed} (or {UNSUPERVISED}: not supervised)")
    return tuple(labels)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
