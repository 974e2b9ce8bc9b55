"""Rows in a computed order: which source row stands at which position, and back, at no cost a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from packer import randomness

Numbers = NDArray[np.int64]


class Deck(NamedTuple):
    """The source rows low..low+rows-1, shuffled by the key, or in their order where that is None."""

    low: int
    rows: int
    key: int | None

    def samples(self, positions: Numbers) -> Numbers:
        """The source rows at these positions, 0..rows-1."""
        if self.key is None or not len(positions):
            return self.low + positions
        return self.low + randomness.permute(positions, self.rows, self.key)

    def positions(self, sources: Numbers) -> Numbers:
        """Where these rows of the deck stand."""
        if self.key is None or not len(sources):
            return sources - self.low
        return randomness.unpermute(sources - self.low, self.rows, self.key)


class Segment(NamedTuple):
    """Rows taken from a deck: its positions start..start+rows-1, at least one.

    members: the rows in rising order, where that is the one wanted: int64 [rows]; start is -1 if they stand anywhere in the deck.
    """

    deck: Deck
    start: int
    rows: int
    members: Numbers | None = None

    def samples(self, positions: Numbers) -> Numbers:
        """The source rows at these positions of the segment."""
        if self.members is not None:
            return self.members[positions]
        return self.deck.samples(self.start + positions)

    def part(self, start: int, stop: int) -> Segment:
        """The rows at its positions start..stop-1."""
        if self.members is not None:
            return Segment(self.deck, -1, stop - start, self.members[start:stop])
        return Segment(self.deck, self.start + start, stop - start)


class Segments:
    """A sequence of source rows, made of segments one after the other, no source row twice.

    Slices and picks (int64 arrays of positions) give int64 arrays. Thread-safe; works in forked processes.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        self._firsts = np.cumsum([0, *(s.rows for s in self.segments)])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @overload
    def __getitem__(self, rows: int) -> np.int64: ...

    @overload
    def __getitem__(self, rows: slice | Numbers) -> Numbers: ...

    def __getitem__(self, rows: int | slice | Numbers) -> np.int64 | Numbers:
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            if step == 1:
                return self._slice(start, max(start, stop))
            return self._at(np.arange(start, stop, step))
        if isinstance(rows, np.ndarray):
            return self._at(np.where(rows < 0, rows + len(self), rows))
        one: np.int64 = self._at(np.array([range(len(self))[rows]]))[0]
        return one

    def part(self, start: int, stop: int) -> Segments:
        """The rows at positions start..stop-1, computed as these are."""
        found = []
        for first, segment in zip(self._firsts.tolist(), self.segments, strict=False):
            low, high = max(start - first, 0), min(stop - first, segment.rows)
            if low < high:
                found.append(segment.part(low, high))
        return Segments(found)

    def positions(self, sources: Numbers) -> Numbers:
        """Where these source rows stand, int64 [n]; -1 for those that are not in the sequence."""
        found = np.full(len(sources), -1)
        for first, (segment, mine, at) in zip(self._firsts.tolist(), self._places(sources), strict=False):
            if segment.members is not None:
                at = np.searchsorted(segment.members, sources)
            found[mine] = first + at[mine]
        return found

    def owner(self, sources: Numbers) -> Numbers:
        """The number of the segment that holds each of these source rows, int64 [n]; -1 for none."""
        found = np.full(len(sources), -1)
        for number, (_, mine, _) in enumerate(self._places(sources)):
            found[mine] = number
        return found

    def _slice(self, start: int, stop: int) -> Numbers:
        found = np.empty(stop - start, np.int64)
        for first, segment in zip(self._firsts.tolist(), self.segments, strict=False):
            low, high = max(start, first), min(stop, first + segment.rows)
            if low < high:
                found[low - start : high - start] = segment.samples(np.arange(low - first, high - first))
        return found

    def _at(self, positions: Numbers) -> Numbers:
        found = np.empty(positions.shape, np.int64)
        owners = np.searchsorted(self._firsts, positions, "right") - 1
        for number, segment in enumerate(self.segments):
            mine = owners == number
            found[mine] = segment.samples(positions[mine] - self._firsts[number])
        if ((positions < 0) | (positions >= len(self))).any():
            raise IndexError(f"positions beyond {len(self)} rows")
        return found

    def _places(self, sources: Numbers) -> Iterator[tuple[Segment, NDArray[np.bool_], Numbers]]:
        """Each segment, which of the rows it holds, and where these stand in it (of the others: anything)."""
        decks: dict[
            Deck, tuple[NDArray[np.bool_], Numbers]
        ] = {}  # what several segments share is computed once
        for segment in self.segments:
            deck = segment.deck
            if deck not in decks:
                inside = (sources >= deck.low) & (sources < deck.low + deck.rows)
                at = np.zeros(len(sources), np.int64)
                at[inside] = deck.positions(sources[inside])
                decks[deck] = inside, at
            inside, at = decks[deck]
            if segment.start >= 0:
                at = at - segment.start
                yield segment, inside & (at >= 0) & (at < segment.rows), at
            else:
                assert segment.members is not None
                at = np.searchsorted(segment.members, sources).clip(max=segment.rows - 1)
                yield segment, segment.members[at] == sources, at
