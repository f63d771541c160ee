"""Where two JSON documents differ, as phrases a person can follow."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Another processor may add up a norm in another order. That moves its last of 16 digits, and a tolerance is missed or
# kept by far more: what is altered on purpose moves more than this, or decides nothing.
RELATIVE = 1e-6
LONGEST = 120
NOTHING = object()


def differences(stated: Any, found: Any, where: str = "") -> Iterator[str]:
    """`stated`: what the archive says; `found`: what was computed again. Numbers that are no integers may differ a
    little; nothing else may, nor may a field or an entry be missing.
    """
    if isinstance(stated, Mapping) and isinstance(found, Mapping):
        for name in sorted({*stated, *found}):
            yield from differences(stated.get(name, NOTHING), found.get(name, NOTHING), _joined(where, name))
    elif _is_list(stated) and _is_list(found):
        if len(stated) != len(found):
            yield f"{where or 'the list'} has {len(stated)} entries, computed again it has {len(found)}"
        for index, pair in enumerate(zip(stated, found, strict=False)):
            yield from differences(*pair, f"{where}[{index}]")
    elif not _is_same(stated, found):
        yield f"{where or 'it'} is {_shown(stated)}, computed again it is {_shown(found)}"


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


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shown(value: Any) -> str:
    """On one line, and not longer than that."""
    if value is NOTHING:
        return "missing"
    text = json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
