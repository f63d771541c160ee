from collections import Counter

import pytest

from ddp_tokens.config import Images
from ddp_tokens.corpora import recipe_of_images, rows
from ddp_tokens.corpora.images import label_of

SMALL = Images(train=203, validation=40, test=101)


def test_rows_hold_index_and_label_and_no_tokens():
    made = list(rows(SMALL, 42))
    assert made[0].record() == {"id": "train-00000", "split": "train", "labels": made[0].labels, "index": 0}
    assert [len(row.labels) for row in made] == [1] * 344
    assert {label for row in made for label in row.labels} == set(range(10))


def test_no_image_is_in_two_splits():
    """Images are numbered through: 203 training rows, 40 of validation, 101 of the test."""
    made = list(rows(SMALL, 42))
    assert [row.index for row in made] == list(range(344))
    assert Counter(row.split for row in made) == {"train": 203, "validation": 40, "test": 101}
    assert [made[203].id, made[243].id, made[-1].id] == ["validation-00000", "test-00000", "test-00100"]


def test_without_validation_the_test_follows():
    made = list(rows(Images(train=3, validation=0, test=2), 1))
    assert [row.id for row in made] == ["train-00000", "train-00001", "train-00002", "test-00000", "test-00001"]


def test_the_seed_decides_the_labels_and_nothing_else_does():
    assert list(rows(SMALL, 42)) == list(rows(SMALL, 42))
    assert [row.labels for row in rows(SMALL, 42)] != [row.labels for row in rows(SMALL, 43)]
    longer = list(rows(SMALL.model_copy(update={"train": 300}), 42))
    assert [row.labels for row in longer[:203]] == [row.labels for row in list(rows(SMALL, 42))[:203]]


@pytest.mark.parametrize("classes", [2, 10, 37])
def test_classes_have_about_as_many_images(classes):
    """200 are expected of each; a standard deviation is less than sqrt(200) = 14.2, and 5 of them are 71."""
    counts = Counter(label_of(index, 7, classes) for index in range(200 * classes))
    assert set(counts) == set(range(classes))
    assert all(abs(count - 200) < 71 for count in counts.values())


def test_the_recipe_states_the_shape_whatever_was_drawn():
    corpus = Images(train=1, test=1, classes=5, channels=2, size=7, noise=0.5)
    shape = {"classes": 5, "channels": 2, "height": 7, "width": 7}
    assert recipe_of_images(corpus, 3) == {"kind": "images", "seed": 3, "noise": 0.5, "shape": shape}
