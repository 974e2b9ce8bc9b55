"""Contiguous runs: positions of an epoch, rows of a pack, and subsets of rows renumbered from 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Spans shorter than this on average are stored as a list of rows. A scattered row is then looked up in 15 ns,
# where a search among 100,000 spans takes 150; the list needs at most 128 bytes where a span needs 16.
_LISTED_ROWS = 16
# A search among fewer spans takes less than 50 ns.
_FEW_SPANS = 64


class Runs(NamedTuple):
    """Rows (or positions) as contiguous runs, in the order of the sequence.

    starts:  int64 [k], the first row of each run.
    lengths: int64 [k], rows in each run, at least 1.

    >>> runs = consecutive(np.array([5, 6, 7, 2, 9, 10]))
    >>> runs.starts.tolist(), runs.lengths.tolist()
    ([5, 2, 9], [3, 1, 2])
    >>> runs.part(2, 5).rows().tolist()
    [7, 2, 9]
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def total(self) -> int:
        """Number of rows in all runs."""
        return int(self.lengths.sum())

    def rows(self) -> NDArray[np.int64]:
        """Return each row's number, int64 [total]."""
        if len(self.starts) == 1:
            start = self.starts[0]
            return np.arange(start, start + self.lengths[0])
        if (self.lengths == 1).all():  # usually for a permutation
            return self.starts.copy()
        before = np.cumsum(self.lengths) - self.lengths
        return np.repeat(self.starts - before, self.lengths) + np.arange(self.total)

    def part(self, start: int, stop: int, ends: NDArray[np.int64] | None = None) -> Runs:
        """Return entries start..stop-1, counted over all runs; 0 <= start <= stop <= total.

        ends: the cumulative lengths, if available.
        """
        if len(self.starts) == 1 or start == stop:
            return one_run(int(self.starts[:1].sum()) + start, int(self.starts[:1].sum()) + stop)
        ends = np.cumsum(self.lengths) if ends is None else ends
        some = slice(int(ends.searchsorted(start, "right")), int(ends.searchsorted(stop)) + 1)
        starts, lengths, ends = self.starts[some], self.lengths[some], ends[some]
        ahead, behind = start - int(ends[0] - lengths[0]), int(ends[-1]) - stop
        if ahead or behind:
            starts, lengths = starts.copy(), lengths.copy()
            starts[0] += ahead
            lengths[0] -= ahead
            lengths[-1] -= behind
        return Runs(starts, lengths)


