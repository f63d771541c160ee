import hashlib
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from statistics import pstdev

import pytest

from ddp_tokens.config import VerbGrammar
from ddp_tokens.corpora import rows, vocabulary
from ddp_tokens.corpora.lock import Shape, read_corpus, shape_in, write_corpus
from ddp_tokens.corpora.rows import UNSUPERVISED, supervised
from ddp_tokens.corpora.text import as_text
from ddp_tokens.corpora.verb_grammar import NUMBER_OF_SENTENCES, is_sentence, make, require_enough, sentences
from ddp_tokens.errors import CorpusError

SMALL = VerbGrammar(train=60, validation=5, test=10)
SINGULAR = {"he", "she", "it", "the teacher", "the child", "the dog"}
PLURAL = {
    "you",
    "we",
    "they",
    "the teachers",
    "the children",
    "the dogs",
    "the teacher and I",
    "the child and the dog",
}
SUBJECTS = {"I", *SINGULAR, *PLURAL}
LONGEST_FIRST = sorted(SUBJECTS, key=len, reverse=True)


@pytest.fixture(scope="module")
def corpus():
    return list(make(VerbGrammar(), 17))


RIGHT = """
She writes a letter every day.
She is writing a letter now.
She has written a letter today.
She has been writing a letter for an hour.
She wrote a letter an hour ago.
She was writing a letter yesterday at noon.
She had written a letter by then.
She had been writing a letter all day.
She will write a letter tomorrow.
She will be writing a letter tomorrow at noon.
She will have written a letter by noon.
She will have been writing a letter for an hour.
She does not write a letter.
She is not writing.
She has not written yet.
She had not been writing.
She did not write yesterday.
She will not have been writing all day.
Does she write every day?
Is she writing at the moment?
Has she written a letter yet?
Did she not write a letter?
Was she writing?
Will she not be writing tomorrow?
Will the teacher and I have been playing the piano for an hour?
I am sleeping.
Am I not sleeping?
I was sleeping.
Were the teacher and I not sleeping?
The child and the dog are coming home.
The teachers know the answer.
Has the dog not eaten an apple yet?
It drank the milk.
"""

WRONG = {
    "agreement": "The teachers drinks water.",
    "agreement of be": "I is sleeping.",
    "agreement of a joined subject": "The teacher and I was sleeping.",
    "agreement of have": "He have written a letter.",
    "a state in the progressive": "She is knowing the answer.",
    "an event that lasts": "He has been stopping the car for an hour.",
    "an article": "She eats a apple.",
    "no article": "She eats apple.",
    "a second finite form": "Does she writes a letter?",
    "a past after did": "Did she wrote a letter?",
    "no do": "She not writes a letter.",
    "no inversion": "She has written a letter?",
    "inversion in a statement": "Has she written a letter.",
    "a past for a participle": "She has wrote a letter.",
    "a participle for a past": "She written a letter.",
    "a time of another tense": "She will write yesterday.",
    "yet without a question or not": "She has written a letter yet.",
    "an object that does not fit": "She eats the letter.",
    "an object where none can be": "She sleeps the cake.",
    "no object where one is needed": "She knows.",
    "a dog that reads": "The dog reads a book.",
    "no final mark": "She writes",
    "no capital": "she writes.",
    "a space before the mark": "She writes .",
    "two spaces": "She  writes.",
    "the begin token": "<s> She writes.",
    "two sentences": "She writes. She writes.",
    "nothing": "",
}


@pytest.mark.parametrize("text", RIGHT.strip().splitlines())
def test_english_that_the_grammar_makes(text):
    assert is_sentence(text)


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG.keys())
def test_what_is_no_english_is_not_made(text):
    assert not is_sentence(text)


def test_all_sentences_are_counted_and_each_is_made_once():
    assert len(sentences()) == len(set(map(as_text, sentences()))) == NUMBER_OF_SENTENCES == 63_569


def split_up(words):
    """Finite word, subject and the rest of a sentence, by the position of its subject."""
    asked = words[-1] == "?"
    line = " ".join(words[1:] if asked else words)
    [subject] = [name for name in LONGEST_FIRST if line.startswith(f"{name} ")][:1]
    rest = line.removeprefix(f"{subject} ").split()
    return (words[0], subject, rest) if asked else (rest[0], subject, rest[1:])


