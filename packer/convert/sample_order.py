"""The sample of each row: splits one after the other, each shuffled or in source order; closes holes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.format.header import TRAIN

Samples = NDArray[np.int64]
"""The sample of each row."""


@dataclass(frozen=True)
class SampleOrder:
    """The sample of each row, [rows]; splits: name -> [first row, last row + 1), {} without splits."""

    samples: Samples
    splits: dict[str, tuple[int, int]]

    @property
    def train(self) -> tuple[int, int]:
        """Rows of the split train; (0, 0) without one."""
        return self.splits.get(TRAIN, (0, 0))

    def part(self, start: int, stop: int) -> SampleOrder:
        """Return the order of rows start..stop-1, with the splits cut to them."""
        return SampleOrder(self.samples[start:stop], self._within(start, stop))

    def _within(self, start: int, stop: int) -> dict[str, tuple[int, int]]:
        return {
            name: (min(max(a, start), stop) - start, max(min(b, stop), start) - start)
            for name, (a, b) in self.splits.items()
        }


def arrange(members: Mapping[str, NDArray[np.int64]], *, shuffle: bool, seed: int) -> SampleOrder:
    """Return the order of rows with splits one after the other.

    members: split -> its samples, int64, ascending; {"": all} without splits. shuffle: permute the rows of
    each split, drawn from the seed and the split's name.
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
    """Plan moves of rows that close the holes of skipped inputs with the last good rows of their split.

    holes: rows without content, ascending; splits: name -> [first, last + 1), {} without splits;
    rows: planned rows.
    Returns: {row: row to move there}, to be done in this order; the new splits; the new number of rows. Each
    split starts where the previous one ends; per split, at most as many rows move as there are holes up to
    its end.
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
