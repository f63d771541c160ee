import re

import pytest

from ddp_tokens.corpora.verb_words import ANIMALS, PEOPLE, TIMES, VERBS

FORMS = {verb.forms.base: verb.forms for verb in VERBS}
# Past and participle, as a dictionary lists them. All other verbs are regular.
IRREGULAR = {
    "sleep": ("slept", "slept"),
    "swim": ("swam", "swum"),
    "run": ("ran", "run"),
    "eat": ("ate", "eaten"),
    "drink": ("drank", "drunk"),
    "write": ("wrote", "written"),
    "read": ("read", "read"),
    "sing": ("sang", "sung"),
    "break": ("broke", "broken"),
    "buy": ("bought", "bought"),
    "cut": ("cut", "cut"),
    "come": ("came", "come"),
    "know": ("knew", "known"),
}


def stem(base):
    """What -ing and -ed are added to: stopp(ing), writ(ing); one syllable, one vowel, one consonant: doubled."""
    if re.fullmatch(r"[^aeiou]*[aeiou][bdgklmnprt]", base):
        return base + base[-1]
    return base.removesuffix("e")


def third_person(base):
    if re.search(r"[^aeiou]y$", base):
        return base[:-1] + "ies"
    return base + ("es" if base.endswith("ch") else "s")


def regular_past(base):
    return base[:-1] + "ied" if re.search(r"[^aeiou]y$", base) else stem(base) + "ed"


def test_the_rules_of_spelling_that_the_next_tests_use():
    assert [stem(base) + "ing" for base in ("stop", "write", "open", "play")] == [
        "stopping",
        "writing",
        "opening",
        "playing",
    ]
    assert [third_person(base) for base in ("try", "play", "watch")] == ["tries", "plays", "watches"]
    assert [regular_past(base) for base in ("try", "play", "stop", "like")] == ["tried", "played", "stopped", "liked"]


@pytest.mark.parametrize("base", FORMS)
def test_forms_are_spelled_right(base):
    forms = FORMS[base]
    assert forms.third == third_person(base)
    assert forms.ing == stem(base) + "ing"
    assert (forms.past, forms.participle) == IRREGULAR.get(base, (regular_past(base),) * 2)


def test_regular_and_irregular_verbs_of_each_kind_stand_in_the_list():
    assert set(IRREGULAR) < set(FORMS)
    assert len(FORMS) == len(VERBS) == 21
    assert {verb.kind for verb in VERBS if verb.forms.base in IRREGULAR} == {"activity", "event", "state"}
    assert {verb.kind for verb in VERBS if verb.forms.base not in IRREGULAR} == {"activity", "event", "state"}


def test_a_state_has_no_progressive_and_an_event_no_perfect_progressive():
    aspects = {kind: {aspect for _, aspect in times} for kind, times in TIMES.items()}
    assert aspects["state"] == {"simple", "perfect"}
    assert aspects["event"] == {"simple", "perfect", "progressive"}
    assert aspects["activity"] == {"simple", "perfect", "progressive", "perfect progressive"}
    assert {len(times) for times in TIMES.values()} == {3 * 2, 3 * 3, 3 * 4}  # each in three tenses


def test_no_subject_stands_there_twice():
    assert len({*PEOPLE, *ANIMALS}) == len(PEOPLE) + len(ANIMALS) == 15
