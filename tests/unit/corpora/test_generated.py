from collections import Counter

import pytest

from ddp_tokens.config import GeneratedCorpus
from ddp_tokens.corpora import rows, vocabulary
from ddp_tokens.corpora.generated import make


@pytest.fixture(scope="module")
def built_in():
    return list(make(GeneratedCorpus(), 17))


def lengths(corpus, split):
    return [len(row.tokens) for row in corpus if row.split == split]


def test_counts_of_each_split(built_in):
    assert Counter(row.split for row in built_in) == {"train": 1024, "validation": 128, "test": 256}
    assert len({row.id for row in built_in}) == len(built_in)


def test_half_of_the_training_rows_are_short_and_half_are_long(built_in):
    short = [length for length in lengths(built_in, "train") if length <= 64]
    long = [length for length in lengths(built_in, "train") if length > 64]
    assert (len(short), len(long)) == (512, 512)
    # 512 draws from 49 and from 64 lengths: the ends of both ranges occur.
    assert (min(short), max(short), min(long), max(long)) == (16, 64, 65, 128)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_other_splits_take_lengths_from_the_whole_range(built_in, split):
    found = lengths(built_in, split)
    assert 16 <= min(found) < 64 < max(found) <= 128


def test_labels_follow_the_rule_at_every_position(built_in):
    for row in built_in:
        assert row.labels == tuple((token + position) % 4 for position, token in enumerate(row.tokens))
        assert set(row.tokens) <= {0, 1, 2, 3}
    assert {label for row in built_in for label in row.labels} == {0, 1, 2, 3}


def test_vocabulary_and_classes_may_differ():
    row = next(make(GeneratedCorpus(vocabulary=7, classes=3), 0))
    assert row.labels == tuple((token + position) % 3 for position, token in enumerate(row.tokens))
    assert max(row.tokens) > 3


def test_the_same_seed_gives_the_same_rows_and_another_seed_others(built_in):
    assert list(rows(GeneratedCorpus(), 17)) == built_in
    assert list(rows(GeneratedCorpus(), 18)) != built_in


def test_its_tokens_are_numbers_without_words():
    assert vocabulary(GeneratedCorpus(), 17) is None
