import math

import pytest

from ddp_tokens.archive.told import joined, part_of, plural, window_text


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
