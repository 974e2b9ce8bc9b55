"""The order of the rows of a table in its pack: splits one after the other, computed, at no cost a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.sample_order import SampleOrder
from packer.errors import UsageError

Numbers = NDArray[np.int64]


class PermutedRange(NamedTuple):
    """The source rows low..low+rows-1, permuted by the key, or in their order where that is None."""

    low: int
    rows: int
    key: int | None

    def samples(self, positions: Numbers) -> Numbers:
        """Return the source rows at these positions, 0..rows-1."""
        if self.key is None or not len(positions):
            return self.low + positions
        return self.low + randomness.permute(positions, self.rows, self.key)

    def positions(self, sources: Numbers) -> Numbers:
        """Return the positions at which these source rows stand."""
        if self.key is None or not len(sources):
            return sources - self.low
        return randomness.unpermute(sources - self.low, self.rows, self.key)


class OrderSegment(NamedTuple):
    """Rows taken from a permuted range: its positions start..start+rows-1, at least one.

    members: the rows in rising order, where that is the one wanted: int64 [rows]; start is -1 if they stand anywhere in the deck.
    """

    deck: PermutedRange
    start: int
    rows: int
    members: Numbers | None = None

    def samples(self, positions: Numbers) -> Numbers:
        """Return the source rows at these positions of the segment."""
        if self.members is not None:
            return self.members[positions]
        return self.deck.samples(self.start + positions)

    def part(self, start: int, stop: int) -> OrderSegment:
        """Return the rows at its positions start..stop-1."""
        if self.members is not None:
            return OrderSegment(self.deck, -1, stop - start, self.members[start:stop])
        return OrderSegment(self.deck, self.start + start, stop - start)


class SegmentedOrder:
    """A sequence of source rows, made of segments one after the other, no source row twice.

    Slices and picks (int64 arrays of positions) give int64 arrays. Thread-safe; works in forked processes.
    """

    def __init__(self, segments: Sequence[OrderSegment]) -> None:
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

    def part(self, start: int, stop: int) -> SegmentedOrder:
        """Return the rows at positions start..stop-1, computed as these are."""
        found = []
        for first, segment in zip(self._firsts.tolist(), self.segments, strict=False):
            low, high = max(start - first, 0), min(stop - first, segment.rows)
            if low < high:
                found.append(segment.part(low, high))
        return SegmentedOrder(found)

    def positions(self, sources: Numbers) -> Numbers:
        """Return the positions of these source rows, int64 [n]; -1 for those that are not in the sequence."""
        found = np.full(len(sources), -1)
        for first, (segment, mine, at) in zip(self._firsts.tolist(), self._places(sources), strict=False):
            if segment.members is not None:
                at = np.searchsorted(segment.members, sources)
            found[mine] = first + at[mine]
        return found

    def owner(self, sources: Numbers) -> Numbers:
        """Return the number of the segment that holds each of these source rows, int64 [n]; -1 for none."""
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

    def _places(self, sources: Numbers) -> Iterator[tuple[OrderSegment, NDArray[np.bool_], Numbers]]:
        """Yield each segment, which of the rows it holds, and where these stand in it (of the others: anything)."""
        decks: dict[
            PermutedRange, tuple[NDArray[np.bool_], Numbers]
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


@dataclass(frozen=True)
class TableOrder(SampleOrder):
    """A SampleOrder whose samples are computed."""

    samples: SegmentedOrder

    def part(self, start: int, stop: int) -> TableOrder:
        """Return the order of the rows start..stop-1, with what each split has of them."""
        return TableOrder(self.samples.part(start, stop), self._within(start, stop))

    def owner(self, sources: Numbers) -> Numbers:
        """Return the split of each of these samples, int64 [n]: its number in `splits`, 0 without splits, -1 for none."""
        return self.samples.owner(sources)


def parse_parts(text: str | Mapping[str, Any]) -> dict[str, float | str]:
    """Parse how a table's rows are dealt to splits: "train=0.9,val=0.1", "train=rest,test=last:500000" or a mapping.

    A share is of the rows that no "first:N" or "last:N" takes; "rest", for one split, is what the shares leave of 1.
    Returns: name -> share, "rest", "first:N" or "last:N", as plain JSON values, sorted by name. Raises UsageError.
    """
    pairs = [part.split("=") for part in text.split(",")] if isinstance(text, str) else list(text.items())
    parts: dict[str, float | str] = {}
    for pair in pairs:
        name, value = str(pair[0]).strip(), _part(pair[1]) if len(pair) == 2 else None
        if not name or value is None or name in parts:
            raise _no_parts(text)
        parts[name] = value
    ends = [str(value).partition(":")[0] for value in parts.values() if isinstance(value, str)]
    if not parts or len(set(ends)) < len(ends):
        raise _no_parts(text)
    shares = sum(value for value in parts.values() if isinstance(value, float))
    shared = any(isinstance(value, float) for value in parts.values())
    if "rest" in ends and shares >= 1 - 1e-9:
        raise UsageError(
            f"split {text}: the shares make {shares:g} and leave nothing for the rest; less than 1 is needed."
            " Pass smaller shares, or no rest."
        )
    if shared and "rest" not in ends and abs(shares - 1) > 1e-6:
        raise UsageError(
            f"split {text}: the shares make {shares:g}; 1 is needed. Pass for example train=0.9,val=0.1."
        )
    return dict(sorted(parts.items()))


def _part(value: Any) -> float | str | None:
    """Return a share, "rest", "first:N" or "last:N"; None for anything else."""
    word, colon, number = str(value).strip().partition(":")
    if colon:
        known = word.strip() in ("first", "last") and number.strip().isdecimal() and int(number) > 0
        return f"{word.strip()}:{int(number)}" if known else None
    if word == "rest":
        return word
    try:
        share = float(word)
    except ValueError:
        return None
    return share if share > 0 else None


def _no_parts(text: object) -> UsageError:
    return UsageError(
        f"split {text}: is not a list of names, each with a positive share, rest, first:N or last:N."
        " Pass for example train=0.9,val=0.1 or train=rest,test=last:500000."
    )


def table_order(rows: int, *, split: str | Mapping[str, Any] | None, shuffle: bool, seed: int) -> TableOrder:
    """Return the rows of a table: splits one after the other, by name.

    rows: of the source; split: see parse_parts; shares are drawn from the seed, each row as likely as any other. shuffle: the rows
    of each split in a random order, drawn from the seed; else in the source's.
    With shuffle, or without shares, nothing is stored for a row; without shuffle,
    what shares deal is sorted: 8 bytes for each of these rows are stored, and twice that while it is made.
    Raises UsageError when a split would be empty, or a row in none.
    """
    if split is None:
        whole = PermutedRange(0, rows, randomness.key(seed, "convert") if shuffle else None)
        return TableOrder(SegmentedOrder([OrderSegment(whole, 0, rows)]), {})
    parts = parse_parts(split)
    sizes = {end: int(n) for end, _, n in (str(v).partition(":") for v in parts.values()) if n}
    first, last = sizes.get("first", 0), sizes.get("last", 0)
    if first + last > rows:
        raise UsageError(
            f"split {split}: takes {first + last:,} rows from the ends; there are {rows:,}. Pass fewer."
        )
    left = rows - first - last
    shares = {name: value for name, value in parts.items() if ":" not in str(value)}
    if left and not shares:
        raise UsageError(
            f"split {split}: leaves {left:,} of {rows:,} rows in no split. Add one with rest, as in train=rest."
        )
    dealt = _deal(shares, left, split)
    drawn = len(shares) > 1
    deck = PermutedRange(first, left, randomness.key(seed, "split") if drawn else None)
    segments, splits, at, taken = [], {}, 0, 0
    for name, value in parts.items():
        if name in shares:
            count = dealt[name]
            if drawn and shuffle:  # what stands together in a random order is in a random order
                segments.append(OrderSegment(deck, taken, count))
            elif drawn:
                members = np.sort(deck.samples(np.arange(taken, taken + count)))
                segments.append(OrderSegment(deck, taken, count, members))
            else:
                segments.append(_range(first, count, name, shuffle, seed))
            taken += count
        else:
            low, count = (0, first) if str(value).startswith("first") else (rows - last, last)
            segments.append(_range(low, count, name, shuffle, seed))
        splits[name] = (at, at + count)
        at += count
    return TableOrder(SegmentedOrder(segments), splits)


def _range(low: int, count: int, name: str, shuffle: bool, seed: int) -> OrderSegment:
    """Return neighbours in the source, as one split."""
    return OrderSegment(
        PermutedRange(low, count, randomness.key(seed, "convert", name) if shuffle else None), 0, count
    )


def _deal(parts: Mapping[str, float | str], rows: int, split: object) -> dict[str, int]:
    """Return the rows of each split that has a share; those that rounding leaves go, one each, to the splits most short-changed."""
    given = sum(value for value in parts.values() if isinstance(value, float))
    share = np.array([value if isinstance(value, float) else 1 - given for value in parts.values()])
    counts = np.floor(share * rows + 1e-9).astype(np.int64)
    most = np.argsort(counts - share * rows, kind="stable")[: rows - int(counts.sum())]
    counts[most] += 1
    dealt = dict(zip(parts, counts.tolist(), strict=True))
    for name, count in dealt.items():
        if not count:
            raise UsageError(
                f"split {split}: none of {rows:,} rows falls to {name}. Pass a larger share, or fewer rows for the others."
            )
    return dealt
