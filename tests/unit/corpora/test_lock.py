import dataclasses
import pydoc_data.topics

import numpy
import pytest

from ddp_tokens.config import GeneratedCorpus, Images, OwnImages, OwnRows
from ddp_tokens.corpora import recipe_of_images, rows, vocabulary
from ddp_tokens.corpora.lock import ImageShape, Shape, read_corpus, require_same_source, shape_in, write_corpus
from ddp_tokens.corpora.rows import UNSUPERVISED
from ddp_tokens.errors import CorpusError
from ddp_tokens.files import sha256
from ddp_tokens.plan import counts_per_rank, make_plan, windows_to_compare
from tests.helpers import TINY_CORPUS, make_row, record, write_lines
from tests.unit.corpora.image_data import pictures, write_folder, write_npz

TINY = GeneratedCorpus(**TINY_CORPUS)
GOOD = (record("a", tokens=(3, 1), labels=(0, 2)), record("b", "test", (0,), (1,)))


@pytest.fixture
def paths(tmp_path):
    return tmp_path / "corpus" / "rows.jsonl", tmp_path / "corpus" / "lock.json"


def prepare(corpus, paths):
    return write_corpus(rows(corpus, 17), corpus, *paths)


def own(tmp_path, *lines, classes=None):
    return OwnRows(path=str(write_lines(tmp_path / "mine.jsonl", *lines)), classes=classes)


def test_rows_come_back_as_they_were_written(paths):
    training = prepare(TINY, paths)
    made = list(rows(TINY, 17))
    read, _ = read_corpus(*paths)
    assert list(read.values()) == made
    expected = [row for row in made if row.split == "train"]
    assert [training.id(index) for index in range(len(training))] == [row.id for row in expected]


def test_the_lock_holds_counts_and_digest(paths):
    prepare(TINY, paths)
    made = list(rows(TINY, 17))
    _, lock = read_corpus(*paths)
    tokens = sum(len(row.tokens) for row in made if row.split == "test")
    assert lock["counts"]["test"] == {"rows": 8, "tokens": tokens, "supervised": tokens}
    assert lock["corpus_sha256"] == sha256(paths[0])


def test_unsupervised_tokens_are_tokens_but_no_units(paths):
    corpus = [make_row("a", 5, units=2), make_row("b", 3, "test", units=1)]
    write_corpus(corpus, TINY, *paths)
    _, lock = read_corpus(*paths)
    assert lock["counts"]["train"] == {"rows": 1, "tokens": 5, "supervised": 2}
    assert lock["counts"]["test"] == {"rows": 1, "tokens": 3, "supervised": 1}
    assert lock["counts"]["validation"] == {"rows": 0, "tokens": 0, "supervised": 0}


def test_a_generated_corpus_states_its_shape_whatever_was_drawn(paths):
    write_corpus([make_row("a", 1), make_row("b", 1, "test")], TINY, *paths)
    assert shape_in(read_corpus(*paths)[1]) == Shape(vocabulary=4, classes=4, positions=8)


@pytest.mark.parametrize(("classes", "expected"), [(None, 3), (5, 5)])
def test_the_shape_of_own_rows_follows_the_rows(tmp_path, paths, classes, expected):
    """Largest token 3, largest label 2, longest row 2."""
    prepare(own(tmp_path, *GOOD, classes=classes), paths)
    assert shape_in(read_corpus(*paths)[1]) == Shape(vocabulary=4, classes=expected, positions=2)


def test_altered_rows_are_refused(paths):
    prepare(TINY, paths)
    paths[0].write_text(paths[0].read_text().replace('"labels": [', '"labels": [ ', 1))
    with pytest.raises(CorpusError, match=r"rows\.jsonl has changed since prepare .*: prepare again"):
        read_corpus(*paths)


@pytest.mark.parametrize("gone", [0, 1])
def test_a_missing_file_is_named(paths, gone):
    prepare(TINY, paths)
    paths[gone].unlink()
    with pytest.raises(CorpusError, match=rf"{paths[gone].name} does not exist: run prepare first"):
        read_corpus(*paths)


