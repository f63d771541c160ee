"""The same images in the three ways in which a user may keep them."""

import numpy
import safetensors.numpy
from PIL import Image

NAMES = ("ant", "bee", "cow")  # in this order their labels are 0, 1, 2


def pictures(number=12, size=(8, 6), channels=1, seed=0):
    """uint8 (number, channels, height, width), and labels in rising order, as a folder's names are."""
    images = numpy.random.default_rng(seed).integers(0, 256, (number, channels, *size), dtype=numpy.uint8)
    return images, numpy.arange(number) * 3 // number


def write_folder(path, images, labels):
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = path / NAMES[label]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        Image.fromarray(pixels).save(folder / f"{index:03d}.png")
    return path


def write_npz(path, **arrays):
    numpy.savez(path, **arrays)
    return path


def write_safetensors(path, **arrays):
    safetensors.numpy.save_file({name: numpy.ascontiguousarray(array) for name, array in arrays.items()}, path)
    return path
