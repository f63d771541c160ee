"""The built-in images: rows of an index and a label. What they look like is in `pixels`."""

import random
from collections.abc import Iterator
from typing import Any

from ddp_tokens.config import Images
from ddp_tokens.corpora.rows import SPLITS, Row


def make(corpus: Images, seed: int) -> Iterator[Row]:
    """Training rows first, then validation, then test. Images are numbered through all splits."""
    index = 0
    for split, number in zip(SPLITS, (corpus.train, corpus.validation, corpus.test), strict=True):
        for place in range(number):
            yield Row(f"{split}-{place:05d}", split, (), (label_of(index, seed, corpus.classes),), index=index)
            index += 1


def label_of(index: int, seed: int, classes: int) -> int:
    """Of an image by its index alone, so that its pixels need no more either."""
    return random.Random(f"label {seed} {index}").randrange(classes)


def recipe(corpus: Images, seed: int) -> dict[str, Any]:
    """All that `pixels` needs to make the image of an index."""
    shape = {
        "classes": corpus.classes,
        "channels": corpus.channels,
        "height": corpus.size,
        "width": corpus.size,
    }
    return {"kind": corpus.kind, "seed": seed, "noise": corpus.noise, "shape": shape}
