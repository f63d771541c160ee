import re
import subprocess
import sys

import numpy
import pytest
from PIL import Image

from ddp_tokens.config import OwnImages
from ddp_tokens.corpora import recipe_of_images, rows
from ddp_tokens.corpora.own_images import stamps
from ddp_tokens.corpora.pixels import open_images
from ddp_tokens.errors import CorpusError
from ddp_tokens.files import sha256
from tests.unit.corpora.image_data import pictures, write_folder, write_npz, write_safetensors

WRITERS = {".npz": write_npz, ".safetensors": write_safetensors}


def own(path, train=7, validation=2, test=3, **changes):
    return OwnImages(path=str(path), train=train, validation=validation, test=test, **changes)


def prepare(corpus, seed=17):
    """Rows, recipe and the images behind the rows."""
    recipe = recipe_of_images(corpus, seed)
    return list(rows(corpus, seed)), recipe, open_images(recipe)


def arrays(tmp_path, suffix=".npz", **changes):
    images, labels = pictures()
    given = {"images": images[:, 0], "labels": labels} | changes
    return WRITERS[suffix](tmp_path / f"mine{suffix}", **{name: value for name, value in given.items() if len(value)})


@pytest.mark.parametrize("channels", [1, 3])
def test_a_folder_and_both_kinds_of_file_give_the_same_rows_shape_and_pixels(tmp_path, channels):
    images, labels = pictures(channels=channels)
    folder = prepare(own(write_folder(tmp_path / "folder", images, labels), channels=channels))
    files = [
        prepare(own(write(tmp_path / f"x{suffix}", images=images, labels=labels))) for suffix, write in WRITERS.items()
    ]
    shape = {"classes": 3, "channels": channels, "height": 8, "width": 6}
    for made, recipe, image in (folder, *files):
        assert made == folder[0]
        assert recipe["shape"] == shape
        for row in made:
            expected = images[row.index].astype(numpy.float32) / numpy.float32(255) * 2 - 1
            assert image(row.index).dtype == numpy.float32
            assert image(row.index) == pytest.approx(expected, abs=1e-6)  # as one rounds otherwise
            assert numpy.array_equal(image(row.index), folder[2](row.index))
            assert row.labels == (labels[row.index],)


def test_black_is_minus_1_and_white_1(tmp_path):
    images = numpy.zeros((12, 4, 4), numpy.uint8)
    images[:, 0, 0], images[:, 0, 1] = 255, 51
    _, _, image = prepare(own(arrays(tmp_path, images=images)))
    assert image(0)[0, 0].tolist() == pytest.approx([1, 2 * 0.2 - 1, -1, -1])


def test_float_pixels_are_taken_from_0_to_1(tmp_path):
    images = pictures()[0][:, 0]
    _, _, of_bytes = prepare(own(arrays(tmp_path, images=images)))
    expected = of_bytes(3)
    _, _, image = prepare(own(arrays(tmp_path, images=images.astype(numpy.float32) / numpy.float32(255))))
    assert numpy.array_equal(image(3), expected)


@pytest.mark.parametrize("suffix", WRITERS)
def test_channels_may_come_last(tmp_path, suffix):
    images, labels = pictures(channels=3)
    _, first, image = prepare(own(WRITERS[suffix](tmp_path / f"first{suffix}", images=images, labels=labels)))
    last = WRITERS[suffix](tmp_path / f"last{suffix}", images=images.transpose(0, 2, 3, 1), labels=labels)
    _, recipe, same = prepare(own(last))
    assert recipe["shape"] == first["shape"]
    assert numpy.array_equal(image(5), same(5))


def test_splits_are_disjoint_and_shuffled_by_the_seed(tmp_path):
    path = arrays(tmp_path)
    made = list(rows(own(path), 17))
    assert [row.id for row in made][6:10] == ["train-00006", "validation-00000", "validation-00001", "test-00000"]
    assert sorted(row.index for row in made) == list(range(12))
    assert [row.index for row in made] != list(range(12))
    assert made == list(rows(own(path), 17)) != list(rows(own(path), 18))
    fewer = list(rows(own(path, test=1), 17))
    assert fewer == made[:10]


