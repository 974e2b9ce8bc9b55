"""Checks of arguments that many functions share."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Collection
from typing import SupportsIndex, TypeVar

from packer.errors import PackerError, UsageError
from packer.given_values import shown
from packer.machine import cores

T = TypeVar("T")
ON_ERROR = ("stop", "skip")

_BYTES = re.compile(
    r"([0-9]{1,18}(?:\.[0-9]*)?|\.[0-9]+) *(?:(?P<unit>[kmgt]?)(?P<binary>(?<=[kmgt])i)?b)?", re.I
)


def as_whole(value: object, least: int | None = None, most: int | None = None) -> int | None:
    """Return the value as an int; None unless it is an integer of any type (not bool) within the bounds.

    >>> as_whole(3, least=1), as_whole(0, least=1), as_whole(3.0), as_whole(True)
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        number = operator.index(value)
    except TypeError:  # arrays have the method, and raise unless they hold one whole number
        return None
    if (least is not None and number < least) or (most is not None and number > most):
        return None
    return number


def whole(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return the value of the argument `name` as an int.

    Raises UsageError unless it is a whole number within the bounds.
    """
    number = as_whole(value, least, most)
    if number is None:
        bounds = (
            "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
        )
        raise UsageError(f"{name}={shown(value)}: is not a whole number{bounds}.")
    return number


def one_of(name: str, value: T, allowed: Collection[str | None], instead: str = "") -> T:
    """Return an argument's value. Raises UsageError unless it is allowed. instead: end of the remedy."""
    if value not in allowed:
        known = ", ".join(map(repr, allowed))
        raise UsageError(f"{name}={shown(value)}: is not one of {known}. Pass one of them{instead}.")
    return value


def check_workers(workers: int | None) -> int:
    """Return the number of workers: as given, or the available cores. Raises UsageError."""
    return cores() if workers is None else whole("workers", workers, 1)


def as_bytes(size: object, *, unit: bool = False) -> int | None:
    """Return a size in bytes; None if it is not a size, or below 1 byte.

    size: a number, or text with or without a unit; unit: text must have a unit.

    >>> as_bytes("2GB"), as_bytes("1.5 MiB"), as_bytes(7), as_bytes("7")
    (2000000000, 1572864, 7, 7)
    >>> as_bytes("7", unit=True), as_bytes("2PB")
    (None, None)
    """
    found = _BYTES.fullmatch(str(size).strip())
    if not found or (unit and found["unit"] is None):
        return None
    factor = (1024 if found["binary"] else 1000) ** " kmgt".index((found["unit"] or " ").lower())
    return round(float(found[1]) * factor) or None


def absolute(name: str | os.PathLike[str]) -> str:
    """Return a full path. Raises PackerError for a relative name if the working folder was removed."""
    try:
        return os.path.abspath(name)
    except FileNotFoundError:
        raise PackerError(
            f"{name}: is relative to the working folder, which was removed. Change to another folder, or pass"
            " a full path."
        ) from None
