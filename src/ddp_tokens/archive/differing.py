"""Where two JSON documents differ, as phrases a person can follow."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# Another processor may add up a norm in another order. That moves its last of 16 digits, and a tolerance is missed or
# kept by far more: what is altered on purpose moves more than this, or decides nothing.
RELATIVE = 1e-6
LONGEST = 120
NOTHING = object()
Same = Callable[[Any, Any], bool]


def differences(stated: Any, found: Any, where: str = "") -> Iterator[str]:
    """`stated`: what the archive says; `found`: what was computed again. Numbers that are no integers may differ a
    little; nothing else may, nor may a field or an entry be missing.
    """
    for place, first, second in unlike(stated, found, _is_same, where):
        yield f"{place or 'it'} is {first}, computed again it is {second}"


def unlike(first: Any, second: Any, same: Same, where: str = "") -> Iterator[tuple[str, str, str]]:
    """Each place of two JSON values, with what either side has there, on one line. `same`: of two single values."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in sorted({*first, *second}):
            pair = first.get(name, NOTHING), second.get(name, NOTHING)
            yield from unlike(*pair, same, f"{where}.{name}" if where else str(name))
    elif _is_list(first) and _is_list(second):
        if len(first) != len(second):
            yield where, f"a list of {len(first)}", f"a list of {len(second)}"
        for index, pair in enumerate(zip(first, second, strict=False)):
            yield from unlike(*pair, same, f"{where}[{index}]")
    elif first is NOTHING or second is NOTHING or not same(first, second):
        yield where, shown(first), shown(second)


def _is_same(stated: Any, found: Any) -> bool:
    if isinstance(stated, float | int) and isinstance(found, float | int):
        if isinstance(stated, bool) or isinstance(found, bool):
            return stated is found
        if isinstance(stated, float) or isinstance(found, float):
            return _is_close(stated, found)
    return type(stated) is type(found) and bool(stated == found)


def _is_close(stated: float, found: float) -> bool:
    try:
        return math.isclose(stated, found, rel_tol=RELATIVE, abs_tol=0)
    except OverflowError:  # an integer larger than any float
        return False


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def shown(value: Any) -> str:
    """On one line, and not longer than that."""
    if value is NOTHING:
        return "missing"
    text = json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
