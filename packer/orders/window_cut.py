"""A division of rows into blocks, and of blocks into windows within which rows are mixed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


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