def test_an_altered_source_is_refused(tmp_path, paths):
    corpus = own(tmp_path, *GOOD)
    prepare(corpus, paths)
    _, lock = read_corpus(*paths)
    require_same_source(corpus, lock, paths[1])
    own(tmp_path, *GOOD, record("c"))
    with pytest.raises(CorpusError, match=r"mine\.jsonl has changed since prepare"):
        require_same_source(corpus, lock, paths[1])


def test_a_generated_corpus_has_no_source_to_alter(paths):
    prepare(TINY, paths)
    lock = read_corpus(*paths)[1]
    assert "source_sha256" not in lock
    require_same_source(TINY, lock, paths[1])


def test_nothing_is_left_behind_when_a_row_is_refused(tmp_path, paths):
    with pytest.raises(CorpusError, match="line 3: duplicate id 'a'"):
        prepare(own(tmp_path, *GOOD, record("a")), paths)
    assert list(paths[0].parent.iterdir()) == []


def test_an_earlier_corpus_stays_whole_when_a_row_is_refused(tmp_path, paths):
    prepare(own(tmp_path, *GOOD), paths)
    before = read_corpus(*paths)
    with pytest.raises(CorpusError, match="duplicate"):
        prepare(own(tmp_path, *GOOD, record("a")), paths)
    assert read_corpus(*paths) == before


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_split_without_a_supervised_token_is_refused(tmp_path, paths, split):
    emptied = [dict(row, labels=[UNSUPERVISED] * len(row["labels"])) if row["split"] == split else row for row in GOOD]
    with pytest.raises(CorpusError, match=rf"mine\.jsonl has no supervised token .* in split '{split}'"):
        prepare(own(tmp_path, *emptied), paths)
    assert list(paths[0].parent.iterdir()) == []


def test_rows_to_score_without_a_supervised_token_are_refused(tmp_path, paths):
    """A split may be absent, but its score over no token would be 0/0, hours later."""
    prepare(own(tmp_path, *GOOD), paths)
    with pytest.raises(CorpusError, match=r"no supervised token .* in split 'validation'"):
        prepare(own(tmp_path, *GOOD, record("v", "validation", (1,), (UNSUPERVISED,))), paths)


CLASSES = ("letter", "digit", "space", "other")


def class_of(character):
    kinds = (character.isalpha(), character.isdigit(), character.isspace(), True)
    return kinds.index(True)


def test_real_text_goes_through_corpus_and_plan(tmp_path, paths):
    """The paragraphs of Python's own help: 2 to some 1000 characters, each labelled by its kind."""
    text = "\n\n".join(pydoc_data.topics.topics[topic] for topic in sorted(pydoc_data.topics.topics)[:12])
    paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph.strip()]
    lines = [
        record(f"p{index}", "test" if index % 10 == 9 else "train", paragraph, [class_of(c) for c in paragraph])
        for index, paragraph in enumerate(paragraphs)
    ]
    corpus = own(tmp_path, *lines)
    training = prepare(corpus, paths)
    read, lock = read_corpus(*paths)

    characters = list(dict.fromkeys("".join(paragraphs)))
    assert shape_in(lock) == Shape(len(characters), len(CLASSES), max(map(len, paragraphs)))
    restored = "".join(characters[token] for token in read["p3"].tokens)
    assert restored == paragraphs[3]

    plan = list(make_plan(training, seed=1, steps=3, world_size=2, accumulation=2, batch=2))
    counts = counts_per_rank(plan[windows_to_compare(plan, read)["most_unequal"]], read)
    assert counts[1] > 5 * counts[0]  # paragraphs are very unequal, so a mean of means would be far off


def test_a_shape_is_read_from_the_lock():
    shape = Shape(3, 2, 7)
    assert shape_in({"shape": dataclasses.asdict(shape)}) == shape


