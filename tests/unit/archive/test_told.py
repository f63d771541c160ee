import math

import pytest

from ddp_tokens.archive.told import joined, more, part_of, plural, shown, window_text


@pytest.mark.parametrize(
    ("parts", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_parts_are_joined_as_one_says_them(parts, text):
    assert joined(parts) == text


def test_one_is_no_plural():
    assert [plural(number, "rank") for number in (0, 1, 1000)] == ["0 ranks", "1 rank", "1,000 ranks"]


def test_windows_have_names_in_words_known_or_not():
    assert window_text("first") == "the first window"
    assert window_text("most_unequal") == "the window whose ranks differ most"
    assert window_text("of_your_own") == "the window of your own"


@pytest.mark.parametrize(
    ("error", "tolerance", "part"),
    [
        (2e-9, 1e-8, 0.2),
        (0.0, 0, 0.0),
        (1, 0, math.inf),
        ("nan", 1e-8, math.inf),
        (None, 1e-8, math.inf),
        (1.0, "inf", math.inf),
        (1.0, None, None),
    ],
)
def test_an_error_is_told_as_a_part_of_its_tolerance(error, tolerance, part):
    assert part_of({"error": error, "tolerance": tolerance}) == (part if part is None else pytest.approx(part))


def test_those_that_are_not_named_are_counted():
    assert [more(number) for number in (-1, 0, 1, 1000)] == ["", "", " and 1 more", " and 1,000 more"]
    assert more(2, " (and {} more)") == " (and 2 more)"


@pytest.mark.parametrize("text", ["", "a b", "é ± ≤ 漢字 \N{SNOWMAN}", r"a\n", "e\u0301"])
def test_what_can_be_seen_is_shown_as_it_is(text):
    assert shown(text) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\nok    b", r"a\nok    b"),
        ("a\r\tb", r"a\r\tb"),
        ("\x1b[8m\x7f\0", r"\x1b[8m\x7f\x00"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("a\u2028b\u2029", r"a\u2028b\u2029"),
        ("\u202eabc\u2066\u200b", r"\u202eabc\u2066\u200b"),
        ("\ud800 \udfff", r"\ud800 \udfff"),
        ("\U000e0041\ufeff", r"\U000e0041\ufeff"),
    ],
)
def test_what_acts_on_a_terminal_or_cannot_be_printed_is_told(text, told):
    """Line breaks, terminal sequences of both kinds, marks of direction, halves of a letter, and what has no shape."""
    assert shown(text) == told == shown(told)
    assert told.isprintable()
    assert told.encode()
