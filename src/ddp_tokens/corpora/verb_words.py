"""The words of the verb grammar, and what may go with what."""

from dataclasses import dataclass
from typing import Literal

Tense = Literal["present", "past", "future"]
Aspect = Literal["simple", "progressive", "perfect", "perfect progressive"]
Kind = Literal["activity", "event", "state"]
Form = Literal["base", "ing", "participle"]


@dataclass(frozen=True)
class Forms:
    """All forms of a verb. They are written out, not spelled by rule, so that a reader can check them."""

    base: str
    third: str
    ing: str
    past: str
    participle: str


@dataclass(frozen=True)
class Verb:
    """`objects`: what may follow; "" where nothing need follow. `animals`: whether a dog can do it."""

    forms: Forms
    kind: Kind
    objects: tuple[str, ...]
    animals: bool = False


def _verb(forms: str, kind: Kind, *objects: str, animals: bool = False) -> Verb:
    return Verb(Forms(*forms.split()), kind, objects or ("",), animals)


VERBS = (
    _verb("sleep sleeps sleeping slept slept", "activity", animals=True),
    _verb("swim swims swimming swam swum", "activity", animals=True),
    _verb("run runs running ran run", "activity", animals=True),
    _verb("work works working worked worked", "activity"),
    _verb("eat eats eating ate eaten", "activity", "an apple", "an egg", "the cake", animals=True),
    _verb("drink drinks drinking drank drunk", "activity", "water", "the milk", animals=True),
    _verb("write writes writing wrote written", "activity", "", "a letter", "a book"),
    _verb("read reads reading read read", "activity", "", "a book", "the letter"),
    _verb("sing sings singing sang sung", "activity", "", "a song"),
    _verb("play plays playing played played", "activity", "", "the piano"),
    _verb("watch watches watching watched watched", "activity", "a film", "the dogs"),
    _verb("clean cleans cleaning cleaned cleaned", "activity", "the car", "the window"),
    _verb("stop stops stopping stopped stopped", "event", "the car", "the bus"),
    _verb("try tries trying tried tried", "event", "the cake", "the milk"),
    _verb("open opens opening opened opened", "event", "the door", "the window"),
    _verb("break breaks breaking broke broken", "event", "a cup", "the window"),
    _verb("buy buys buying bought bought", "event", "a book", "an egg"),
    _verb("cut cuts cutting cut cut", "event", "the cake", "an apple"),
    _verb("come comes coming came come", "event", "home", animals=True),
    _verb("know knows knowing knew known", "state", "the answer", "the song"),
    _verb("like likes liking liked liked", "state", "the film", "the song"),
)

BE = Forms("be", "is", "being", "was", "been")
HAVE = Forms("have", "has", "having", "had", "had")
DO = Forms("do", "does", "doing", "did", "done")
WILL = Forms("will", "will", "", "", "")

# What each auxiliary asks of the word after it. The first word of all is the finite one.
ASPECTS: dict[Aspect, tuple[tuple[Forms, Form], ...]] = {
    "simple": (),
    "progressive": ((BE, "ing"),),
    "perfect": ((HAVE, "participle"),),
    "perfect progressive": ((HAVE, "participle"), (BE, "ing")),
}
FUTURE: tuple[Forms, Form] = (WILL, "base")
SUPPORT: tuple[Forms, Form] = (DO, "base")

SINGULAR = ("he", "she", "the teacher", "the child")
PLURAL = ("you", "we", "they", "the teachers", "the children", "the teacher and I")
PEOPLE = ("I", *SINGULAR, *PLURAL)
SINGULAR_ANIMALS = ("it", "the dog")
ANIMALS = (*SINGULAR_ANIMALS, "the dogs", "the child and the dog")
THIRD_PERSON_SINGULAR = frozenset((*SINGULAR, *SINGULAR_ANIMALS))

Times = dict[tuple[Tense, Aspect], tuple[str, ...]]

# What a verb is of decides its tenses, and a tense its adverbials: an event has no "for an hour", a state no "-ing".
_EVENT: Times = {
    ("present", "simple"): ("every day", "at noon", "every day at noon"),
    ("present", "progressive"): ("now", "at the moment"),
    ("present", "perfect"): ("today",),
    ("past", "simple"): ("yesterday", "an hour ago", "yesterday at noon"),
    ("past", "progressive"): ("at noon", "yesterday at noon"),
    ("past", "perfect"): ("by then", "by noon"),
    ("future", "simple"): ("tomorrow", "at noon", "tomorrow at noon"),
    ("future", "progressive"): ("tomorrow", "tomorrow at noon"),
    ("future", "perfect"): ("by noon", "by tomorrow"),
}
TIMES: dict[Kind, Times] = {
    "event": _EVENT,
    "activity": _EVENT
    | {
        ("present", "perfect progressive"): ("all day", "for an hour"),
        ("past", "perfect progressive"): ("all day", "for an hour"),
        ("future", "perfect progressive"): ("all day", "for an hour"),
    },
    "state": {
        ("present", "simple"): ("now",),
        ("present", "perfect"): ("for years",),
        ("past", "simple"): ("then",),
        ("past", "perfect"): ("for years",),
        ("future", "simple"): ("tomorrow",),
        ("future", "perfect"): (),
    },
}
