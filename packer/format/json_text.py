"""JSON as packs hold it, read from whoever made it: plain, finite, not deep, nothing said twice, in memory that its length bounds.

Python's own reader takes NaN and Infinity, keeps the last of two equal names, and nests until its stack ends; some levels before that a
header can be read, but no more be written, copied or sent to a worker process.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

MAX_DEPTH = 64
MAX_VALUES = 1 << 24  # each may be an object of its own: 16 million take a GB or two
_MOST_DIGITS = 100


def read_json(data: bytes) -> Any:
    """Return what a JSON text in ASCII says. Raises ValueError, which says what is wrong with it."""
    values = data.count(b",") + 1
    if values > MAX_VALUES:
        raise ValueError(f"it lists {values:,} values; at most {MAX_VALUES:,} are read")
    try:
        value = json.loads(
            data.decode("ascii"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except RecursionError:
        raise ValueError(_too_deep()) from None
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise ValueError(_too_deep())
        level = [
            inner
            for outer in level
            if type(outer) in (dict, list)
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice[:80]!r} is there twice")
    return found


def _constant(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:80]} is no number that a float can hold")
    return number


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits is in it")
    return int(text)


def _too_deep() -> str:
    return f"it is nested more than {MAX_DEPTH} deep"
