"""The pixels behind the rows of images: made from an index, or read from files."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy
from numpy.typing import NDArray

from ddp_tokens.corpora.images import label_of


def open_images(recipe: Mapping[str, Any]) -> Callable[[int], NDArray[Any]]:
    """index -> image, float32 (channels, height, width), by the lock's field `images`."""
    shape = recipe["shape"]
    size = (shape["channels"], shape["height"], shape["width"])
    seed, classes, noise = recipe["seed"], shape["classes"], recipe["noise"]

    @cache
    def pattern(label: int) -> NDArray[Any]:
        coarse = numpy.random.default_rng([seed, 0, label]).standard_normal((size[0], 4, 4))
        rows, columns = (numpy.arange(pixels) * 4 // pixels for pixels in size[1:])
        return coarse[:, rows][:, :, columns]

    def image(index: int) -> NDArray[Any]:
        drawn = numpy.random.default_rng([seed, 1, index]).standard_normal(size, dtype=numpy.float32)
        made: NDArray[Any] = (pattern(label_of(index, seed, classes)) + noise * drawn).astype(numpy.float32)
        return made

    return image
