"""Differences between two plans or records, in words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any


def difference(before: Any, now: Any, what: str = "", words: tuple[str, str] = ("was", ", now it is")) -> str:
    """Return the first difference between two values (JSON or options) as text; "" if they are equal.

    before: recorded; now: requested; what: path of names to the value, separated by spaces; words: texts
    before each value.
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*before, *now)):
            found = difference(before.get(key), now.get(key), f"{what} {key}".strip(), words)
            if found:
                return found
        return ""
    before, now = _plain(before), _plain(now)
    if before == now:
        return ""
    return f"{what} {words[0]} {_shown(before)}{words[1]} {_shown(now)}"


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    value = value.tolist() if hasattr(value, "tolist") else value  # NumPy's, which compare number by number
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, list):
        value = ("x" if all(isinstance(v, int) for v in value) else ", ").join(map(str, value)) or "none"
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