def test_each_finite_word_agrees_with_all_its_subjects():
    subjects_of = defaultdict(set)
    for words in sentences():
        finite, subject, _ = split_up(words)
        subjects_of[finite].add(subject)
    assert set().union(*subjects_of.values()) == SUBJECTS
    assert subjects_of["am"] == {"I"}
    assert subjects_of["is"] == subjects_of["has"] == subjects_of["does"] == SINGULAR
    assert subjects_of["was"] == {"I", *SINGULAR}
    assert subjects_of["are"] == subjects_of["were"] == PLURAL
    assert subjects_of["have"] == subjects_of["do"] == subjects_of["eat"] == {"I", *PLURAL}
    assert subjects_of["eats"] == SINGULAR
    assert subjects_of["ate"] == subjects_of["did"] == subjects_of["had"] == subjects_of["will"] == SUBJECTS
    assert subjects_of["writes"] == {"he", "she", "the teacher", "the child"}
    thirds = {word for word in subjects_of if word.endswith("s")} - {"is", "was", "has", "does"}
    assert len(thirds) == 21  # one of each verb
    assert all(subjects_of[word] <= SINGULAR for word in thirds)


def test_questions_and_denials_have_an_auxiliary():
    auxiliaries = {"am", "is", "are", "was", "were", "has", "have", "had", "do", "does", "did", "will"}
    lexical = set()
    for words in sentences():
        finite, _, rest = split_up(words)
        assert words.count("not") == rest[:1].count("not") <= 1  # right behind the finite word, or behind the subject
        if words[-1] == "?" or "not" in words:
            assert finite in auxiliaries
        else:
            assert finite not in {"do", "does", "did"}
            lexical.add(finite)
    assert {"wrote", "writes", "write", "will", "is"} <= lexical


@pytest.mark.parametrize(
    ("time", "finite_words"),
    [
        ("yesterday", r"was|were|did|.*ed|slept|swam|ran|ate|drank|wrote|read|sang|broke|bought|cut|came"),
        ("ago", r"did|.*ed|slept|swam|ran|ate|drank|wrote|read|sang|broke|bought|cut|came"),
        ("tomorrow", "will"),
        ("now", "am|is|are|do|does|knows?|likes?"),
        ("moment", "am|is|are"),
        ("yet", "has|have"),
        ("today", "has|have"),
        ("years", "has|have|had"),
        ("hour .", "has|have|had|will"),
        ("day ?", "has|have|had|will|do|does"),
    ],
)
def test_a_time_fits_the_tense(time, finite_words):
    found = set()
    for words in sentences():
        if f" {time} " in f" {' '.join(words)} ":
            found.add(split_up(words)[0])
            assert re.fullmatch(finite_words, split_up(words)[0]), words
    assert found


def test_articles_fit_the_word_that_follows():
    """The words with a vowel sound first: an hour, an apple, an egg."""
    followers = defaultdict(set)
    for words in sentences():
        for article, word in pairwise(words):
            followers[article].add(word)
    assert followers["an"] == {"hour", "apple", "egg"}
    assert followers["a"] == {"letter", "book", "song", "film", "cup"}


def test_splits_come_in_order_and_no_sentence_twice(corpus):
    assert [row.id for row in corpus] == [
        f"{split}-{index:05d}"
        for split, number in (("train", 3200), ("validation", 200), ("test", 400))
        for index in range(number)
    ]
    assert all(row.id.startswith(row.split) for row in corpus)
    assert len({row.text for row in corpus}) == len({row.tokens for row in corpus}) == 3800


def test_tokens_are_the_words_and_labels_the_next_words(corpus):
    words = vocabulary(VerbGrammar(), 17)
    assert words == ["<s>", *sorted(words[1:])]
    for row in corpus:
        written = [words[token] for token in row.tokens]
        assert written[0] == "<s>"
        assert written[-1] in (".", "?")
        assert "<s>" not in written[1:]
        assert row.text == as_text(written)
        assert is_sentence(row.text)
        assert row.labels == (*row.tokens[1:], UNSUPERVISED)
        assert supervised(row) == len(row.tokens) - 1


def test_three_rows_by_hand():
    """Sorted: marks, then I, then small letters."""
    three = VerbGrammar(train=1, validation=1, test=1)
    words = "<s> . ? I ago an cake did drank eat hour knows not now she song the they water"
    assert " ".join(vocabulary(three, 5)) == words
    train, validation, test = make(three, 5)
    assert train.text == "Did I not eat the cake an hour ago?"
    assert train.tokens == (0, 7, 3, 12, 9, 16, 6, 5, 10, 4, 2)
    assert train.labels == (7, 3, 12, 9, 16, 6, 5, 10, 4, 2, -100)
    assert (validation.text, validation.tokens) == ("She knows the song now.", (0, 14, 11, 16, 15, 13, 1))
    assert (test.id, test.text, test.labels) == ("test-00000", "They drank water.", (17, 8, 18, 1, -100))


