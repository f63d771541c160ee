"""The pixels behind the rows of images: made from an index, or read from a user's files."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy
from numpy.typing import NDArray

from ddp_tokens.corpora.images import label_of

WAVES = 2  # the most periods that a pattern has over an image: a shift by an eighth is a quarter period
WEIGHT = 0.5  # of a wave against one with a period less


def open_images(recipe: Mapping[str, Any]) -> Callable[[int], NDArray[Any]]:
    """index -> image, float32 (channels, height, width), by the lock's field `images`.

    A user's own files are opened with the first image. Raises CorpusError there when they are not what was prepared.
    """
    if "files" in recipe:
        from ddp_tokens.corpora import image_files  # Pillow only where there are images to decode

        return image_files.reader(recipe)
    if "path" in recipe:
        from ddp_tokens.corpora import image_arrays

        return image_arrays.reader(recipe)
    return _maker(recipe)


def _maker(recipe: Mapping[str, Any]) -> Callable[[int], NDArray[Any]]:
    shape = recipe["shape"]
    size = (shape["channels"], shape["height"], shape["width"])
    seed, classes, noise = recipe["seed"], shape["classes"], recipe["noise"]

    @cache
    def pattern_of(label: int) -> NDArray[Any]:
        return pattern(numpy.random.default_rng([seed, 0, label]), *size)

    def image(index: int) -> NDArray[Any]:
        made = numpy.random.default_rng([seed, 1, index]).standard_normal(size, dtype=numpy.float32)
        made *= numpy.float32(noise)
        made += pattern_of(label_of(index, seed, classes))
        return made

    return image


def pattern(generator: numpy.random.Generator, channels: int, height: int, width: int) -> NDArray[Any]:
    """Long waves with random weights, of mean 0 and standard deviation 1 over all pixels; float32.

    It is its own mirror image, and changes little over an eighth of its size, so that augmentation by shifts and
    mirroring leaves it what it is.
    """
    down = numpy.stack([_wave(part, height, waves) for waves in range(WAVES + 1) for part in (numpy.cos, numpy.sin)])
    across = numpy.stack([_wave(numpy.cos, width, waves) for waves in range(WAVES + 1)])
    weights = generator.standard_normal((channels, len(down), len(across)))
    made = numpy.einsum("cij,ih,jw->chw", weights, down, across)
    made -= made.mean()
    scaled: NDArray[Any] = (made / made.std()).astype(numpy.float32)
    return scaled


def _wave(part: Callable[[NDArray[Any]], Any], pixels: int, waves: int) -> NDArray[Any]:
    """By the angle at the centre of each pixel."""
    wave: NDArray[Any] = WEIGHT**waves * part(2 * numpy.pi * waves * (numpy.arange(pixels) + 0.5) / pixels)
    return wave
