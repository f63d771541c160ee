"""config/digits.safetensors: real images that the project brings along."""

import re
from pathlib import Path

import numpy
import pytest
import safetensors.numpy

from ddp_tokens.config_reading import load_experiment
from ddp_tokens.corpora import rows
from ddp_tokens.files import sha256
from tests.helpers import PROJECT

FILE = PROJECT / "config" / "digits.safetensors"
# How often each digit is in the test set of the UCI repository, as its description states it.
COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_file_is_the_one_that_was_described():
    described = (PROJECT / "config" / "digits.md").read_text()
    assert re.findall("[0-9a-f]{64}", described) == [sha256(FILE)]


def test_all_digits_are_there():
    arrays = safetensors.numpy.load_file(FILE)
    assert {name: (array.shape, array.dtype.name) for name, array in arrays.items()} == {
        "images": ((1797, 8, 8), "uint8"),
        "labels": ((1797,), "int64"),
    }
    assert numpy.bincount(arrays["labels"]).tolist() == COUNTS
    assert {*numpy.unique(arrays["images"]).tolist()} == {grey * 255 // 16 for grey in range(17)}


def test_the_experiment_uses_each_digit_once_and_ends_in_an_uneven_window(monkeypatch):
    """1203 rows on two ranks are 602 and 601: 37 full windows of 16 each, then one of 10 and 9."""
    monkeypatch.chdir(PROJECT)
    experiment = load_experiment(Path("config/digits.yaml"))
    made = list(rows(experiment.corpus, experiment.seed))
    assert sorted(row.index for row in made) == list(range(1797))
    assert experiment.windows_per_epoch(experiment.corpus.train) == 38
    assert (602 - 37 * 16, 601 - 37 * 16) == (10, 9)
    assert experiment.interrupt_at % 38 != 0  # inside an epoch
    assert experiment.corpus.test % 2 == 1


def test_a_digit_looks_like_itself():
    """The first is a zero: dark in the middle, bright around it."""
    arrays = safetensors.numpy.load_file(FILE)
    assert arrays["labels"][0] == 0
    assert arrays["images"][0, 3:5, 3:5].mean() < 30 < arrays["images"][0, 1:7, 2:6].mean()


@pytest.mark.parametrize("name", ["CC BY 4.0", "E. Alpaydin", "C. Kaynak", "UCI"])
def test_origin_and_licence_are_stated(name):
    assert name in (PROJECT / "config" / "digits.md").read_text().replace("\n", " ")
