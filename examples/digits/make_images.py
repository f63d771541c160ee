"""Real images of which some kinds are rare: the handwritten digits of config/digits.md, with a fifth of the fives to
nines left. Prints weights of the classes that make up for it. Run it in the project's folder:

python examples/digits/make_images.py
"""

from pathlib import Path

import numpy
from safetensors.numpy import load_file

SOURCE = Path("config/digits.safetensors")  # scikit-learn's digits: uint8 images (1797, 8, 8), labels 0 to 9
OUTPUT = Path("data/digits.npz")
RARE = range(5, 10)
ONE_IN = 5  # images of a rare class that are kept


def imbalanced(images: numpy.ndarray, labels: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """In their order. Of a rare class the first of each ONE_IN images."""
    kept = numpy.ones(len(labels), dtype=bool)
    for rare in RARE:
        places = numpy.flatnonzero(labels == rare)
        kept[places] = numpy.arange(len(places)) % ONE_IN == 0
    return images[kept], labels[kept]


def class_weights(labels: numpy.ndarray) -> list[float]:
    """By class, images / (classes * images of the class): each class weighs the same in all, and an image 1 in the
    mean.
    """
    counts = numpy.bincount(labels)
    return [round(float(len(labels) / (len(counts) * count)), 2) for count in counts]


if __name__ == "__main__":
    found = load_file(SOURCE)
    images, labels = imbalanced(found["images"], found["labels"])
    OUTPUT.parent.mkdir(exist_ok=True)
    numpy.savez(OUTPUT, images=images, labels=labels)
    print(f"wrote {OUTPUT}: {len(labels)} images, by class {numpy.bincount(labels).tolist()}")
    print(f"class_weights: {class_weights(labels)}")