def test_the_vocabulary_is_that_of_the_rows(corpus):
    assert len(vocabulary(VerbGrammar(), 17)) == 156
    assert {token for row in corpus for token in row.tokens} == set(range(156))
    small = vocabulary(SMALL, 0)
    assert {token for row in make(SMALL, 0) for token in row.tokens} == set(range(len(small)))
    assert len(small) < 156


def test_every_word_of_the_grammar_is_trained(corpus):
    """Drawn evenly from this seed, "knew", "reads", "swims" and "tries" would be missing: of 63,569 sentences only 32
    have "stops".
    """
    words = vocabulary(VerbGrammar(), 17)
    trained = Counter(words[token] for row in corpus if row.split == "train" for token in row.tokens)
    assert set(trained) == {"<s>", *(word for words in sentences() for word in words)}
    assert min(trained.values()) >= 3
    assert sum(words.count("stops") for words in sentences()) == 32  # 4 subjects, 2 objects, 3 times and none


@pytest.mark.parametrize("split", ["train", "test"])
def test_lengths_differ_more_than_those_of_all_sentences(corpus, split):
    """`<s>` is a token too, and it does not change how far lengths lie apart."""
    lengths = [len(row.tokens) for row in corpus if row.split == split]
    assert min(lengths) == 4  # <s> they sleep .
    assert 14 < max(lengths) <= 17
    assert pstdev(lengths) > 1.25 * pstdev(map(len, sentences()))


def test_statements_questions_and_denials_are_all_common(corpus):
    training = [row.text for row in corpus if row.split == "train"]
    found = Counter((text[-1], " not " in text) for text in training)
    assert len(found) == 4
    assert min(found.values()) > len(training) / 6


def test_the_same_seed_gives_the_same_rows_and_another_seed_others():
    first = list(rows(SMALL, 17))
    assert list(make(SMALL, 17)) == first
    assert {row.text for row in first} != {row.text for row in rows(SMALL, 18)}


def digest_in_a_process_of_its_own(hash_seed):
    code = (
        "import hashlib; from ddp_tokens.config import VerbGrammar; from ddp_tokens.corpora.verb_grammar import make; "
        "print(hashlib.sha256(repr(list(make(VerbGrammar(train=60, validation=5, test=10), 17))).encode()).hexdigest())"
    )
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_no_row_depends_on_the_order_of_hashes():
    here = hashlib.sha256(repr(list(make(SMALL, 17))).encode()).hexdigest()
    assert {digest_in_a_process_of_its_own(seed) for seed in (1, 2)} == {here}


def test_all_sentences_can_be_asked_for_and_not_one_more():
    everything = list(make(VerbGrammar(train=NUMBER_OF_SENTENCES - 1001, validation=1, test=1000), 0))
    assert {row.text for row in everything} == {as_text(words) for words in sentences()}
    # What is drawn most easily comes first, and is dealt to all splits alike: 1.4 % of all have 4 or 5 tokens.
    assert 5 <= sum(len(row.tokens) <= 5 for row in everything[-1000:]) <= 25
    too_many = VerbGrammar(train=NUMBER_OF_SENTENCES - 2, validation=2, test=1)
    sentence = (
        r"^corpus\.train \+ corpus\.validation \+ corpus\.test = 63567 \+ 2 \+ 1 = 63570 sentences, but the grammar "
        "makes only 63569 different ones: lower them$"
    )
    for ask in (require_enough, lambda corpus: next(make(corpus, 0)), lambda corpus: vocabulary(corpus, 0)):
        with pytest.raises(CorpusError, match=sentence):
            ask(too_many)


def test_the_lock_holds_the_words_and_the_model_covers_them(tmp_path):
    paths = tmp_path / "rows.jsonl", tmp_path / "lock.json"
    write_corpus(rows(SMALL, 17), SMALL, *paths, vocabulary(SMALL, 17))
    read, lock = read_corpus(*paths)
    assert list(read.values()) == list(rows(SMALL, 17))
    words = lock["vocabulary"]
    assert words == vocabulary(SMALL, 17)
    longest = max(len(row.tokens) for row in read.values())
    assert shape_in(lock) == Shape(vocabulary=len(words), classes=len(words), positions=longest)
    assert [as_text([words[token] for token in row.tokens]) for row in read.values()] == [
        row.text for row in rows(SMALL, 17)
    ]
