"""Which sample stands in which row: splits one after the other, each shuffled or in the source's order.

Images and packs have an array of samples, drawn class by class; tables have Segments (segments.py), which compute them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.segments import Deck, Segment, Segments
from packer.errors import UsageError


class Samples(Protocol):
    """The sample of each row: an array, or Segments, which compute it. Slices and picks are int64 arrays."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, rows: int) -> np.int64: ...

    @overload
    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.int64]: ...


class Order(NamedTuple):
    """samples: of the rows, [rows]; splits: name -> [first row, last row + 1), {} for none."""

    samples: Samples
    splits: dict[str, tuple[int, int]]

    def part(self, start: int, stop: int) -> Order:
        """Of the rows start..stop-1, with what each split has of them."""
        splits = {
            name: (min(max(a, start), stop) - start, max(min(b, stop), start) - start)
            for name, (a, b) in self.splits.items()
        }
        if isinstance(self.samples, Segments):
            return Order(self.samples.part(start, stop), splits)
        return Order(self.samples[start:stop], splits)

    def owner(self, sources: NDArray[np.int64]) -> NDArray[np.int64]:
        """The split of each of these samples: its number in `splits`, 0 without splits, -1 for none. sources: int64 [n]."""
        if isinstance(self.samples, Segments):
            return self.samples.owner(sources)
        inverse = np.full(max(int(self.samples[:].max(initial=-1)), int(sources.max(initial=-1))) + 1, -1)
        spans = list(self.splits.values()) or [(0, len(self.samples))]
        for number, (a, b) in enumerate(spans):
            inverse[self.samples[a:b]] = number
        return inverse[sources]


def arrange(members: Mapping[str, NDArray[np.int64]], *, shuffle: bool, seed: int) -> Order:
    """Put the splits one after the other.

    members: split -> its samples, int64, rising; {"": all} where there are no splits. shuffle: permute each split's rows,
    drawn from the seed and its name.
    """
    parts, splits, first = [], {}, 0
    for name, samples in members.items():
        count = len(samples)
        if shuffle and count:
            key = randomness.key(seed, "convert", name) if name else randomness.key(seed, "convert")
            samples = samples[randomness.permute(np.arange(count), count, key)]
        parts.append(samples)
        if name:
            splits[name] = (first, first + count)
        first += count
    return Order(np.concatenate(parts), splits)


def parse_split(text: str | Mapping[str, float]) -> dict[str, float]:
    """{"train": 0.9, "val": 0.1} from "train=0.9,val=0.1". Raises UsageError unless the shares are positive and make 1.

    Sorted by name: a pack's record of its options does not keep their order, and says all that its rows depend on.
    """
    try:
        pairs = [part.split("=") for part in text.split(",")] if isinstance(text, str) else list(text.items())
        shares = {str(name).strip(): float(share) for name, share in pairs}
        named = shares and len(shares) == len(pairs) and all(shares)
        if not named or not all(share > 0 for share in shares.values()):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"split {text}: is not a list of names and positive shares. Pass for example train=0.9,val=0.1."
        ) from None
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise UsageError(
            f"split {text}: the shares make {sum(shares.values()):g}; 1 is needed. Pass for example train=0.9,val=0.1."
        )
    return dict(sorted(shares.items()))


