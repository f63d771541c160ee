"""English sentences, made from a seed: tense, aspect, agreement, negation, questions. No torch."""

import math
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product

from ddp_tokens.config import VerbGrammar
from ddp_tokens.corpora.rows import Row, next_tokens
from ddp_tokens.corpora.text import BEGIN, as_text
from ddp_tokens.corpora.verb_words import (
    ANIMALS,
    ASPECTS,
    BE,
    FUTURE,
    PEOPLE,
    SUPPORT,
    THIRD_PERSON_SINGULAR,
    TIMES,
    VERBS,
    Aspect,
    Forms,
    Tense,
    Verb,
)
from ddp_tokens.errors import CorpusError

Words = tuple[str, ...]

# Stated, and counted by a test: making them all takes longer than all else that is asked before a rebuild.
NUMBER_OF_SENTENCES = 63_569


def make(corpus: VerbGrammar, seed: int) -> Iterator[Row]:
    """Training rows first, then validation, then test. Tokens are `<s>`, the words and the final mark; each is labelled
    with the next, the last with none. No sentence stands there twice.

    Raises CorpusError when more sentences are asked for than there are.
    """
    number_of = {word: number for number, word in enumerate(vocabulary(corpus, seed))}
    drawn = iter(_draw(corpus, seed))
    for split, rows in (("train", corpus.train), ("validation", corpus.validation), ("test", corpus.test)):
        for index in range(rows):
            words = next(drawn)
            tokens = tuple(number_of[word] for word in (BEGIN, *words))
            yield Row(f"{split}-{index:05d}", split, tokens, next_tokens(tokens), as_text(words))


def vocabulary(corpus: VerbGrammar, seed: int) -> list[str]:
    """The words of all splits, by number: `<s>`, then the others, sorted. Raises CorpusError as `make` does."""
    return [BEGIN, *sorted({word for words in _draw(corpus, seed) for word in words})]


def is_sentence(text: str) -> bool:
    """Whether this grammar can make the sentence, as a person writes it: "Has she eaten an apple?"."""
    return text in _texts()


def require_enough(corpus: VerbGrammar) -> None:
    """Raises CorpusError when more sentences are asked for than there are."""
    asked = corpus.train + corpus.validation + corpus.test
    if asked > NUMBER_OF_SENTENCES:
        raise CorpusError(
            f"corpus.train + corpus.validation + corpus.test = {corpus.train} + {corpus.validation} + {corpus.test} = "
            f"{asked} sentences, but the grammar makes only {NUMBER_OF_SENTENCES} different ones: lower them"
        )


@cache
def sentences() -> tuple[Words, ...]:
    """All sentences, each once, in a fixed order: words and final mark, without `<s>`."""
    made = (
        words
        for verb in VERBS
        for subject in (PEOPLE + ANIMALS if verb.animals else PEOPLE)
        for tense, aspect in TIMES[verb.kind]
        for words in _sentences_of(verb, subject, tense, aspect)
    )
    return tuple(dict.fromkeys(made))  # "I read a book." is present and past


@cache
def _texts() -> frozenset[str]:
    return frozenset(map(as_text, sentences()))


@cache
def _draw(corpus: VerbGrammar, seed: int) -> tuple[Words, ...]:
    """Sentences of all splits, in the order of the rows.

    Drawn evenly, nearly all would be of middle length, and "she writes" would be lost among the many sentences that can
    be made with "will" and "been". So a sentence is drawn the more easily the fewer share its length and its rarest
    word: the smallest of random numbers, each times the root of both counts.
    """
    require_enough(corpus)
    rng, of_length = random.Random(seed), Counter(map(len, sentences()))
    of_word = Counter(word for words in sentences() for word in words)
    ranked = sorted(
        (rng.random() * math.sqrt(of_length[len(words)] * min(map(of_word.__getitem__, words))), words)
        for words in sentences()
    )
    drawn = [words for _, words in ranked[: corpus.train + corpus.validation + corpus.test]]
    rng.shuffle(drawn)  # what had run out came first
    return tuple(drawn)


def _sentences_of(verb: Verb, subject: str, tense: Tense, aspect: Aspect) -> Iterator[Words]:
    """With and without negation, as statement and as question, with every object and time."""
    who = subject.split()
    for negated, asked in product((False, True), repeat=2):
        finite, *rest = _verb_group(verb.forms, subject, tense, aspect, supported=negated or asked)
        start = [finite, *who] if asked else [*who, finite]
        start += ["not"] * negated
        for end in _ends(verb, tense, aspect, negated or asked):
            yield (*start, *rest, *end, "?" if asked else ".")


def _verb_group(verb: Forms, subject: str, tense: Tense, aspect: Aspect, supported: bool) -> list[str]:
    """The finite word, then the others: ["has", "been", "writing"].

    `supported`: the sentence needs a finite word to deny or to move to the front, so a simple tense takes do.
    """
    auxiliaries = list(ASPECTS[aspect])
    if tense == "future":
        auxiliaries.insert(0, FUTURE)
    elif supported and not auxiliaries:
        auxiliaries = [SUPPORT]
    first, *others = [*(auxiliary for auxiliary, _ in auxiliaries), verb]
    asked_for = [form for _, form in auxiliaries]
    return [
        _finite(first, subject, tense),
        *(getattr(word, form) for word, form in zip(others, asked_for, strict=True)),
    ]


def _finite(word: Forms, subject: str, tense: Tense) -> str:
    """The form that agrees with the subject. In the future it is "will", which is the same for all."""
    singular = subject in THIRD_PERSON_SINGULAR
    if word is BE and not singular:
        if tense == "past":
            return "was" if subject == "I" else "were"
        return "am" if subject == "I" else "are"
    if tense == "past":
        return word.past
    return word.third if singular else word.base


@cache
def _ends(verb: Verb, tense: Tense, aspect: Aspect, open_: bool) -> tuple[Words, ...]:
    """What follows the verb: each object with each time that fits, and with none.

    `open_`: denied or asked, so that "yet" fits a present perfect.
    """
    yet = ("yet",) if open_ and (tense, aspect) == ("present", "perfect") and verb.kind != "state" else ()
    times = ("", *TIMES[verb.kind][tense, aspect], *yet)
    return tuple((*what.split(), *time.split()) for what, time in product(verb.objects, times))
