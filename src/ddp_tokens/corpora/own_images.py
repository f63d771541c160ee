"""Rows of a user's own images. NumPy and Pillow are imported where labels or pixels are read: the Snakefile needs none.

A file's images are numbered as they stand in it, a folder's by their names in order.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddp_tokens.config import OwnImages
from ddp_tokens.corpora.rows import SPLITS, Row
from ddp_tokens.errors import PREPARE_AGAIN, CorpusError

SUFFIXES = (".npz", ".safetensors")
COLOURS = 3


def make(corpus: OwnImages, seed: int) -> Iterator[Row]:
    """Training rows first, then validation, then test: images in an order that the seed shuffled. Reads no pixels.

    Raises CorpusError before the first row when a folder, its names or a file's labels and headers are not as they
    must be, or when there are too few images.
    """
    labels = _labels(corpus)
    order = list(range(len(labels)))
    random.Random(seed).shuffle(order)
    images = iter(order)
    for split, number in zip(SPLITS, _numbers(corpus), strict=True):
        for place in range(number):
            index = next(images)
            yield Row(f"{split}-{place:05d}", split, (), (labels[index],), index=index)


def recipe(corpus: OwnImages) -> dict[str, Any]:
    """What pins the pixels that were prepared, and their shape; `pixels` reads by it. Reads every pixel once.

    Raises CorpusError as `make` does, and for pixels that are not as they must be.
    """
    labels, path = _labels(corpus), Path(corpus.path)
    found: dict[str, Any]
    if path.is_dir():
        from ddp_tokens.corpora import image_files

        found = image_files.recipe(path, files_in(path), corpus.channels or COLOURS, corpus.size)
        found["class_names"] = class_folders(path)
    else:
        from ddp_tokens.corpora import image_arrays

        found = image_arrays.recipe(path)
    found["shape"] |= {"classes": 1 + max(labels)}
    return {"kind": corpus.kind, "path": corpus.path} | found


def require_same(recipe: Mapping[str, Any]) -> None:
    """Raises CorpusError when a file is no longer the one that was prepared, or a folder no longer holds the same
    files; whether an image is still the same shows when it is read.
    """
    if "files" not in recipe:
        from ddp_tokens.corpora import image_arrays

        image_arrays.require_unchanged(recipe)
        return
    folder, prepared = Path(recipe["path"]), recipe["files"]
    if not folder.is_dir():
        raise CorpusError(f"{folder} is gone since prepare: put it back, or {PREPARE_AGAIN}")
    found = files_in(folder)
    others = sorted({*found} ^ {*prepared})
    if others:
        how = "is new" if others[0] in found else "is gone"
        raise CorpusError(f"{folder} has changed since prepare ({others[0]} {how}): {PREPARE_AGAIN}")


def stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of each image, by which a change is seen without reading it."""
    states = ((name, (folder / name).stat()) for name in files_in(folder))
    return [(name, state.st_size, state.st_mtime_ns) for name, state in states]


def files_in(folder: Path) -> list[str]:
    """CLASS/IMAGE, sorted. Raises CorpusError when the folder is not made like this."""
    return sorted(f"{name}/{image}" for name in class_folders(folder) for image in _images_of(folder / name))


def class_folders(folder: Path) -> list[str]:
    """The names of the classes, by label."""
    names = sorted(entry.name for entry in _entries(folder) if entry.is_dir())
    if len(names) < 2:
        raise CorpusError(
            f"{folder} holds {len(names)} class folder{'s' * (len(names) != 1)}; there must be 2 or more, one per "
            "class, with its images in it"
        )
    return names


def _images_of(folder: Path) -> list[str]:
    entries = _entries(folder)
    if not entries:
        raise CorpusError(f"class folder {folder} holds no image: add some or take it away")
    for entry in entries:
        if not entry.is_file():  # a link may lead nowhere
            raise CorpusError(f"{entry} is no file: images must lie in the folder of their class, and nothing else")
    return [entry.name for entry in entries]


def _entries(folder: Path) -> list[Path]:
    """Without what is hidden, such as .DS_Store."""
    try:
        return [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise CorpusError(f"{folder} cannot be read: {error.strerror}") from None


def _labels(corpus: OwnImages) -> Sequence[int]:
    """By image. Raises CorpusError when they are fewer than the splits need."""
    path = Path(corpus.path)
    if path.is_dir():
        numbers = {name: label for label, name in enumerate(class_folders(path))}
        labels = [numbers[name.partition("/")[0]] for name in files_in(path)]
    else:
        labels = _labels_of_file(corpus, path)
    needed = sum(_numbers(corpus))
    if needed > len(labels):
        train, validation, test = _numbers(corpus)
        raise CorpusError(
            f"corpus.train + corpus.validation + corpus.test = {train} + {validation} + {test} = {needed} images, but "
            f"{path} holds only {len(labels)}: lower them"
        )
    return labels


def _labels_of_file(corpus: OwnImages, path: Path) -> list[int]:
    if not path.exists():
        raise CorpusError(f"corpus.path {path} does not exist")
    if path.suffix not in SUFFIXES:
        raise CorpusError(f"corpus.path {path} is neither a folder nor a {' or '.join(SUFFIXES)} file")
    for field in ("channels", "size"):
        if getattr(corpus, field) is not None:
            raise CorpusError(
                f"corpus.{field} is for a folder, and {path} is a file, whose arrays say it: leave it out"
            )
    from ddp_tokens.corpora import image_arrays

    return image_arrays.labels_of(path)


def _numbers(corpus: OwnImages) -> tuple[int, int, int]:
    return corpus.train, corpus.validation, corpus.test
