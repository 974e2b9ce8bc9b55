"""The order "blocks", also within a region: blocks of rows permuted, rows mixed in windows of some blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.arguments import as_bytes
from packer.declared_types import checked_class
from packer.errors import UsageError
from packer.orders.epochs import Asked, Context, Order, RowOrder, order_key
from packer.orders.runs import Runs, Subset, on_ring

# Cold reads of blocks of 0.4, 1, 2 and 8 MiB took as long (0.9 to 1.2 of a sequential read, a virtual disk),
# and the more blocks a window has, the better batches are mixed. In a sorted pack (100,000 photos of 192 KiB,
# 100 classes) the class counts of batches of 256 vary 24 times as much as in a uniform shuffle with 8 MiB and
# 64 MB, 8 times with 8 MiB and 256 MB, 1.7 times with these.
WINDOW_BYTES = 256_000_000
BLOCK_BYTES = 1 << 20
# Window of blocks that are decoded as a unit. Two rows of a block meet again in the next epoch if both are in
# the same batch of the window; for each batch, that is one pair in 64 * 64. Every machine can hold 64 MiB of
# decoded rows, twice.
DECODED_BLOCKS = 64
# Some pairs of a batch's rows always meet, because a block holds both. If their share is below this, blocks
# are not mixed at all.
ALWAYS_MET = 0.025
_TABLES, _EPOCHS = 16, 4  # windows and epochs with cached tables


@checked_class
@dataclass(frozen=True)
class Blocks(RowOrder):
    """Blocks of the pack in a random order, rows mixed within a window of some blocks.

    As good a shuffle as "rows", except for a pack with similar neighbours (converted with shuffle=False). A
    disk reads each block in a single run: full windows are prefetched one window ahead, in file order. Blocks
    begin where the pack's do, every `block` rows, so that each compressed block is decoded once; a shorter
    block may come anywhere. The windows' block counts differ by at most one, and none is smaller than
    requested; each has a permutation of its rows. If a batch holds many compressed blocks, each block is read
    in stored order.

    Parameters
    ----------
    window : int or str, optional
        Rows, or a size such as "256MB"; at least two blocks. Default: WINDOW_BYTES; for compressed packs
        DECODED_BLOCKS blocks, or a single block, not mixed, if a batch holds many blocks.
    block : int, optional
        Rows; default: those of BLOCK_BYTES, or the pack's block if it is compressed.

    Examples
    --------
    Four blocks of four rows, two of them per window:

    >>> from packer.orders.runs import one_run
    >>> Blocks(window=8, block=4).over(16).within(one_run(0, 16), epoch=0).rows().tolist()
    [12, 3, 13, 15, 2, 0, 14, 1, 11, 10, 7, 5, 9, 6, 4, 8]
    """

    window: int | str | None = None
    block: int | None = None
    name: ClassVar[str] = "blocks"
    lengths: ClassVar[tuple[str, ...]] = ("window", "block")
    _lead: ClassVar[int | None] = None  # in a region: rows before its first full block

    def __post_init__(self) -> None:
        if isinstance(self.window, str):
            _byte_size(self.window)
        self.check_lengths(*self.lengths[isinstance(self.window, str) :])

    def bind(self, about: Context) -> Blocks:
        """Return the order with window and block in rows."""
        row_bytes = max(1, about.row_bytes)
        block = self.block or (about.block_rows if about.coded else max(1, BLOCK_BYTES // row_bytes))
        if about.coded and self.window is None:
            few = block - 1 <= ALWAYS_MET * (min(about.global_batch, about.subset.rows) - 1)
            window = block if few else DECODED_BLOCKS * block
        elif isinstance(self.window, int):
            window = max(self.window, 2 * block)
        else:
            nbytes = WINDOW_BYTES if self.window is None else _byte_size(self.window)
            window = max(int(nbytes * about.share) // row_bytes, 2 * block)
        return Blocks(window, block).over(about.subset, about.seed)

    def over(self: Order, rows: int | Subset, seed: int = 0) -> Order:
        """Return the order bound to rows."""
        return super().over(rows, seed).having(_epochs={})

    def in_region(self, start: int) -> Blocks:
        """Return the order for a region that begins with this row: full blocks, and rows always mixed."""
        return self.having(_lead=-start % self.bound[1])

    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the rows at the positions, by the windows' permutations."""
        return self._epoch(epoch).rows(positions)

    def upcoming(self, at: Runs, epoch: int, asked: Asked) -> list[Runs]:
        """Return the blocks of these positions' windows, window after window, each in file order.

        They are the same for all ranks, which read from all blocks. Empty if blocks keep their stored order.
        """
        found: list[Runs] = []
        for start, rows in (
            zip(at.starts.tolist(), at.lengths.tolist(), strict=True) if self.mixed_rows(1) else ()
        ):
            every = self._epoch(epoch)
            for window in range(every.window(start), every.window(start + rows - 1) + 1):
                if (self.seed, epoch, window) not in asked:
                    asked.add((self.seed, epoch, window))
                    found.append(every.blocks(window))
        return found

    def mixed_rows(self, ranks: int) -> int:
        """See RowOrder: the rows of a window; 0 for windows of one block, which is read in stored order."""
        window, block = self.bound
        return window if window > block or self._lead is not None else 0

    def _epoch(self, epoch: int) -> BlockEpoch:
        """Return an epoch from a small cache: each costs as much as placing 256 rows."""
        kept: dict[int, BlockEpoch] = self.__dict__["_epochs"]
        if (found := kept.get(epoch)) is None:
            if len(kept) >= _EPOCHS:
                kept.clear()
            kept[epoch] = found = BlockEpoch(self, epoch)
        return found


