"""Some rows of a pack, given as spans, counted from 0 as if they were all there is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from packer.orders.runs import Runs


class Spans:
    """Spans [first, last + 1) of rows, one after the other. rows: in all of them together."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        self._starts = np.array([start for start, _ in spans], np.int64)
        self._ends = np.cumsum([stop - start for start, stop in spans], dtype=np.int64)  # as positions
        self._shifts = self._starts - np.concatenate(([0], self._ends[:-1]))
        self.rows = int(self._ends[-1]) if len(spans) else 0

    def place(self, runs: Runs) -> Runs:
        """The rows of the pack that runs of positions mean."""
        if len(self._starts) == 1:
            return Runs(runs.starts + self._shifts[0], runs.lengths)
        first = np.searchsorted(self._ends, runs.starts, "right")
        last = np.searchsorted(self._ends, runs.starts + runs.lengths - 1, "right")
        if (first == last).all():
            return Runs(runs.starts + self._shifts[first], runs.lengths)
        starts: list[int] = []
        lengths: list[int] = []
        for start, length in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True):
            while length:
                k = int(np.searchsorted(self._ends, start, "right"))
                count = min(length, int(self._ends[k]) - start)
                starts.append(start + int(self._shifts[k]))
                lengths.append(count)
                start, length = start + count, length - count
        return Runs(np.array(starts), np.array(lengths))
