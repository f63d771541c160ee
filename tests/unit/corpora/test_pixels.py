import itertools
import tracemalloc

import numpy
import pytest

from ddp_tokens.config import Images
from ddp_tokens.corpora.images import label_of, recipe
from ddp_tokens.corpora.pixels import open_images, pattern

SHAPES = [(3, 32, 32), (1, 32, 32), (3, 8, 8), (1, 4, 4), (3, 5, 5), (2, 7, 9), (3, 33, 33)]


def images(seed=42, **changes):
    return open_images(recipe(Images(**changes), seed))


def patterns(seed=42, **changes):
    """By label: an image without noise is its class's pattern."""
    image = images(seed, noise=0, **changes)
    classes = changes.get("classes", 10)
    first = {label_of(index, seed, classes): index for index in reversed(range(50 * classes))}
    return [image(first[label]) for label in range(classes)]


def likeness(one, other):
    """The cosine of the angle between two images."""
    return float((one * other).sum() / numpy.linalg.norm(one) / numpy.linalg.norm(other))


def moved(image, down, right):
    """With zeros where nothing was, as augmentation does it."""
    _, height, width = image.shape
    into = numpy.zeros_like(image)
    into[:, max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)] = image[
        :, max(-down, 0) : height + min(-down, 0), max(-right, 0) : width + min(-right, 0)
    ]
    return into


def test_an_image_depends_on_seed_and_index_only():
    one, again = images(), images()
    later = [again(index) for index in (9, 3, 5)]
    assert numpy.array_equal(later[1], one(3))
    assert numpy.array_equal(one(3), one(3))
    assert not numpy.array_equal(one(3), one(4))
    assert not numpy.array_equal(one(3), images(seed=43)(3))


@pytest.mark.parametrize("size", [4, 5, 6, 7, 8, 30, 32, 33])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_size_is_made(size, channels):
    made = images(size=size, channels=channels)(0)
    assert (made.shape, made.dtype) == ((channels, size, size), numpy.float32)
    assert numpy.isfinite(made).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pattern_has_mean_0_and_deviation_1(shape):
    made = pattern(numpy.random.default_rng(0), *shape)
    assert made.shape == shape
    assert abs(made.mean(dtype=float)) < 1e-6  # single precision
    assert made.std(dtype=float) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_pattern_is_its_own_mirror_image(shape):
    made = pattern(numpy.random.default_rng(0), *shape)
    assert made == pytest.approx(made[:, :, ::-1], abs=1e-5)
    assert not numpy.allclose(made, made[:, ::-1], atol=0.1)  # but not upside down


@pytest.mark.parametrize(("classes", "channels", "size"), [(10, 3, 32), (10, 1, 8), (10, 3, 4), (100, 3, 32)])
def test_patterns_of_different_classes_differ(classes, channels, size):
    made = patterns(classes=classes, channels=channels, size=size)
    alike = [likeness(one, other) for place, one in enumerate(made) for other in made[:place]]
    assert max(alike) < 0.95


@pytest.mark.parametrize("size", [8, 32])
def test_a_shift_by_an_eighth_leaves_a_pattern_like_itself(size):
    """In 9 of 10 cases it is nearer to its own place than to any other pattern, though it left part of the image."""
    made, eighth = patterns(size=size), size // 8
    right = total = 0
    for label, own in enumerate(made):
        for shift in itertools.product((-eighth, 0, eighth), repeat=2):
            alike = [likeness(moved(own, *shift), other) for other in made]
            assert alike[label] > 0.25
            right += int(numpy.argmax(alike)) == label
            total += 1
    assert right >= 0.9 * total


def test_the_noise_has_the_deviation_that_was_asked_for():
    """3 * 32 * 32 = 3072 draws: their deviation is off by some 1 / sqrt(2 * 3072) = 0.013; 5 times that is 0.065."""
    noise = images(noise=2)(5) - images(noise=0)(5)
    assert noise.std() == pytest.approx(2, rel=0.065)
    assert abs(noise.mean()) < 5 * 2 / 3072**0.5


def test_noise_is_another_for_every_image():
    clean = images(noise=0)
    one, other = (images(noise=1)(index) - clean(index) for index in (0, 1))
    assert abs(likeness(one, other)) < 5 / 3072**0.5


def test_images_are_not_kept():
    """500 of 12,288 bytes would be 6 MB; ten patterns are 0.12 MB."""
    image = images()
    for index in range(100):
        image(index)
    tracemalloc.start()
    for index in range(100, 600):
        image(index)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 500_000