def test_a_folder_is_read_in_grey_or_colour_and_resized(tmp_path):
    images, labels = pictures(channels=3)
    path = write_folder(tmp_path / "folder", images, labels)
    Image.new("L", (40, 30), 255).save(path / "ant" / "000.png")
    _, recipe, image = prepare(own(path, size=5))
    assert recipe["shape"] == {"classes": 3, "channels": 3, "height": 5, "width": 5}
    assert numpy.array_equal(image(0), numpy.ones((3, 5, 5)))
    assert prepare(own(path, size=5, channels=1))[2](4).shape == (1, 5, 5)


def test_classes_are_numbered_by_their_names(tmp_path):
    images, labels = pictures()
    path = write_folder(tmp_path / "folder", images, labels)
    (path / "bee").rename(path / "Zebra")  # capitals come first
    (path / "ant-eater").mkdir()  # as does "-" before "/": the files are in another order than their classes
    Image.new("L", (6, 8)).save(path / "ant-eater" / "0.png")
    (path / ".hidden").mkdir()
    (path / "ant" / ".DS_Store").touch()
    (path / "LICENCE").touch()
    made, recipe, _ = prepare(own(path, channels=1))
    assert recipe["class_names"] == ["Zebra", "ant", "ant-eater", "cow"]
    names = list(recipe["files"])
    assert names == sorted(names)
    assert len(names) == 13
    assert all(recipe["class_names"][row.labels[0]] == names[row.index].split("/")[0] for row in made)


def test_a_file_is_pinned_by_its_digest_a_folder_by_that_of_each_image(tmp_path):
    path = arrays(tmp_path)
    assert prepare(own(path))[1]["sha256"] == sha256(path)
    folder = write_folder(tmp_path / "folder", *pictures())
    files = prepare(own(folder))[1]["files"]
    assert files == {name: sha256(folder / name) for name in files}
    assert len(files) == 12


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_changed_file_is_refused_when_it_is_opened(tmp_path, suffix):
    _, _, image = prepare(own(arrays(tmp_path, suffix)))
    arrays(tmp_path, suffix, labels=pictures()[1][::-1])
    with pytest.raises(CorpusError, match=rf"mine\{suffix} has changed since prepare .*: prepare again"):
        image(0)
    (tmp_path / f"mine{suffix}").unlink()
    with pytest.raises(CorpusError, match=rf"mine\{suffix} is gone since prepare: put it back, or prepare again"):
        image(0)


def test_an_opened_file_is_not_read_again(tmp_path):
    path = arrays(tmp_path)
    _, _, image = prepare(own(path))
    before = image(1)
    path.unlink()
    assert numpy.array_equal(image(1), before)


def test_a_changed_image_is_refused_when_it_is_read(tmp_path):
    path = write_folder(tmp_path / "folder", *pictures())
    _, _, image = prepare(own(path))
    Image.new("L", (6, 8)).save(path / "bee" / "005.png")
    image(4)
    with pytest.raises(CorpusError, match=r"bee/005\.png has changed since prepare .*: prepare again"):
        image(5)
    (path / "bee" / "005.png").unlink()
    with pytest.raises(CorpusError, match=r"bee/005\.png is gone since prepare: put it back, or prepare again"):
        image(5)


