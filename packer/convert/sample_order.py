"""The sample of each row: splits one after the other, each shuffled or in source order; closes holes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from tempfile import TemporaryFile

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.convert.row_sequence import RowSequence
from packer.convert.split_assignment import Owners
from packer.errors import SourceError
from packer.format.header import TRAIN

_AT_ONCE = 1 << 20  # rows ordered at once
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


def arrange(
    owners: Owners,
    *,
    shuffle: bool,
    seed: int,
    folder: str | None = None,
    sequence: RowSequence | None = None,
) -> SampleOrder:
    """Return the order of rows with splits one after the other, each in the order of the source.

    shuffle: permute the rows of each split, drawn from the seed and the split's name. folder: keep the order
    in an unnamed file there, mapped, for numbers of rows that memory may not hold; None: in memory. sequence:
    the order instead of that of the source. Raises OSError; SourceError for a sequence in two splits.
    """
    if sequence is not None:
        _check_undivided(owners, sequence)
    samples = _store(_rows_by_split(owners, None if sequence is None else sequence.order), folder)
    stops = np.cumsum([np.count_nonzero(owners.numbers == number) for number in range(len(owners.names))])
    bounds = [0, *stops.tolist()]
    splits = dict(zip(owners.names, pairwise(bounds), strict=True))
    if shuffle:
        samples = _store(_shuffled(samples, splits, seed), folder)
    return SampleOrder(samples, {name: span for name, span in splits.items() if name})


def _check_undivided(owners: Owners, sequence: RowSequence) -> None:
    """Raise SourceError if splits divide one of several sequences."""
    kept = owners.numbers < len(owners.names)
    pairs = np.unique(np.stack([sequence.groups[kept].astype(np.int64), owners.numbers[kept]]), axis=1)
    for at in np.flatnonzero(pairs[0, 1:] == pairs[0, :-1])[:1].tolist() if len(sequence.names) > 1 else ():
        first, second = (owners.names[number] for number in pairs[1, at : at + 2])
        raise SourceError(
            f"sequence {sequence.names[pairs[0, at]]!r}: is in the splits {first} and {second}; a sequence"
            " has to be in one split. Correct the splits, or divide the sequence."
        )


def _rows_by_split(owners: Owners, order: Samples | None) -> Iterator[Samples]:
    """Yield the rows of each split in their order, None for rising, some at a time."""
    for number in range(len(owners.names)):
        for start in range(0, len(owners.numbers), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            if order is None:
                yield start + np.flatnonzero(owners.numbers[some] == number)
            else:
                yield order[some][owners.numbers[order[some]] == number]


def _shuffled(rising: Samples, splits: Mapping[str, tuple[int, int]], seed: int) -> Iterator[Samples]:
    """Yield the rows of each split in random order, some at a time."""
    for name, (start, stop) in splits.items():
        key = randomness.key(seed, "convert", name) if name else randomness.key(seed, "convert")
        # Rows that follow each other are computed: reading a file in random order is slow.
        together = stop > start and rising[stop - 1] - rising[start] == stop - start - 1
        for at in range(start, stop, _AT_ONCE):
            places = randomness.permute(np.arange(at, min(at + _AT_ONCE, stop)) - start, stop - start, key)
            yield rising[start] + places if together else rising[start + places]


def _store(pieces: Iterator[Samples], folder: str | None) -> Samples:
    """Return the pieces as one array. folder: map it from an unnamed file there; None: in memory."""
    if folder is None:
        return np.concatenate([np.empty(0, np.int64), *pieces])
    with TemporaryFile(dir=folder) as file:
        for piece in pieces:
            piece.tofile(file)
        file.flush()
        return np.memmap(file, np.int64, "r")


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
