"""A user's own rows, read in one pass and validated row by row. `own_sources` knows the formats."""

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from ddp_tokens.config import OwnRows
from ddp_tokens.corpora.known_ids import KnownIds
from ddp_tokens.corpora.own_fields import (
    NEEDED,
    checked_document,
    checked_id,
    checked_labels,
    checked_prompts,
    checked_starts,
    checked_tokens,
    checked_weights,
    without_prompts,
)
from ddp_tokens.corpora.own_sources import records
from ddp_tokens.corpora.rows import SPLITS, Row, next_tokens
from ddp_tokens.errors import CorpusError


def read(corpus: OwnRows) -> Iterator[Row]:
    """Tokens are integers from 0, or strings, which are numbered in the order in which they first appear. Ids count
    rows of an embedding table, so they end at LARGEST_ID.

    Raises CorpusError, naming file, line or row, and id: what `own_sources.records` refuses, a missing or unknown
    field, an unknown split, a duplicate id, no token, labels or weights that are not one per token, any field of a
    wrong type or out of range.

    With `labels: next_token` rows have no labels: each token is labelled with the next, the last of a sequence with
    none. Labels inside a prompt are taken away; the prompt itself is not kept.
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
    needed = fields_of(corpus)
    for where, record in records(corpus.path, needed):
        try:
            row_id = checked_id(record, needed)
            if known.add(row_id) and _stands_before(where, row_id, corpus):
                raise ValueError(f"duplicate id '{row_id}'; every row needs its own")
            if record["split"] not in SPLITS:
                raise ValueError(f"split {record['split']!r} is not one of {', '.join(SPLITS)} (id '{row_id}')")
            where = f"{where}, id '{row_id}'"
            row = _row(record, checked_tokens(record["tokens"], numbers, kinds), corpus)
        except ValueError as error:
            raise CorpusError(f"{where}: {error}") from None
        yield row
    if not known:
        raise CorpusError(f"{corpus.path} holds no row")


def fields_of(corpus: OwnRows) -> tuple[str, ...]:
    """Those that every row needs."""
    return NEEDED if corpus.labels == "given" else NEEDED[:-1]


def _row(record: dict[str, Any], tokens: tuple[int, ...], corpus: OwnRows) -> Row:
    length, shifted = len(tokens), corpus.labels == "next_token"
    labels = None if shifted else checked_labels(record["labels"], length, corpus.classes)
    weights = checked_weights(record.get("weights"), length)
    document = checked_document(record.get("document"))
    starts = checked_starts(record.get("starts"), length)
    prompts = checked_prompts(record.get("prompt"), starts, length)
    if labels is None:
        labels = next_tokens(tokens, starts)
    if prompts:
        labels = without_prompts(labels, prompts, starts, shifted)
    return Row(record["id"], record["split"], tokens, labels, weights=weights, document=document, starts=starts)


def _stands_before(where: str, row_id: str, corpus: OwnRows) -> bool:
    """Whether an earlier row than the one at `where` has this id."""
    earlier = takewhile(lambda each: each[0] != where, records(corpus.path, fields_of(corpus)))
    return any(record["id"] == row_id for _, record in earlier)
