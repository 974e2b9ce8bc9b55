"""Whole numbers as arguments of operations."""

from __future__ import annotations

import operator
from typing import Any

from packer.errors import UsageError


def whole(name: str, what: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number within bounds; another one is an error that names the operation."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        bounds = f"from {least} up" if most is None else f"from {least} to {most}"
        raise UsageError(
            f"{name}: {what} is {value!r}; whole numbers {bounds} are allowed. Pass one of them."
        )
    return number
