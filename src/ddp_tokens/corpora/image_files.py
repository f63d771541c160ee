"""A user's images as files in a folder per class: decoded when they are needed, and only as they were prepared."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ddp_tokens.corpora.image_arrays import SMALLEST, scaled
from ddp_tokens.errors import PREPARE_AGAIN, CorpusError
from ddp_tokens.files import sha256_of_bytes

REPLACE = "replace it or take it away"
MODES = {1: "L", 3: "RGB"}
EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def recipe(folder: Path, files: Sequence[str], channels: int, size: int | None) -> dict[str, Any]:
    """Each file's digest and the shape of the images. Decodes every file once.

    Raises CorpusError, naming the file: no image, more than 8 bits a colour, images of different sizes.
    """
    digests: dict[str, str] = {}
    shape: tuple[int, ...] = ()
    for name in files:
        data = _bytes(folder / name)
        digests[name] = sha256_of_bytes(data)
        found = decoded(data, folder / name, channels, size).shape
        if found != (shape or found):
            raise CorpusError(
                f"{folder / name} is {_size(found)} and {folder / files[0]} {_size(shape)}: set corpus.size, to which "
                "all are then resized"
            )
        shape = found
    height, width = shape[1:]
    if min(height, width) < SMALLEST:
        raise CorpusError(f"{folder / files[0]} is {_size(shape)}; {SMALLEST} or more are needed each way")
    return {
        "files": digests,
        "size": size,
        "shape": {"channels": channels, "height": height, "width": width},
    }


def _size(shape: Sequence[int]) -> str:
    return f"{shape[1]} x {shape[2]} pixels"


def reader(recipe: Mapping[str, Any]) -> Callable[[int], NDArray[Any]]:
    """index, which counts the files by their names in order, -> image."""
    folder, files = Path(recipe["path"]), list(recipe["files"].items())
    channels, size = recipe["shape"]["channels"], recipe["size"]

    def image(index: int) -> NDArray[Any]:
        name, digest = files[index]
        return scaled(decoded(unchanged(folder / name, digest), folder / name, channels, size))

    return image


def unchanged(path: Path, digest: str) -> bytes:
    """Raises CorpusError when the image is no longer the one that was prepared."""
    data = _bytes(path)
    if sha256_of_bytes(data) != digest:
        raise CorpusError(
            f"{path} has changed since prepare (its SHA-256 is not the one that was locked): {PREPARE_AGAIN}"
        )
    return data


def decoded(data: bytes, path: Path, channels: int, size: int | None) -> NDArray[Any]:
    """uint8, (channels, height, width)."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode in EIGHT_BITS:
                converted = image.convert(MODES[channels])
                if size is not None:
                    converted = converted.resize((size, size), Image.Resampling.BILINEAR)
                pixels = numpy.asarray(converted)
                return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
            mode = image.mode
    except UnidentifiedImageError:
        raise CorpusError(f"{path} cannot be read as an image (no format that Pillow knows): {REPLACE}") from None
    except Exception as error:  # of many types: each format has its own decoder
        raise CorpusError(f"{path} cannot be read as an image ({error}): {REPLACE}") from None
    raise CorpusError(
        f"{path} has more than 8 bits a colour (Pillow's mode {mode}): convert it, or give the pixels as float32 in a "
        ".npz or .safetensors file"
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise CorpusError(f"{path} is gone since prepare: put it back, or {PREPARE_AGAIN}") from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from None