IMAGES, LABELS = pictures()
BAD_ARRAYS = {
    "no images": ({"images": ()}, "holds no array 'images'; it must hold 'images' and 'labels'"),
    "no labels": ({"labels": ()}, "holds no array 'labels'"),
    "flat images": ({"images": IMAGES.reshape(12, -1)}, "4 pixels or more each way, not (12, 48)"),
    "small images": ({"images": IMAGES[:, 0, :3]}, "4 pixels or more each way, not (12, 3, 6)"),
    "two channels": ({"images": numpy.zeros((12, 2, 8, 8), numpy.uint8)}, "not (12, 2, 8, 8)"),
    "double precision": ({"images": IMAGES[:, 0] / 255}, "uint8, or float32 from 0 to 1, not float64"),
    "signed bytes": ({"images": IMAGES[:, 0].astype(numpy.int8)}, "or float32 from 0 to 1, not int8"),
    "fractions as labels": ({"labels": LABELS.astype(float)}, "whole numbers (a type such as int64), not float64"),
    "labels of truth": ({"labels": LABELS > 0}, "labels must be whole numbers (a type such as int64), not bool"),
    "labels one-hot": ({"labels": numpy.eye(3, dtype=int)[LABELS]}, "one number per image, (number,), not (12, 3)"),
    "fewer labels": ({"labels": LABELS[:-1]}, "12 images and 11 labels; every image needs one label"),
    "negative label": ({"labels": LABELS - 1}, "label -1 of image 0 is negative; labels start at 0"),
    "labels from 1": ({"labels": LABELS + 1}, "no image has label 0, and image 8 has 3: number the classes from 0 on"),
    "label beyond any": ({"labels": LABELS * 10**9}, "no image has label 1, and image 8 has 2000000000"),
    "one class": ({"labels": LABELS * 0}, "labels name 1 class; there must be 2 or more"),
}  # fmt: skip


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize(("changes", "problem"), BAD_ARRAYS.values(), ids=BAD_ARRAYS.keys())
def test_bad_arrays_are_refused_by_rows_and_recipe(tmp_path, suffix, changes, problem):
    corpus = own(arrays(tmp_path, suffix, **changes))
    for read in (lambda: list(rows(corpus, 0)), lambda: recipe_of_images(corpus, 0)):
        with pytest.raises(CorpusError, match=re.escape(problem)) as refusal:
            read()
        assert str(refusal.value).startswith(corpus.path)


@pytest.mark.parametrize("value", [numpy.nan, numpy.inf, -0.5, 255])
def test_a_float_that_is_no_colour_is_refused(tmp_path, value):
    images = numpy.full((12, 4, 4), 0.5, numpy.float32)
    images[7, 2, 1] = value
    with pytest.raises(CorpusError, match=r"mine\.npz: images of type float32 must be from 0 to 1, not from .* to "):
        recipe_of_images(own(arrays(tmp_path, images=images)), 0)


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 half an archive", b"\xff" * 64])
def test_what_is_no_archive_is_refused(tmp_path, suffix, content):
    path = tmp_path / f"mine{suffix}"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=rf"mine\{suffix} cannot be read as a \{suffix} file"):
        list(rows(own(path), 0))


@pytest.mark.parametrize("suffix", WRITERS)
def test_half_an_archive_is_refused(tmp_path, suffix):
    path = arrays(tmp_path, suffix)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CorpusError, match=rf"mine\{suffix} cannot be read as a \{suffix} file"):
        list(rows(own(path), 0))


def test_pickled_arrays_are_refused_and_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return open, (str(tmp_path / "sprung"), "w")

    for name in ("images", "labels"):
        path = arrays(tmp_path, **{name: numpy.array([Trap()] * 12, dtype=object)})
        with pytest.raises(CorpusError, match=rf"mine\.npz: {name} must be"):
            recipe_of_images(own(path), 0)
    assert not (tmp_path / "sprung").exists()


def test_a_path_that_is_neither_is_refused(tmp_path):
    with pytest.raises(CorpusError, match=r"corpus\.path .*/gone\.npz does not exist"):
        list(rows(own(tmp_path / "gone.npz"), 0))
    (tmp_path / "mine.npy").touch()
    with pytest.raises(CorpusError, match=r"mine\.npy is neither a folder nor a \.npz or \.safetensors file"):
        list(rows(own(tmp_path / "mine.npy"), 0))