def pieces(stop: int, step: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yield [first, last + 1) of consecutive pieces of `step` rows, the last of which may be shorter.

    >>> list(pieces(8, 3))
    [(0, 3), (3, 6), (6, 8)]
    """
    return ((first, min(first + step, stop)) for first in range(start, stop, step))


def one_run(start: int, stop: int) -> Runs:
    """Return the numbers start..stop-1; no run if they are equal."""
    some = slice(int(start < stop))
    return Runs(np.array([start])[some], np.array([stop - start])[some])


def consecutive(rows: NDArray[np.int64]) -> Runs:
    """Return row numbers as runs, consecutive neighbours joined. rows: int64 [n]."""
    breaks = rows[1:] - rows[:-1] != 1
    if breaks.all():  # usually for a permutation
        return Runs(np.ascontiguousarray(rows), np.ones(len(rows), np.int64))
    at = np.flatnonzero(breaks)
    cuts = np.empty(len(at) + 2, np.int64)
    cuts[0], cuts[1:-1], cuts[-1] = 0, at + 1, len(rows)
    return Runs(rows[cuts[:-1]], cuts[1:] - cuts[:-1])


def concatenate_runs(found: Sequence[Runs]) -> Runs:
    """Concatenate runs."""
    return Runs(*map(np.concatenate, zip(one_run(0, 0), *found, strict=True)))


def on_ring(starts: NDArray[np.int64], lengths: NDArray[np.int64], n: int, rotation: int) -> Runs:
    """Return runs on a ring of n rows, rotated, cut where the ring closes, touching ones joined.

    starts: int64 [k], 0..n-1; lengths: int64 [k], 1..n. 0 <= rotation < n.
    """
    starts = (starts + rotation) % n
    beyond = starts + lengths - n
    if beyond.max() > 0:
        closing = np.flatnonzero(beyond > 0)
        lengths = lengths.copy()
        lengths[closing] -= beyond[closing]
        lengths = np.insert(lengths, closing + 1, beyond[closing])
        starts = np.insert(starts, closing + 1, 0)
    touching = starts[1:] == starts[:-1] + lengths[:-1]
    if touching.any():
        heads = np.flatnonzero(np.concatenate(([True], ~touching)))
        return Runs(starts[heads], np.add.reduceat(lengths, heads))
    return Runs(starts, lengths)


def cut(firsts: NDArray[np.int64], runs: Runs) -> tuple[Runs, NDArray[np.int64]]:
    """Return the same rows in runs that end where parts do, none of them empty, and the part of each.

    firsts: int64 [n + 1], the first row of each part, and the total at the end.
    """
    starts, lengths = runs
    if not lengths.all():
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    if len(firsts) == 2:
        return Runs(starts, lengths), np.zeros(len(starts), np.int64)
    first = np.searchsorted(firsts, starts, "right") - 1
    last = np.searchsorted(firsts, starts + lengths - 1, "right") - 1
    if (first == last).all():
        return Runs(starts, lengths), first
    parts = Runs(first, last - first + 1).rows()
    run = np.repeat(np.arange(len(starts)), last - first + 1)
    begins = np.maximum(starts[run], firsts[parts])
    ends = np.minimum((starts + lengths)[run], firsts[parts + 1])
    some = ends > begins  # parts may be empty
    return Runs(begins[some], (ends - begins)[some]), parts[some]


def digest_of(*arrays: NDArray[np.generic]) -> str:
    """Return 16 hexadecimal digits of a hash of arrays of numbers."""
    digest = blake2b(digest_size=8)
    for array in arrays:
        little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(little.view(np.uint8))
    return digest.hexdigest()


class Subset:
    """Rows of a pack in a given order, as spans (16 bytes each) or listed (8 bytes a row): the smaller form.

    rows: their number. Immutable, picklable, safe to use from several threads.

    >>> subset = Subset([(2, 5), (8, 10)])
    >>> subset.rows, subset.place(one_run(1, 4)).rows().tolist()
    (5, [3, 4, 8])
    """

    def __init__(self, spans: Sequence[tuple[int, int]] | NDArray[np.int64]) -> None:
        """spans: [first, last + 1) of rows, int64 [k, 2], one after the other; empty ones are ignored."""
        bounds = np.asarray(spans, np.int64).reshape(-1, 2)
        starts, stops = bounds[bounds[:, 0] < bounds[:, 1]].T
        head, tail = np.ones((2, len(starts)), bool)
        head[1:] = tail[:-1] = starts[1:] != stops[:-1]
        self._keep(Runs(starts[head], stops[tail] - starts[head]))

    @classmethod
    def from_rows(cls, rows: NDArray[np.int64]) -> Subset:
        """Return these rows, int64 [n], in the given order; each at most once, which is not checked."""
        made = cls.__new__(cls)
        made._keep(consecutive(rows))
        return made

    def _keep(self, runs: Runs) -> None:
        """runs: as few as possible, so that equal subsets are stored alike."""
        self.rows: int = runs.total
        self._listed: NDArray[np.int64] | None = None
        # Span k holds positions bounds[k] to bounds[k + 1] - 1; a position's row is position + shifts[k].
        self._bounds, self._shifts = np.zeros(1, np.int64), np.empty(0, np.int64)
        if len(runs.starts) > _FEW_SPANS and self.rows < _LISTED_ROWS * len(runs.starts):
            self._listed = runs.rows()
        else:
            self._bounds = np.concatenate((self._bounds, np.cumsum(runs.lengths)))
            self._shifts = runs.starts - self._bounds[:-1]

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the rows and their order, however they were given.

        Costs 25 ms for a million rows in random order, microseconds for a split.
        """
        return digest_of(*self.place(one_run(0, self.rows)))

    @property
    def ascending(self) -> bool:
        """True if the rows are in the order of the pack, each once."""
        starts, lengths = self.place(one_run(0, self.rows))
        return bool((starts[1:] >= (starts + lengths)[:-1]).all())

    def numbers(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of the pack at each of some scattered positions, int64 [k]."""
        rows: NDArray[np.int64]
        if self._listed is not None:
            rows = self._listed[positions]
        elif len(self._shifts) == 1:
            rows = positions + self._shifts[0]
        else:
            rows = self.place(Runs(positions, np.ones(len(positions), np.int64))).rows()
        return rows

    def place(self, runs: Runs) -> Runs:
        """Return the rows of the pack at runs of positions 0..rows-1.

        Positions beyond give undefined rows, or IndexError.
        Measured: 1 us for a subset of a single span, 7 us for a run of any subset, 20 us for one of several
        spans.
        """
        if self._listed is not None:
            if len(runs.starts) == 1:
                start = int(runs.starts[0])
                return consecutive(self._listed[start : start + int(runs.lengths[0])])
            return consecutive(self._listed[runs.rows()])
        if len(self._shifts) == 1:
            return Runs(runs.starts + self._shifts[0], runs.lengths)
        spans = np.searchsorted(self._bounds, runs.starts, "right") - 1
        if not (runs.starts + runs.lengths <= self._bounds[spans + 1]).all():
            runs, spans = cut(self._bounds, runs)
        return Runs(runs.starts + self._shifts[spans], runs.lengths)
