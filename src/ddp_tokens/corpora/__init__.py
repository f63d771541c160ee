"""Rows of data: made or read, validated, and locked. No torch."""

from collections.abc import Iterator

from ddp_tokens.config import Corpus, OwnRows
from ddp_tokens.corpora import generated, own_rows
from ddp_tokens.corpora.rows import Row


def rows(corpus: Corpus, seed: int) -> Iterator[Row]:
    """The corpus that a configuration describes, row by row, in a fixed order.

    Raises CorpusError, naming file, line and id, at the first row that is not valid.
    """
    if isinstance(corpus, OwnRows):
        return own_rows.read(corpus)
    return generated.make(corpus, seed)
