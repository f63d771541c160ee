"""The built-in corpus: sequences of unequal length over a small alphabet, with a label at every position."""

import random
from collections.abc import Iterator

from ddp_tokens.config import GeneratedCorpus
from ddp_tokens.corpora.rows import Row


def make(corpus: GeneratedCorpus, seed: int) -> Iterator[Row]:
    """Training rows first (short and long in turn, so that half are short), then validation, then test."""
    rng = random.Random(seed)
    for index in range(corpus.train):
        if index % 2 == 0:
            length = rng.randint(corpus.min_length, corpus.short_max_length)
        else:
            length = rng.randint(corpus.short_max_length + 1, corpus.max_length)
        yield _row(corpus, "train", index, length, rng)
    for split, number in (("validation", corpus.validation), ("test", corpus.test)):
        for index in range(number):
            yield _row(corpus, split, index, rng.randint(corpus.min_length, corpus.max_length), rng)


def _row(corpus: GeneratedCorpus, split: str, index: int, length: int, rng: random.Random) -> Row:
    tokens = tuple(rng.randrange(corpus.vocabulary) for _ in range(length))
    labels = tuple((token + position) % corpus.classes for position, token in enumerate(tokens))
    return Row(f"{split}-{index:05d}", split, tokens, labels)
