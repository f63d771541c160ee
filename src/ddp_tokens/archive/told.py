"""Small phrases that more than one page or message needs, and the texts of others, made safe to show."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

WINDOWS = {"first": "the first window", "most_unequal": "the window whose ranks differ most"}


def joined(parts: Iterable[str], last: str = " and ") -> str:
    """ "a, b and c"."""
    *first, end = list(parts) or [""]
    return f"{', '.join(first)}{last}{end}" if first else end


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def more(number: int, form: str = " and {} more") -> str:
    """Of those that are not named, behind those that are; nothing where there are none."""
    return form.format(f"{number:,}") if number > 0 else ""


def shown(text: str) -> str:
    r"""As one line without effect on a terminal, and which can be printed: all else is told as \n, \x1b or \u202e.

    The same again for a text that is shown already.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode()


def window_text(window: str) -> str:
    """Of a window of gradient parity, see plan.windows_to_compare."""
    return WINDOWS.get(window, f"the window {window.replace('_', ' ')}")


def part_of(observed: Mapping[str, Any]) -> float | None:
    """Error / tolerance: infinite where it is no number, or none is allowed; None where no tolerance is stated."""
    error, tolerance = observed.get("error"), observed.get("tolerance")
    if tolerance is None:
        return None
    if not isinstance(error, int | float) or not isinstance(tolerance, int | float):
        return math.inf
    return error / tolerance if tolerance else math.inf if error else 0.0
