"""The order of the rows of a table in its pack: an array of row numbers, splits one after the other, in a file of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.sample_order import SampleOrder
from packer.errors import UsageError

Numbers = NDArray[np.int64]
_DRAWN = 1 << 20  # row numbers drawn at once


def parse_parts(text: str | Mapping[str, Any]) -> dict[str, float | str]:
    """Parse how a table's rows are dealt to splits: "train=0.9,val=0.1", "train=rest,test=last:500000" or a mapping.

    A share is of the rows that no "first:N" or "last:N" takes; "rest", for one split, is what the shares leave of 1.
    Returns: name -> share, "rest", "first:N" or "last:N", as plain JSON values, sorted by name. Raises UsageError.
    """
    pairs = [part.split("=") for part in text.split(",")] if isinstance(text, str) else list(text.items())
    parts = {str(pair[0]).strip(): _part(pair[1]) for pair in pairs if len(pair) == 2}
    ends = [str(value).partition(":")[0] for value in parts.values() if isinstance(value, str)]
    total = sum(value for value in parts.values() if isinstance(value, float))
    full = total < 1 - 1e-9 if "rest" in ends else abs(total - 1) <= 1e-6 or len(ends) == len(parts)
    named = len(parts) == len(pairs) > 0 and all(parts) and None not in parts.values()
    if not named or len(set(ends)) < len(ends) or not full:
        raise UsageError(
            f"split {text}: is not a list of names, each with a positive share, rest, first:N or last:N; the shares"
            f" make {total:g}, and 1 is needed, or less with a rest. Pass for example train=0.9,val=0.1 or"
            " train=rest,test=last:500000."
        )
    return {name: value for name, value in sorted(parts.items()) if value is not None}


def _part(value: Any) -> float | str | None:
    """Return a share, "rest", "first:N" or "last:N"; None for anything else."""
    word, colon, number = (part.strip() for part in str(value).partition(":"))
    if colon:
        known = word in ("first", "last") and number.isdecimal() and int(number) > 0
        return f"{word}:{int(number)}" if known else None
    try:
        return word if word == "rest" else share if (share := float(word)) > 0 else None
    except ValueError:
        return None


def table_order(
    rows: int, *, split: str | Mapping[str, Any] | None, shuffle: bool, seed: int, path: str | None = None
) -> SampleOrder:
    """Return the rows of a table: splits one after the other, by name.

    rows: of the source; split: see parse_parts; shares are drawn from the seed, each row as likely as any other. shuffle: the rows
    of each split in a random order, drawn from the seed; else in the source's. path: of a file, overwritten, that the row numbers are
    mapped from; None: they are in memory.
    Raises UsageError when a split would be empty, or a row in none; OSError.
    """
    splits: dict[str, tuple[int, int]] = {}
    pieces = _pieces(rows, split, shuffle, seed, splits)
    if path is None:
        return SampleOrder(np.concatenate(list(pieces)), splits)
    with open(path, "wb") as file:
        for piece in pieces:
            piece.tofile(file)
    return SampleOrder(np.memmap(path, np.int64, "r"), splits)


def _pieces(
    rows: int,
    split: str | Mapping[str, Any] | None,
    shuffle: bool,
    seed: int,
    splits: dict[str, tuple[int, int]],
) -> Iterator[Numbers]:
    """Yield the row numbers in order. splits: filled in."""
    if split is None:
        yield from _drawn(0, rows, 0, rows, randomness.key(seed, "convert") if shuffle else None)
        return
    parts = parse_parts(split)
    sizes = {end: int(n) for end, _, n in (str(v).partition(":") for v in parts.values()) if n}
    first, last = sizes.get("first", 0), sizes.get("last", 0)
    left = rows - first - last
    if left < 0:
        raise UsageError(
            f"split {split}: takes {first + last:,} rows from the ends; there are {rows:,}. Pass fewer."
        )
    shares = {name: value for name, value in parts.items() if ":" not in str(value)}
    if left and not shares:
        raise UsageError(
            f"split {split}: leaves {left:,} of {rows:,} rows in no split. Add one with rest, as in train=rest."
        )
    dealt = _deal(shares, left, split)
    drawn = len(shares) > 1
    at = taken = 0
    for name, value in parts.items():
        key = randomness.key(seed, "convert", name) if shuffle else None
        low, count = (first, dealt[name]) if name in shares else (0, first)
        if str(value).startswith("last"):
            low, count = rows - last, last
        splits[name] = (at, at + count)
        at += count
        if name in shares and drawn:
            pieces = _drawn(first, left, taken, count, randomness.key(seed, "split"))
            # What stands together in a random order is in a random order.
            yield from pieces if shuffle else [np.sort(np.concatenate(list(pieces)))]
            taken += count
        else:
            yield from _drawn(low, count, 0, count, key)


def _drawn(low: int, rows: int, start: int, count: int, key: int | None) -> Iterator[Numbers]:
    """Yield the numbers at positions start..start+count-1 of the range low..low+rows-1, permuted by the key, None: as it is."""
    for at in range(start, start + count, _DRAWN):
        positions = np.arange(at, min(at + _DRAWN, start + count))
        yield low + (positions if key is None else randomness.permute(positions, rows, key))


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
