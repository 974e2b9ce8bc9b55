"""What the values of some arrays promise, looked at while their checksums are computed."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from packer.format.header import OFFSETS, Header


class ValueCheck(Protocol):
    """A check of an array's elements, made while they are in the cache."""

    def look(self, first: int, data: memoryview) -> None:
        """Look at bytes of whole elements, at least one, from element `first` on; called by several threads, in any order."""

    def wrong(self) -> list[tuple[int, int, str]]:
        """Return rows [first, last + 1), of which the outer ones are wrong, and what is."""


def value_checks(header: Header) -> dict[str, ValueCheck]:
    """Return the checks of arrays that promise something, by name: offsets of ragged fields, labels where there are classes."""
    found: dict[str, ValueCheck] = {}
    for f in header.fields:
        if f.ragged:
            blob = sum(e.rows for e in header.extents[f.name])
            found[f.name + OFFSETS] = _Offsets(header.rows + 1, blob)
        elif (f.name, f.shape, f.dtype[1] in "iu", f.codec) == ("label", (), True, None) and header.classes:
            found[f.name] = _Labels(f.dtype, len(header.classes))
    return found


class _Offsets:
    """Entries of a ragged field's offsets run from 0 to the blob's length and never fall."""

    def __init__(self, entries: int, length: int) -> None:
        self._entries, self._length = entries, length
        self._pieces: list[tuple[int, int, int, int]] = []  # first: index, value; last value; entries
        self._falls: list[tuple[int, int]] = []

    def look(self, first: int, data: memoryview) -> None:
        entries = np.frombuffer(data, "<i8")
        self._pieces.append((first, int(entries[0]), int(entries[-1]), len(entries)))
        falls = np.flatnonzero(entries[1:] < entries[:-1])
        if len(falls):
            self._falls.append((first + int(falls[0]), first + int(falls[-1]) + 1))

    def wrong(self) -> list[tuple[int, int, str]]:
        found = [(first, stop, "fall") for first, stop in self._falls]
        end, before = 0, 0
        for first, value, last, count in sorted(self._pieces):
            if first == 0 and value != 0:
                found.append((0, 1, f"begin at {value}, not at 0"))
            elif first == end and value < before:
                found.append((first - 1, first, "fall"))
            end, before = first + count, last
        if end == self._entries and before != self._length:
            found.append((end - 2, end - 1, f"end at {before}, their bytes at {self._length}"))
        return found


class _Labels:
    """Labels are numbers of classes: 0 to classes - 1."""

    def __init__(self, dtype: str, classes: int) -> None:
        self._dtype, self._classes = dtype, classes
        self._wrong: list[tuple[int, int]] = []

    def look(self, first: int, data: memoryview) -> None:
        labels = np.frombuffer(data, self._dtype)
        if labels.min() < 0 or labels.max() >= self._classes:
            at = np.flatnonzero((labels < 0) | (labels >= self._classes))
            self._wrong.append((first + int(at[0]), first + int(at[-1]) + 1))

    def wrong(self) -> list[tuple[int, int, str]]:
        return [(a, b, f"are not all within 0 to {self._classes - 1}") for a, b in self._wrong]