@pytest.mark.parametrize("field", ["channels", "size"])
def test_what_arrays_say_themselves_cannot_be_set(tmp_path, field):
    value = {"channels": 1, "size": 8}[field]
    with pytest.raises(CorpusError, match=rf"corpus\.{field} is for a folder, and .*mine\.npz is a file"):
        list(rows(own(arrays(tmp_path), **{field: value}), 0))


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_too_few_images_are_refused_with_the_numbers(tmp_path, kind):
    path = arrays(tmp_path) if kind == "file" else write_folder(tmp_path / "folder", *pictures())
    problem = re.escape(
        f"corpus.train + corpus.validation + corpus.test = 8 + 2 + 3 = 13 images, but {path} holds only 12: lower them"
    )
    for read in (lambda corpus: list(rows(corpus, 0)), lambda corpus: recipe_of_images(corpus, 0)):
        with pytest.raises(CorpusError, match=problem):
            read(own(path, train=8))


def one_class(path):
    for name in ("bee", "cow"):
        for image in (path / name).iterdir():
            image.unlink()
        (path / name).rmdir()


BAD_FOLDERS = {
    "one class": (one_class, r"folder holds 1 class folder; there must be 2 or more, one per class"),
    "an empty class": (lambda path: (path / "dog").mkdir(), r"folder .*/dog holds no image: add some or take"),
    "only a hidden file": (
        lambda path: ((path / "dog").mkdir(), (path / "dog" / ".DS_Store").touch()),
        r"class folder .*/dog holds no image",
    ),
    "a folder in a class": (lambda path: (path / "bee" / "more").mkdir(), r"bee/more is no file: images must lie in"),
    "a link to nothing": (lambda path: (path / "bee" / "7.png").symlink_to("gone.png"), r"bee/7\.png is no file"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "problem"), BAD_FOLDERS.values(), ids=BAD_FOLDERS.keys())
def test_a_folder_that_is_made_otherwise_is_refused_without_reading_images(tmp_path, spoil, problem):
    path = write_folder(tmp_path / "folder", *pictures())
    spoil(path)
    with pytest.raises(CorpusError, match=problem):
        list(rows(own(path), 0))


def test_a_folder_without_classes_is_refused(tmp_path):
    with pytest.raises(CorpusError, match=r"holds 0 class folders; there must be 2 or more"):
        list(rows(own(tmp_path), 0))


def deep(path):
    Image.fromarray(numpy.full((8, 6), 60_000, numpy.uint16)).save(path)


BAD_FILES = {
    "no image": (lambda path: path.write_text("cat"), r"bee/006\.png cannot be read as an image"),
    "half an image": (
        lambda path: path.write_bytes(path.read_bytes()[:60]),
        r"bee/006\.png cannot be read as an image .*: replace it or take it away",
    ),
    "another size": (
        lambda path: Image.new("L", (6, 9)).save(path),
        r"bee/006\.png is 9 x 6 pixels and .*/ant/000\.png 8 x 6 pixels: set corpus\.size",
    ),
    "16 bits": (deep, r"bee/006\.png has more than 8 bits a colour \(Pillow's mode I;16.*\): convert it"),
}


@pytest.mark.parametrize(("write", "problem"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_image_is_named(tmp_path, write, problem):
    path = write_folder(tmp_path / "folder", *pictures())
    write(path / "bee" / "006.png")
    assert len(list(rows(own(path), 0))) == 12  # quickly, without the pixels
    with pytest.raises(CorpusError, match=problem):
        recipe_of_images(own(path), 0)


def test_images_that_are_too_small_are_refused(tmp_path):
    path = write_folder(tmp_path / "folder", *pictures(size=(3, 9)))
    with pytest.raises(CorpusError, match=r"ant/000\.png is 3 x 9 pixels; 4 or more are needed each way"):
        recipe_of_images(own(path), 0)
    assert prepare(own(path, size=4))[2](0).shape == (3, 4, 4)


def test_a_change_of_any_image_changes_the_stamps(tmp_path):
    path = write_folder(tmp_path / "folder", *pictures())
    before = stamps(path)
    assert len(before) == 12
    assert stamps(path) == before
    (path / "bee" / "006.png").write_text("cat")
    assert [new != old for new, old in zip(stamps(path), before, strict=True)] == [index == 6 for index in range(12)]


def test_the_snakefile_needs_neither_numpy_nor_pillow_for_them():
    code = "import sys, ddp_tokens.workflow; sys.exit(bool({'numpy', 'PIL', 'safetensors'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
