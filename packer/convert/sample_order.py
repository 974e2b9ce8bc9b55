"""Which sample stands in which row: splits one after the other, each shuffled or in the source's order; closing holes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer import randomness

Samples = NDArray[np.int64]
"""The sample of each row."""


@dataclass(frozen=True)
class SampleOrder:
    """The sample of each row, [rows]; splits: name -> [first row, last row + 1), {} for none."""

    samples: Samples
    splits: dict[str, tuple[int, int]]

    def part(self, start: int, stop: int) -> SampleOrder:
        """Return the order of the rows start..stop-1, with what each split has of them."""
        return SampleOrder(self.samples[start:stop], self._within(start, stop))

    def _within(self, start: int, stop: int) -> dict[str, tuple[int, int]]:
        return {
            name: (min(max(a, start), stop) - start, max(min(b, stop), start) - start)
            for name, (a, b) in self.splits.items()
        }


def arrange(members: Mapping[str, NDArray[np.int64]], *, shuffle: bool, seed: int) -> SampleOrder:
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
    return SampleOrder(np.concatenate(parts), splits)


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