class BlockEpoch:
    """The rows of an epoch of "blocks".

    The rows are a ring that begins with the pack's first block. The ring's last block is shorter; it comes
    anywhere in the order, and its rows are the last of its window. Places count as positions would if that
    block were as long as the others. In the order of the blocks, the first `extra` windows have each + 1
    blocks, the others `each`.
    """

    def __init__(self, order: Blocks, epoch: int) -> None:
        window, block = order.bound
        self._size, self._seed, self._number = order.length, order.seed, epoch
        self._key = order_key(order.seed, epoch, "whole")
        self.block: int = min(block, max(1, self._size))
        self._lead = min(order._lead or 0, max(self._size - 1, 0))
        self._blocks = max(1, -(-self._size // self.block))
        self.windows: int = max(1, self._blocks // -(-window // block))
        self._each, self._extra = divmod(self._blocks, self.windows)
        self._mixed = self.windows == 1 or order.mixed_rows(1) > 0
        self._missing = self._blocks * self.block - self._size
        last = int(randomness.unpermute(np.array([self._blocks - 1]), self._blocks, self._key)[0])
        self._short = self._window_of(last)  # the window with the shorter block
        self._edge = self.slots(self._short)[1] * self.block - self._missing
        # Window -> the first row of each of its blocks, its number of rows, and the key of their permutation.
        self._tables: dict[int, tuple[NDArray[np.int64], int, int]] = {}

    def slots(self, window: int) -> tuple[int, int]:
        """Return the blocks [first, last + 1) of a window."""
        first = window * self._each + min(window, self._extra)
        return first, first + self._each + (window < self._extra)

    def window(self, position: int) -> int:
        """Return the window of a position."""
        return self._window_of(self._place(position) // self.block)

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows at some positions, int64 [k], at least one."""
        block, rows = self.block, np.empty(len(positions), np.int64)
        first = int(positions.min())
        low, high = self._place(first), self._place(int(positions.max()))
        window = self._window_of(low // block)
        if self._mixed and high < self.slots(window)[1] * block:  # usually all are in one window
            rows = self._mix(window, positions + (low - first))
        else:
            places = positions + self._missing * (positions >= self._edge)
            slots = places // block
            if not self._mixed:
                rows = randomness.permute(slots, self._blocks, self._key) * block + (places - slots * block)
            else:
                windows = np.maximum(slots // (self._each + 1), (slots - self._extra) // self._each)
                for window in np.unique(windows).tolist():
                    own = np.flatnonzero(windows == window)
                    rows[own] = self._mix(window, places[own])
        if self._lead:
            rows += self._lead
            rows -= self._size * (rows >= self._size)
        return rows

    def blocks(self, window: int) -> Runs:
        """Return the blocks of a window, in file order."""
        starts = np.sort(self._table(window)[0])
        return on_ring(starts, np.minimum(self.block, self._size - starts), self._size, self._lead)

    def _window_of(self, slot: int) -> int:
        return max(slot // (self._each + 1), (slot - self._extra) // self._each)

    def _place(self, position: int) -> int:
        return position + self._missing * (position >= self._edge)

    def _mix(self, window: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows at places of a window after mixing, counted on the ring, int64 [k]."""
        table, length, key = self._table(window)
        mixed = randomness.permute(places - self.slots(window)[0] * self.block, length, key)
        slots = mixed // self.block  # np.divmod takes three times as long
        mixed -= slots * self.block
        mixed += table[slots]
        return mixed

    def _table(self, window: int) -> tuple[NDArray[np.int64], int, int]:
        """Return the first row of each block of a window, counted on the ring, its rows and its key."""
        found = self._tables.get(window)
        if found is None:
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            first, last = self.slots(window)
            own = randomness.permute(np.arange(first, last), self._blocks, self._key)
            length = (last - first) * self.block
            if self._short == window:
                own = np.append(own[own != self._blocks - 1], self._blocks - 1)
                length -= self._missing
            key = randomness.key(self._seed, self._number, "whole", window)
            self._tables[window] = found = own * self.block, length, key
        return found


def _byte_size(text: str) -> int:
    """Return the bytes of a size such as "256MB". Raises UsageError for other texts."""
    nbytes = as_bytes(text, unit=True)
    if nbytes is None:
        raise UsageError(
            f"Blocks: window: is {text!r}; a number and a unit are allowed. Pass for example '256MB'."
        )
    return nbytes
