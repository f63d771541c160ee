"""A user's images and labels as arrays in one file, .npz or .safetensors. Nothing in it can be executed."""

import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ddp_tokens.errors import PREPARE_AGAIN, CorpusError
from ddp_tokens.files import sha256

IMAGES, LABELS = "images", "labels"
COLOURS = (1, 3)
SMALLEST = 4  # pixels
HEADERS: Mapping[tuple[int, int], Callable[[IO[bytes]], Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
TYPES = {"U": "uint", "I": "int", "F": "float"}  # safetensors says U8, I64, F32
UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, SafetensorError)


def labels_of(path: Path) -> list[int]:
    """By image. Reads no pixels.

    Raises CorpusError: not such a file, an array missing or of a wrong shape or type, labels that are not the numbers
    from 0 on with an image each.
    """
    shape, kind = _form(path, IMAGES)
    if not _layout(shape):
        raise CorpusError(
            f"{path}: {IMAGES} must be (number, height, width), (number, channels, height, width) or (number, height, "
            f"width, channels), with 1 or 3 channels and {SMALLEST} pixels or more each way, not {shape}"
        )
    if kind not in ("uint8", "float32"):
        raise CorpusError(f"{path}: {IMAGES} must be of type uint8, or float32 from 0 to 1, not {kind}")
    of_labels, kind = _form(path, LABELS)
    if kind.rstrip("0123456789") not in ("int", "uint"):
        raise CorpusError(f"{path}: {LABELS} must be whole numbers (a type such as int64), not {kind}")
    if len(of_labels) != 1:
        raise CorpusError(f"{path}: {LABELS} must be one number per image, (number,), not {of_labels}")
    if of_labels[0] != shape[0]:
        raise CorpusError(f"{path}: {shape[0]} images and {of_labels[0]} labels; every image needs one label")
    labels: list[int] = _read(path, LABELS).tolist()
    _require_classes(path, labels)
    return labels


def _require_classes(path: Path, labels: list[int]) -> None:
    used = sorted(set(labels))
    if used and used[0] < 0:
        raise CorpusError(f"{path}: label {used[0]} of image {labels.index(used[0])} is negative; labels start at 0")
    missing = next((place for place, label in enumerate(used) if place != label), None)
    if missing is not None:
        raise CorpusError(
            f"{path}: no image has label {missing}, and image {labels.index(used[-1])} has {used[-1]}: number the "
            "classes from 0 on, without a gap"
        )
    if len(used) < 2:
        raise CorpusError(f"{path}: {LABELS} name {len(used)} class{'es' * (len(used) != 1)}; there must be 2 or more")


def recipe(path: Path) -> dict[str, Any]:
    """The file's digest and the shape of its images. Raises CorpusError for a value that is no colour."""
    digest, images = sha256(path), _channels_first(_read(path, IMAGES))
    if images.dtype != numpy.uint8:
        least, most = float(images.min()), float(images.max())  # not a number where any value is not
        if not (least >= 0 and most <= 1):
            raise CorpusError(f"{path}: {IMAGES} of type float32 must be from 0 to 1, not from {least} to {most}")
    channels, height, width = images.shape[1:]
    return {"sha256": digest, "shape": {"channels": channels, "height": height, "width": width}}


def reader(recipe: Mapping[str, Any]) -> Callable[[int], NDArray[Any]]:
    """index -> image. The arrays are read with the first image, once in a process."""

    @cache
    def images() -> NDArray[Any]:
        require_unchanged(recipe)
        return _channels_first(_read(Path(recipe["path"]), IMAGES))

    return lambda index: scaled(images()[index])


def require_unchanged(recipe: Mapping[str, Any]) -> None:
    """Raises CorpusError when the file is no longer the one that was prepared."""
    path = Path(recipe["path"])
    if not path.is_file():
        raise CorpusError(f"{path} is gone since prepare: put it back, or {PREPARE_AGAIN}")
    if sha256(path) != recipe["sha256"]:
        raise CorpusError(
            f"{path} has changed since prepare (its SHA-256 is not the one that was locked): {PREPARE_AGAIN}"
        )


def scaled(pixels: NDArray[Any]) -> NDArray[Any]:
    """uint8, or float32 from 0 to 1, as float32 from -1 to 1."""
    unit = pixels.astype(numpy.float32)
    if pixels.dtype == numpy.uint8:
        unit /= numpy.float32(255)
    return (unit - numpy.float32(0.5)) / numpy.float32(0.5)


def _layout(shape: tuple[int, ...]) -> str | None:
    """None where the shape is not one of images. No image is less than 4 pixels high, so no shape is two of these."""
    if len(shape) == 3 and min(shape[1:]) >= SMALLEST:
        return "grey"
    if len(shape) == 4 and shape[1] in COLOURS and min(shape[2:]) >= SMALLEST:
        return "channels first"
    if len(shape) == 4 and shape[3] in COLOURS and min(shape[1:3]) >= SMALLEST:
        return "channels last"
    return None


def _channels_first(images: NDArray[Any]) -> NDArray[Any]:
    layout = _layout(images.shape)
    if layout == "grey":
        return images[:, None]
    return images.transpose(0, 3, 1, 2) if layout == "channels last" else images


def _form(path: Path, name: str) -> tuple[tuple[int, ...], str]:
    """Shape and type of an array, from its header."""
    if path.suffix == ".npz":
        with _member(path, name) as stream:
            version = npy.read_magic(stream)
            if version not in HEADERS:
                raise ValueError(f"the header of {name} has version {version}, which is for records")
            shape, _, dtype = HEADERS[version](stream)
            return shape, str(dtype.name)
    with _tensors(path, name) as tensors:
        header = tensors.get_slice(name)
        kind = header.get_dtype()
        return tuple(header.get_shape()), TYPES.get(kind[0], kind[0].lower()) + kind[1:].lower()


def _read(path: Path, name: str) -> NDArray[Any]:
    array: NDArray[Any]
    if path.suffix == ".npz":
        with _member(path, name) as stream:
            array = npy.read_array(stream, allow_pickle=False)
    else:
        with _tensors(path, name) as tensors:
            array = tensors.get_tensor(name)
    return array


@contextmanager
def _member(path: Path, name: str) -> Iterator[IO[bytes]]:
    with _refusing(path, name), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
        yield stream


@contextmanager
def _tensors(path: Path, name: str) -> Iterator[Any]:
    with _refusing(path, name), safe_open(path, "numpy") as tensors:
        if name not in list(tensors.keys()):
            raise KeyError(name)
        yield tensors


@contextmanager
def _refusing(path: Path, name: str) -> Iterator[None]:
    try:
        yield
    except KeyError:
        raise CorpusError(f"{path} holds no array '{name}'; it must hold '{IMAGES}' and '{LABELS}'") from None
    except UNREADABLE as error:
        raise CorpusError(f"{path} cannot be read as a {path.suffix} file: {error}") from None
