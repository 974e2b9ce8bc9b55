"""Blocks of rows in a random order, and rows mixed within windows of some blocks: what "blocks" and "regions" are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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

    def window(self, position: int) -> int:
        """Return the window that a position lies in."""
        slot, wide = position // self.block, self.extra * (self.each + 1)
        return slot // (self.each + 1) if slot < wide else self.extra + (slot - wide) // self.each

    def windows_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the window that each position lies in."""
        slots, wide = positions // self.block, self.extra * (self.each + 1)
        windows: NDArray[np.int64] = np.where(
            slots < wide, slots // (self.each + 1), self.extra + (slots - wide) // self.each
        )
        return windows

    def slots(self, window: int) -> tuple[int, int]:
        """Return the blocks [first, last + 1) of a window."""
        first = window * self.each + min(window, self.extra)
        return first, first + self.each + (window < self.extra)


class Parts(NamedTuple):
    """Runs of rows that are drawn each by itself: the whole pack, or its regions; all cut into equally many blocks.

    starts, sizes: of the parts, int64 [parts]. lead: rows of each before its first block that begins where one of the pack does: a part is
    a ring that begins there. cut: of a part whose last block is as long as the others.
    """

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    lead: NDArray[np.int64]
    cut: WindowCut

    @classmethod
    def of(cls, starts: NDArray[np.int64], sizes: NDArray[np.int64], block: int, window: int) -> Parts:
        """Return parts in blocks of so many rows, and windows of so many blocks, or some more."""
        most = max(1, int(sizes.max()))
        block = min(block, most)
        blocks = -(-most // block)
        windows = max(1, blocks // window)
        lead = np.minimum(-starts % block, np.maximum(sizes - 1, 0))
        return cls(starts, sizes, lead, WindowCut(blocks * block, block, windows, *divmod(blocks, windows)))


class BlockEpoch:
    """The rows of an epoch, by part and number there.

    The last block of a part is shorter. It comes anywhere, and its rows are the last of its window. Numbers are counted as places, as if it
    was as long as the others.

    keys: of the permutation of each part's blocks. key: of those of windows, which the parts share; None: each window is one block, whose
    rows are not mixed. turns: where each part begins in them.
    """

    def __init__(
        self,
        parts: Parts,
        keys: list[int],
        key: tuple[int | str, ...] | None,
        turns: NDArray[np.int64] | None = None,
    ) -> None:
        self._parts, self._keys, self._turns, self._key = parts, keys, turns, key
        cut = parts.cut
        self._blocks, self._missing = cut.n // cut.block, cut.n - parts.sizes
        last = np.array([self._blocks - 1])
        slots = [int(randomness.unpermute(last, self._blocks, one)[0]) for one in keys]
        self._short = cut.windows_of(np.array(slots) * cut.block)  # the window of the shorter block
        ends = np.array([cut.slots(window)[1] for window in self._short.tolist()])
        self._edges = ends * cut.block - self._missing
        # By window: the first row of each block, and the parts of which it is known.
        self._tables: dict[int, tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of some numbers of the only part, the whole pack: int64 [k], at least one."""
        cut, edge, missing = self._parts.cut, int(self._edges[0]), int(self._missing[0])
        if self._key is None:
            places = numbers + missing * (numbers >= edge)
            slots = places // cut.block
            places -= slots * cut.block
            return randomness.permute(slots, self._blocks, self._keys[0]) * cut.block + places
        low, high = (at + missing * (at >= edge) for at in (int(numbers.min()), int(numbers.max())))
        window = cut.window(low)
        first, last = cut.slots(window)
        if high >= last * cut.block:
            return self.rows_of(np.zeros(len(numbers), np.int64), numbers)
        # Most often they are all of one window.
        shift = missing * (low - missing >= edge) - first * cut.block
        return self._mixed(window, missing * int(self._short[0] == window), 0, numbers + shift)

    def rows_of(self, parts: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of some numbers of parts, int64 [k], at least one. parts: int64 [k]."""
        cut, missing = self._parts.cut, self._missing[parts]
        places = numbers + missing * (numbers >= self._edges[parts])
        windows = cut.windows_of(places)
        groups = windows * (cut.block + 1) + missing * (self._short[parts] == windows)
        rows = np.empty(len(numbers), np.int64)
        for group in [groups[0]] if (groups == groups[0]).all() else np.unique(groups):
            own = np.flatnonzero(groups == group)
            window, lacking = divmod(int(group), cut.block + 1)
            inside = places[own] - cut.slots(window)[0] * cut.block
            rows[own] = self._mixed(window, lacking, parts[own], inside)
        rows += self._parts.lead[parts]
        rows -= self._parts.sizes[parts] * (rows >= self._parts.sizes[parts])
        rows += self._parts.starts[parts]
        return rows

    def _mixed(
        self, window: int, lacking: int, parts: NDArray[np.int64] | int, inside: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return what is mixed to places inside a window that lacks some rows, counted on the ring, int64 [k]."""
        assert self._key is not None
        block, (first, last) = self._parts.cut.block, self._parts.cut.slots(window)
        length, table = (last - first) * block - lacking, self._table(window, parts)
        if self._turns is not None:
            inside = (inside + self._turns[parts]) % length
        mixed = randomness.permute(inside, length, randomness.key(*self._key, window))
        slots = mixed // block  # np.divmod takes three times as long
        mixed -= slots * block
        mixed += table[0][slots] if isinstance(parts, int) else table[parts, slots]
        return mixed

    def ahead(self, parts: Iterable[int], first: int, last: int, *, begin: bool) -> Runs:
        """Return the blocks of each window one window before it is needed, at the beginning of the first two, in the order of the file.

        first, last: the numbers that are read next of each of the parts; before them is the one read before, but at the beginning.
        """
        cut, found = self._parts.cut, [one_run(0, 0)]
        for part in parts:
            edge, missing = int(self._edges[part]), int(self._missing[part])
            low = cut.window(first + missing * (first >= edge)) + (0 if begin else 2)
            high = min(cut.window(last + missing * (last >= edge)) + 2, cut.windows)
            start, size, lead = (int(of[part]) for of in self._parts[:3])
            for window in range(low, high if size else low):
                starts = np.sort(self._table(window, part)[part])
                starts = starts[starts < size]  # a shorter part may lack its last block
                if len(starts):
                    runs = on_ring(starts, np.minimum(cut.block, size - starts), size, lead)
                    found.append(Runs(runs.starts + start, runs.lengths))
        return Runs(*map(np.concatenate, zip(*found, strict=True))) if len(found) > 1 else found[0]

    def _table(self, window: int, parts: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the first row of each block of a window in these parts, counted on the ring: int64 [all parts, slots].

        Others may not be filled in: a rank reads few of thousands.
        """
        kept = self._tables.get(window)
        if kept is None:
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            slots = self._parts.cut.slots(window)
            kept = np.empty((len(self._keys), slots[1] - slots[0]), np.int64), np.zeros(len(self._keys), bool)
            self._tables[window] = kept
        table, known = kept
        some = [parts] if isinstance(parts, int) else parts[~known[parts]].tolist()
        for part in {one for one in some if not known[one]}:
            own = randomness.permute(
                np.arange(*self._parts.cut.slots(window)), self._blocks, self._keys[part]
            )
            if self._short[part] == window:
                own = np.append(own[own != self._blocks - 1], self._blocks - 1)
            table[part] = own * self._parts.cut.block
            known[part] = True
        return table
