"""Words as a person writes them. No torch."""

from collections.abc import Sequence

BEGIN = "<s>"
FINAL = (".", "?", "!")
_CLOSE_UP = (*FINAL, ",")


def as_text(words: Sequence[str]) -> str:
    """The words as one line: a capital at the start, no space before . ? ! and the comma.

    Marks such as `<s>` are no words and are left out. Any words can be written, also those that make no sentence.
    """
    spaced = [word if word in _CLOSE_UP else f" {word}" for word in words if not _is_mark(word)]
    text = "".join(spaced).strip()
    return text[:1].upper() + text[1:]


def _is_mark(word: str) -> bool:
    return word.startswith("<") and word.endswith(">")
