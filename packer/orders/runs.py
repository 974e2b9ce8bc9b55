"""Numbers as contiguous runs: positions of an epoch, or rows of a pack."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Runs(NamedTuple):
    """Rows (or positions) as contiguous runs, in the order of the sequence.

    starts:  int64 [k], the first row of each run.
    lengths: int64 [k], rows in each run, at least 1.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def total(self) -> int:
        """Rows in all runs together."""
        return int(self.lengths.sum())

    def rows(self) -> NDArray[np.int64]:
        """Return each row's number, int64 [total]."""
        if len(self.starts) == 1:
            start = self.starts[0]
            return np.arange(start, start + self.lengths[0])
        before = np.cumsum(self.lengths) - self.lengths
        return np.repeat(self.starts - before, self.lengths) + np.arange(self.total)

    def part(self, start: int, stop: int) -> Runs:
        """The runs' entries number start..stop-1, counted over all of them; 0 <= start <= stop <= total."""
        if len(self.starts) == 1:
            return one_run(int(self.starts[0]) + start, int(self.starts[0]) + stop)
        ends = np.cumsum(self.lengths)
        begins = np.maximum(ends - self.lengths, start)
        lengths = np.minimum(ends, stop) - begins
        some = lengths > 0
        return Runs((self.starts + begins - ends + self.lengths)[some], lengths[some])


def one_run(start: int, stop: int) -> Runs:
    """The numbers start..stop-1; none if they are equal."""
    some = slice(int(start < stop))
    return Runs(np.array([start])[some], np.array([stop - start])[some])


def consecutive(rows: NDArray[np.int64]) -> Runs:
    """Row numbers as runs: neighbours that follow each other are one run. rows: int64 [n]."""
    breaks = rows[1:] - rows[:-1] != 1
    if breaks.all():  # of a permutation, mostly
        return Runs(np.ascontiguousarray(rows), np.ones(len(rows), np.int64))
    at = np.flatnonzero(breaks)
    cuts = np.empty(len(at) + 2, np.int64)
    cuts[0], cuts[1:-1], cuts[-1] = 0, at + 1, len(rows)
    return Runs(rows[cuts[:-1]], cuts[1:] - cuts[:-1])