def parse_parts(text: str | Mapping[str, Any]) -> dict[str, float | str]:
    """How a table's rows are dealt to splits, from "train=0.9,val=0.1", "train=rest,test=last:500000" or a mapping.

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
    """A share, "rest", "first:N" or "last:N"; None for anything else."""
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


def table_order(rows: int, *, split: str | Mapping[str, Any] | None, shuffle: bool, seed: int) -> Order:
    """The rows of a table: splits one after the other, by name.

    rows: of the source; split: see parse_parts; shares are drawn from the seed, each row as likely as any other. shuffle: the rows
    of each split in a random order, drawn from the seed; else in the source's.
    Returns an Order whose samples are Segments. With shuffle, or without shares, nothing is stored for a row; without shuffle,
    what shares deal is sorted: 8 bytes for each of these rows are stored, and twice that while it is made.
    Raises UsageError when a split would be empty, or a row in none.
    """
    if split is None:
        whole = Deck(0, rows, randomness.key(seed, "convert") if shuffle else None)
        return Order(Segments([Segment(whole, 0, rows)]), {})
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
    deck = Deck(first, left, randomness.key(seed, "split") if drawn else None)
    segments, splits, at, taken = [], {}, 0, 0
    for name, value in parts.items():
        if name in shares:
            count = dealt[name]
            if drawn and shuffle:  # what stands together in a random order is in a random order
                segments.append(Segment(deck, taken, count))
            elif drawn:
                members = np.sort(deck.samples(np.arange(taken, taken + count)))
                segments.append(Segment(deck, taken, count, members))
            else:
                segments.append(_range(first, count, name, shuffle, seed))
            taken += count
        else:
            low, count = (0, first) if str(value).startswith("first") else (rows - last, last)
            segments.append(_range(low, count, name, shuffle, seed))
        splits[name] = (at, at + count)
        at += count
    return Order(Segments(segments), splits)


def _range(low: int, count: int, name: str, shuffle: bool, seed: int) -> Segment:
    """Neighbours in the source, as one split."""
    return Segment(Deck(low, count, randomness.key(seed, "convert", name) if shuffle else None), 0, count)


def _deal(parts: Mapping[str, float | str], rows: int, split: object) -> dict[str, int]:
    """Rows of each split that has a share; those that rounding leaves go, one each, to the splits most short-changed."""
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


def stratified(
    strata: NDArray[np.integer] | None, count: int, shares: Mapping[str, float], seed: int
) -> dict[str, NDArray[np.int64]]:
    """Draw splits so that each holds its share of every stratum.

    strata: int [count], the class of each sample, or None: all alike. shares: name -> share, together 1.
    Returns: name -> samples, int64, rising; together each sample once. A stratum's odd samples go, one each, to the splits that
    have been short-changed most so far, so that each stratum comes out to within one sample, and the whole nearly so.
    Raises UsageError when a split would be empty.
    """
    names = list(shares)
    share = np.array([shares[name] for name in names])
    groups = (
        [np.arange(count)]
        if strata is None
        else np.split(
            np.argsort(strata, kind="stable"), np.flatnonzero(np.diff(np.sort(strata, kind="stable"))) + 1
        )
    )
    owner = np.empty(count, np.int64)
    owed = np.zeros(len(names))
    # In an order of the seed's: it alone decides where the samples of very small strata go.
    for number in randomness.permute(
        np.arange(len(groups)), len(groups), randomness.key(seed, "split")
    ).tolist():
        group = groups[number]
        size = len(group)
        counts = np.floor(share * size + 1e-9).astype(np.int64)
        owed += share * size - counts
        most = np.argsort(-owed, kind="stable")[: size - int(counts.sum())]
        counts[most] += 1
        owed[most] -= 1
        order = randomness.permute(np.arange(size), size, randomness.key(seed, "split", number))
        owner[group[order]] = np.repeat(np.arange(len(names)), counts)
    members = {name: np.flatnonzero(owner == k) for k, name in enumerate(names)}
    for name, samples in members.items():
        if not len(samples):
            raise UsageError(
                f"split {name}={shares[name]:g}: none of {count} samples falls to it. Pass a larger share."
            )
    return members


def fill(
    holes: Sequence[int], splits: Mapping[str, tuple[int, int]], rows: int
) -> tuple[dict[int, int], dict[str, tuple[int, int]], int]:
    """Close the holes that skipped inputs left, with the last good rows of the split they are in.

    holes: rows without content, rising; splits: name -> [first, last + 1), {} for one; rows: planned.
    Returns: {row: the row it comes from}, to be done in this order; the splits afterwards; rows afterwards. Each split moves up
    to where the one before it ends; no more rows move than there are holes, for each split behind them.
    """
    empty = set(holes)
    moves: dict[int, int] = {}
    after: dict[str, tuple[int, int]] = {}
    first = 0
    for name, (start, stop) in (splits or {"": (0, rows)}).items():
        missing = sum(1 for hole in holes if start <= hole < stop)
        last = first + stop - start - missing
        targets = [row for row in (*range(first, min(start, last)), *holes) if first <= row < last]
        targets = sorted({row for row in targets if row < start or row in empty})
        donors = (row for row in range(max(start, last), stop) if row not in empty)
        moves.update(zip(targets, donors, strict=True))
        if name:
            after[name] = (first, last)
        first = last
    return moves, after, first