def test_the_lock_holds_the_words_where_tokens_are_words(tmp_path, paths):
    corpus = own(tmp_path, record("a", tokens=("x", "y")), record("b", "test", ("z",), (1,)))
    write_corpus(rows(corpus, 0), corpus, *paths, vocabulary(corpus, 0))
    assert read_corpus(*paths)[1]["vocabulary"] == ["x", "y", "z"]
    prepare(TINY, paths)
    assert "vocabulary" not in read_corpus(*paths)[1]


def lock_images(corpus, paths):
    write_corpus(rows(corpus, 17), corpus, *paths, images=recipe_of_images(corpus, 17))
    return read_corpus(*paths)


def own_images(path):
    return OwnImages(path=str(path), train=7, validation=2, test=3)


def test_the_images_behind_the_rows_are_those_of_the_lock(paths):
    corpus = Images(train=5, validation=0, test=3, classes=4, size=6, noise=0.5)
    read, lock = lock_images(corpus, paths)
    assert list(read.values()) == list(rows(corpus, 17))
    assert shape_in(lock) == ImageShape(classes=4, channels=3, height=6, width=6)
    assert lock["counts"]["train"] == {"rows": 5, "tokens": 0, "supervised": 5}
    again, _ = read_corpus(*paths)
    one, other = read["test-00001"].image(), again["test-00001"].image()
    assert (one.shape, one.dtype) == ((3, 6, 6), numpy.float32)
    assert numpy.array_equal(one, other)
    require_same_source(corpus, lock, paths[1])


def test_own_images_of_a_file_are_those_that_were_locked(tmp_path, paths):
    images, labels = pictures()
    corpus = own_images(write_npz(tmp_path / "mine.npz", images=images, labels=labels))
    read, lock = lock_images(corpus, paths)
    assert shape_in(lock) == ImageShape(classes=3, channels=1, height=8, width=6)
    for row in read.values():
        assert row.image() == pytest.approx(images[row.index] / 127.5 - 1, abs=1e-6)
    require_same_source(corpus, lock, paths[1])
    write_npz(tmp_path / "mine.npz", images=images[::-1], labels=labels)
    with pytest.raises(CorpusError, match=r"mine\.npz has changed since prepare .*: prepare again"):
        require_same_source(corpus, lock, paths[1])
    with pytest.raises(CorpusError, match=r"mine\.npz has changed since prepare .*: prepare again"):
        read_corpus(*paths)[0]["train-00000"].image()
    (tmp_path / "mine.npz").unlink()
    with pytest.raises(CorpusError, match=r"mine\.npz is gone since prepare: put it back, or prepare again"):
        require_same_source(corpus, lock, paths[1])


@pytest.mark.parametrize(("change", "problem"), [("new", "bee/new.png is new"), ("gone", "bee/005.png is gone")])
def test_a_folder_must_hold_the_images_that_were_locked(tmp_path, paths, change, problem):
    folder = write_folder(tmp_path / "folder", *pictures())
    corpus = own_images(folder)
    _, lock = lock_images(corpus, paths)
    require_same_source(corpus, lock, paths[1])
    if change == "new":
        (folder / "bee" / "new.png").touch()
    else:
        (folder / "bee" / "005.png").unlink()
    with pytest.raises(CorpusError, match=rf"folder has changed since prepare \({problem}\): prepare again"):
        require_same_source(corpus, lock, paths[1])


def test_a_folder_that_is_gone_is_named(tmp_path, paths):
    folder = write_folder(tmp_path / "folder", *pictures())
    corpus = own_images(folder)
    _, lock = lock_images(corpus, paths)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(CorpusError, match=r"folder is gone since prepare: put it back, or prepare again"):
        require_same_source(corpus, lock, paths[1])
    assert len(read_corpus(*paths)[0]) == 12  # who needs no pixels does without them


def test_images_that_are_refused_leave_nothing_behind(tmp_path, paths):
    folder = write_folder(tmp_path / "folder", *pictures())
    (folder / "bee" / "005.png").write_text("no image")
    with pytest.raises(CorpusError, match=r"bee/005\.png cannot be read as an image"):
        lock_images(own_images(folder), paths)
    assert not paths[0].exists()
