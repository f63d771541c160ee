"""Rows of data: made or read, validated, and locked. No torch."""

from collections.abc import Iterator
from typing import Any

from ddp_tokens.config import Corpus, Images, OwnImages, OwnRows, VerbGrammar
from ddp_tokens.corpora import generated, images, own_images, own_rows, verb_grammar
from ddp_tokens.corpora.rows import Row


def rows(corpus: Corpus, seed: int) -> Iterator[Row]:
    """The corpus that a configuration describes, row by row, in a fixed order.

    Raises CorpusError, naming file, line and id, at the first row that is not valid.
    """
    if isinstance(corpus, OwnRows):
        return own_rows.read(corpus)
    if isinstance(corpus, VerbGrammar):
        return verb_grammar.make(corpus, seed)
    if isinstance(corpus, Images):
        return images.make(corpus, seed)
    if isinstance(corpus, OwnImages):
        return own_images.make(corpus, seed)
    return generated.make(corpus, seed)


def recipe_of_images(corpus: Corpus, seed: int) -> dict[str, Any] | None:
    """How the pixels behind the rows are made or read, for the lock; None where rows are no images.

    Raises CorpusError, naming the file, where they cannot be read.
    """
    if isinstance(corpus, Images):
        return images.recipe(corpus, seed)
    return own_images.recipe(corpus) if isinstance(corpus, OwnImages) else None


def vocabulary(corpus: Corpus, seed: int) -> list[str] | None:
    """The words behind the tokens, by token; None where tokens are numbers only.

    Raises CorpusError where the rows cannot be read.
    """
    if isinstance(corpus, OwnRows):
        return own_rows.vocabulary(corpus)
    if isinstance(corpus, VerbGrammar):
        return verb_grammar.vocabulary(corpus, seed)
    return None


def could_make(corpus: Corpus, text: str) -> bool | None:
    """Whether the grammar behind the corpus makes this sentence; None where there is no grammar."""
    return verb_grammar.is_sentence(text) if isinstance(corpus, VerbGrammar) else None
