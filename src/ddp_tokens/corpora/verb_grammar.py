"""English sentences, made from a seed: tense, aspect, agreement, negation, questions. Not yet written."""

from collections.abc import Iterator

from ddp_tokens.config import VerbGrammar
from ddp_tokens.corpora.rows import Row


def make(corpus: VerbGrammar, seed: int) -> Iterator[Row]:
    raise NotImplementedError


def vocabulary(corpus: VerbGrammar, seed: int) -> list[str]:
    raise NotImplementedError
