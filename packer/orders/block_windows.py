"""Blocks of rows in a random order, and rows mixed within windows of some blocks: what "blocks" and "regions" are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.orders.runs import Runs, on_ring, one_run

_TABLES = 16  # windows whose blocks are kept


class WindowCut(NamedTuple):
    """A division of n rows into blocks and windows.

    Counted in the order in which blocks stand: the first `extra` windows have each + 1 blocks, the others `each`.
    """

    n: int
    block: int
    windows: int
    each: int
    extra: int

    @classmethod
    def of(cls, rows: int, block: int, window: int) -> WindowCut:
        """Return blocks of so many rows, all equally long, for some rows, and windows of so many blocks, or some more."""
        block = min(block, rows)
        blocks = -(-rows // block)
        windows = max(1, blocks // window)
        return cls(blocks * block, block, windows, *divmod(blocks, windows))

    def window(self, position: int) -> int:
        """Return the window that a position lies in."""
        return int(self.windows_of(position))

    def windows_of(self, positions: Any) -> NDArray[np.int64]:
        """Return the window that each position lies in."""
        slots, wide = positions // self.block, self.extra * (self.each + 1)
        wider, narrower = slots // (self.each + 1), self.extra + (slots - wide) // self.each
        windows: NDArray[np.int64] = np.where(slots < wide, wider, narrower)
        return windows

    def slots(self, window: int) -> tuple[int, int]:
        """Return the blocks [first, last + 1) of a window."""
        first = window * self.each + min(window, self.extra)
        return first, first + self.each + (window < self.extra)


class BlockEpoch:
    """The rows of an epoch of a run of rows, the whole pack or a region, by their number there.

    The run is a ring that begins where the first of the pack's blocks does. Its last block is shorter. It comes anywhere, and its rows are
    the last of its window. Numbers are counted as places, as if it was as long as the others.

    start, size: of the run. cut: of at least as many rows. key: of the permutation of its blocks. window_key: of those of windows; None:
    each window is one block, whose rows are not mixed. turn: where the run begins in these.
    """

    def __init__(
        self, start: int, size: int, cut: WindowCut, key: int, window_key: tuple[Any, ...] | None, turn: int
    ) -> None:
        self._start, self._size, self._cut, self._key = start, size, cut, key
        self._window_key, self._turn = window_key, turn
        self._lead = min(-start % cut.block, max(size - 1, 0))
        self._blocks, self._missing = cut.n // cut.block, cut.n - size
        last = randomness.unpermute(np.array([self._blocks - 1]), self._blocks, key)
        self._short = cut.window(int(last[0]) * cut.block)  # the window of the shorter block
        self._edge = cut.slots(self._short)[1] * cut.block - self._missing
        self._tables: dict[int, NDArray[np.int64]] = {}  # window -> the first row of each of its blocks

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of some numbers: int64 [k], at least one."""
        block, rows = self._cut.block, np.empty(len(numbers), np.int64)
        if self._window_key is None:
            places = numbers + self._missing * (numbers >= self._edge)
            slots = places // block
            rows = randomness.permute(slots, self._blocks, self._key) * block + (places - slots * block)
        else:
            first = int(numbers.min())
            low, high = self._place(first), self._place(int(numbers.max()))
            window = self._cut.window(low)
            if high < self._cut.slots(window)[1] * block:  # most often they are all of one window
                rows = self._mixed(window, numbers + (low - first))
            else:
                places = numbers + self._missing * (numbers >= self._edge)
                windows = self._cut.windows_of(places)
                for window in np.unique(windows).tolist():
                    own = np.flatnonzero(windows == window)
                    rows[own] = self._mixed(window, places[own])
        if self._start:  # else the ring begins where the run does
            rows += self._lead
            rows -= self._size * (rows >= self._size)
            rows += self._start
        return rows

    def ahead(self, first: int, last: int, *, begin: bool) -> list[Runs]:
        """Return the blocks of each window one window before it is needed, at the beginning of the first two, in the order of the file.

        first, last: the numbers that are read next; before them is the one read before, but at the beginning.
        """
        low = self._cut.window(self._place(first)) + (0 if begin else 2)
        high = min(self._cut.window(self._place(last)) + 2, self._cut.windows) if self._size else low
        found = []
        for window in range(low, high):
            starts = np.sort(self._table(window))
            starts = starts[starts < self._size]  # a shorter run may lack its last block
            if len(starts):
                lengths = np.minimum(self._cut.block, self._size - starts)
                runs = on_ring(starts, lengths, self._size, self._lead)
                found.append(Runs(runs.starts + self._start, runs.lengths))
        return found

    def _place(self, number: int) -> int:
        return number + self._missing * (number >= self._edge)

    def _mixed(self, window: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what is mixed to places of a window, counted on the ring, int64 [k]."""
        assert self._window_key is not None
        block, (first, last) = self._cut.block, self._cut.slots(window)
        length = (last - first) * block - self._missing * (window == self._short)
        inside = places - first * block
        if self._turn:
            inside = (inside + self._turn) % length
        mixed = randomness.permute(inside, length, randomness.key(*self._window_key, window))
        slots = mixed // block  # np.divmod takes three times as long
        mixed -= slots * block
        mixed += self._table(window)[slots]
        return mixed

    def _table(self, window: int) -> NDArray[np.int64]:
        """Return the first row of each block of a window, counted on the ring."""
        table = self._tables.get(window)
        if table is None:
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            own = randomness.permute(np.arange(*self._cut.slots(window)), self._blocks, self._key)
            if self._short == window:
                own = np.append(own[own != self._blocks - 1], self._blocks - 1)
            self._tables[window] = table = own * self._cut.block
        return table


def all_runs(found: list[Runs]) -> Runs:
    """Return runs that follow each other as one."""
    return Runs(*map(np.concatenate, zip(one_run(0, 0), *found, strict=True)))
