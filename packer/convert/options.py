"""Checks of options that several ways of making a pack have in common."""

from __future__ import annotations

from operator import index

from packer.errors import UsageError
from packer.machine import cores

ON_ERROR = ("stop", "skip")


def choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """The value, if it is one of those allowed. Raises UsageError."""
    if value not in allowed:
        raise UsageError(f"{name} {value!r}: is not one of {', '.join(allowed)}. Pass one of them.")
    return value


def whole(name: str, value: int) -> int:
    """A Python int, of NumPy's too. Raises UsageError."""
    try:
        return index(value)
    except TypeError:
        raise UsageError(f"{name} {value!r}: is not a whole number. Pass one.") from None


def check_workers(workers: int | None) -> int:
    """How many workers: as given, or the cores at hand. Raises UsageError."""
    if workers is None:
        return cores()
    if whole("workers", workers) < 1:
        raise UsageError(f"workers {workers}: is too few; 1 is the least. Pass 1 or more.")
    return workers
