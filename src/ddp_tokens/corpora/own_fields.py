"""The fields of a user's own row, checked one by one. Each function raises ValueError, saying what is wrong where.

Positions count from 0, as `starts` do.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ddp_tokens.corpora.rows import UNSUPERVISED

LARGEST_ID = 9_999_999
LARGEST_WEIGHT = 1e15  # so that sums of many stay finite
NEEDED = ("id", "split", "tokens", "labels")
BESIDES = ("weights", "document", "starts", "prompt")


def checked_id(record: dict[str, Any], needed: Sequence[str]) -> str:
    """Besides the id: that the `needed` fields are there, and no others than these and BESIDES."""
    row_id = record.get("id")
    if not isinstance(row_id, str) or not row_id:
        raise ValueError(f"the field id must be a non-empty string, not {row_id!r}")
    missing = [name for name in needed if name not in record]
    unknown = sorted(set(record) - {*needed, *BESIDES})
    if missing or unknown:
        problem = f"field '{missing[0]}' is missing" if missing else f"unknown field '{unknown[0]}'"
        if unknown == ["labels"] and not missing:
            problem += ", since corpus.labels says next_token: leave one of them out"
        raise ValueError(f"{problem} (id '{row_id}')")
    empty = [name for name in needed if record[name] is None]
    if empty:
        raise ValueError(f"field '{empty[0]}' is null (id '{row_id}')")
    return row_id


def checked_tokens(tokens: Any, numbers: dict[str, int], kinds: set[str]) -> tuple[int, ...]:
    """Each string gets its number in `numbers`. `kinds`: of the tokens so far, of which there may be one only."""
    if not isinstance(tokens, list):
        raise ValueError(f"tokens must be a list, not {tokens!r}")
    if not tokens:
        raise ValueError("the row has no token; tokens must be a list of at least one")
    strings = all(isinstance(token, str) for token in tokens)
    for token in () if strings or _are_below(LARGEST_ID + 1, tokens) else tokens:
        if not is_integer(token) or not 0 <= token <= LARGEST_ID:
            raise ValueError(f"token {token!r} is not an integer from 0 to {LARGEST_ID:,}, nor are all tokens strings")
    kinds.add("strings" if strings else "integers")
    if len(kinds) > 1:
        here, before = ("strings", "integers") if strings else ("integers", "strings")
        raise ValueError(f"tokens are {here} here and {before} in an earlier row; use one kind")
    return tuple(numbers.setdefault(token, len(numbers)) for token in tokens) if strings else tuple(tokens)


def checked_labels(labels: Any, number_of_tokens: int, classes: int | None) -> tuple[int, ...]:
    if not isinstance(labels, list) or len(labels) != number_of_tokens:
        number = len(labels) if isinstance(labels, list) else "no"
        raise ValueError(f"{number} labels for {number_of_tokens} tokens; one label per token is needed")
    below = classes or LARGEST_ID + 1
    for label in () if _are_below(below, labels) else labels:
        inside = is_integer(label) and 0 <= label < below
        if not inside and not (is_integer(label) and label == UNSUPERVISED):
            allowed = f"0 to {classes - 1 if classes else LARGEST_ID:,}"
            raise ValueError(f"label {label!r} is outside the classes, {allowed} (or {UNSUPERVISED}: not supervised)")
    return tuple(labels)


def checked_weights(weights: Any, number_of_tokens: int) -> tuple[float, ...] | None:
    if weights is None:
        return None
    if not isinstance(weights, list) or len(weights) != number_of_tokens:
        number = len(weights) if isinstance(weights, list) else "no"
        raise ValueError(f"{number} weights for {number_of_tokens} tokens; one weight per token is needed")
    for position, weight in enumerate(weights):
        is_number = isinstance(weight, float) or is_integer(weight)
        if not is_number or not 0 <= weight <= LARGEST_WEIGHT:  # NaN is not either
            raise ValueError(f"weight {weight!r} at position {position} is not a number from 0 to {LARGEST_WEIGHT:g}")
    return tuple(map(float, weights))


def checked_document(document: Any) -> str | None:
    if document is not None and (not isinstance(document, str) or not document):
        raise ValueError(f"the field document must be a non-empty string, not {document!r}")
    return document


def checked_starts(starts: Any, number_of_tokens: int) -> tuple[int, ...] | None:
    if starts is None:
        return None
    if not isinstance(starts, list) or not all(map(is_integer, starts)):
        raise ValueError(f"starts must be a list of the positions at which sequences start, not {starts!r}")
    if starts[:1] != [0]:
        raise ValueError(f"starts must begin with 0, where the row does, not {starts!r}")
    for before, start in pairwise(starts):
        if start <= before:
            raise ValueError(f"starts must increase, and {start} comes after {before}")
    if starts[-1] >= number_of_tokens:
        raise ValueError(f"starts names position {starts[-1]} in a row of {number_of_tokens} tokens; the first is 0")
    return tuple(starts)


def checked_prompts(prompt: Any, starts: tuple[int, ...] | None, number_of_tokens: int) -> tuple[int, ...]:
    """By sequence of the row, how many tokens its prompt has; nothing where there is no prompt."""
    if prompt is None:
        return ()
    lengths = [end - start for start, end in pairwise((*(starts or (0,)), number_of_tokens))]
    if starts is None and not is_integer(prompt):
        raise ValueError(f"prompt must be the number of tokens at the start whose labels do not count, not {prompt!r}")
    if starts is not None and (not isinstance(prompt, list) or len(prompt) != len(lengths)):
        raise ValueError(
            f"prompt of a packed row must be a list with a number for each of its {len(lengths)} sequences, not "
            f"{prompt!r}"
        )
    prompts = [prompt] if starts is None else prompt
    for place, (each, length) in enumerate(zip(prompts, lengths, strict=True)):
        if not is_integer(each) or not 0 <= each <= length:
            whose = "the row" if starts is None else f"sequence {place} (the first is 0)"
            raise ValueError(f"prompt {each!r} is not a number from 0 to {length}, the tokens of {whose}")
    return tuple(prompts)


def without_prompts(
    labels: tuple[int, ...], prompts: Sequence[int], starts: Sequence[int] | None, shifted: bool
) -> tuple[int, ...]:
    """The labels, with UNSUPERVISED where the target belongs to a prompt.

    `shifted`: the label at a position is the next token, so that the last position of a prompt has a target outside it,
    the first token of the answer, and counts.
    """
    masked = list(labels)
    for start, prompt in zip(starts or (0,), prompts, strict=False):
        number = max(prompt - shifted, 0)
        masked[start : start + number] = [UNSUPERVISED] * number
    return tuple(masked)


def _are_below(end: int, values: list[Any]) -> bool:
    """Whether all are integers from 0 on. At once: a look at each takes most of the time of reading a row."""
    return {*map(type, values)} == {int} and min(values) >= 0 and max(values) < end


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
