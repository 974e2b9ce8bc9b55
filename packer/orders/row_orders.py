"""Orders: which rows stand where in an epoch. Sampling with repetitions is in `sampling.py`, that of packs in stores in `regions.py`.

The sequences are frozen: a resumed epoch depends on them, and the tests hold golden values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.arguments import as_bytes
from packer.errors import UsageError
from packer.foreign_words import refuses_foreign_words
from packer.orders.block_windows import BlockEpoch, WindowCut, all_runs
from packer.orders.epochs import Context, Reach, RowOrder, check_lengths, order_key
from packer.orders.regions import Regions
from packer.orders.runs import Runs, on_ring, one_run

# Of "blocks". Cold reads from blocks of 0.4, 1, 2 and 8 MiB took as long (0.9 to 1.2 of a sequential read, a virtual disk), and
# batches are as mixed as a window has blocks. Of a sorted pack (100,000 photos of 192 KiB, 100 classes) the class counts of batches
# of 256 vary 24 times as much as in a uniform shuffle with 8 MiB and 64 MB, 8 times with 8 MiB and 256 MB, 1.7 times with these.
WINDOW_BYTES = 256_000_000
BLOCK_BYTES = 1 << 20
# Of blocks that are decoded whole. Two rows of a block meet again in the next epoch if they meet in a batch of a window, which is
# one pair in 64 * 64 for each batch that a window has; and 64 MiB of decoded rows fit every machine, twice.
DECODED_BLOCKS = 64
# Of a batch's pairs of rows, those that always meet since one block holds them: below this share blocks are not mixed at all.
ALWAYS_MET = 0.025


@dataclass(frozen=True)
class Sequential(RowOrder):
    """Rows as they lie in the pack: the fastest read, one run a batch, and the same batches in every epoch.

    For evaluation and inference. Training on it sees the same neighbours in the same batch for ever, which
    "slices" avoids in part and "rows" in full.

    Examples
    --------
    >>> Sequential().place(one_run(2, 5), n=12, seed=0, epoch=0).rows().tolist()
    [2, 3, 4]
    """

    name: ClassVar[str] = "sequential"
    by_run: ClassVar[bool] = True
    fixed: ClassVar[bool] = True

    def place(self, positions: Runs, n: int, seed: int, epoch: int) -> Runs:
        """Return the positions: they are the rows."""
        return positions


@dataclass(frozen=True)
class Slices(RowOrder):
    """Contiguous slices in a random order: reads like "sequential", shuffles well a pack shuffled when made.

    The rows form a ring, which is cut at a random place, then every `rows`; the slices are permuted, but
    a shorter one comes last. So batches of that many rows start where slices start (one run a batch, two where
    the ring closes), every epoch cuts elsewhere, and dropping the last batch drops other rows each time.
    Rows next to each other in the pack do meet in most epochs: where that matters, take "rows", which
    costs one read a row instead of one a batch.

    Parameters
    ----------
    rows : int, optional
        Rows of a slice, at least 1; default: the global batch.

    Examples
    --------
    >>> Slices(rows=4).place(one_run(0, 12), n=12, seed=0, epoch=0).rows().tolist()
    [3, 4, 5, 6, 11, 0, 1, 2, 7, 8, 9, 10]
    """

    rows: int | None = None
    name: ClassVar[str] = "slices"
    lengths: ClassVar[tuple[str, ...]] = ("rows",)
    by_run: ClassVar[bool] = True

    def bind(self, about: Context) -> Slices:
        """Return the order with slices of a global batch, unless their rows were given."""
        return Slices(self.rows or about.global_batch)

    def place(self, positions: Runs, n: int, seed: int, epoch: int) -> Runs:
        """Return the slices, or parts of them, that stand at the positions."""
        if not len(positions.starts):
            return positions
        size = min(*self.bound, n)
        whole = n // size
        key = order_key(seed, epoch, self.name)
        if len(positions.starts) == 1:
            begin, stop = int(positions.starts[0]), int(positions.starts[0] + positions.lengths[0])
            first, last = begin // size, (stop - 1) // size
            numbers = np.arange(first, last + 1)
            if first < whole:
                full = min(last + 1, whole) - first
                numbers[:full] = randomness.permute(numbers[:full], whole, key)
            if first == last:  # a batch that is one slice, or part of it
                row = (int(numbers[0]) * size + begin - first * size + key) % n
                if row + stop - begin <= n:
                    return one_run(row, row + stop - begin)
            starts, lengths = numbers * size, np.full(len(numbers), size)
            starts[0] += begin - first * size
            lengths[0] -= begin - first * size
            lengths[-1] -= (last + 1) * size - stop
            return on_ring(starts, lengths, n, key % n)
        firsts = positions.starts // size
        counts = (positions.starts + (positions.lengths - 1)) // size - firsts + 1
        numbers = Runs(firsts, counts).rows()
        begins = np.maximum(np.repeat(positions.starts, counts) - numbers * size, 0)
        ends = np.minimum(np.repeat(positions.starts + positions.lengths, counts) - numbers * size, size)
        inside = numbers < whole
        numbers[inside] = randomness.permute(numbers[inside], whole, key) if whole else 0
        return on_ring(numbers * size + begins, ends - begins, n, key % n)


@dataclass(frozen=True)
class Blocks(RowOrder):
    """Blocks of neighbouring rows in a random order, and the rows mixed inside a window of several blocks.

    Between "slices" and "rows": a batch is drawn from all blocks of a window, and a disk that is told (`ahead`) reads whole
    blocks. The batches are as mixed as the window is wide. Memory for the rows of two windows should be at hand.

    Blocks begin where the pack's do, every `block` rows, so that compressed ones are each decoded once; a shorter one comes anywhere.
    Windows hold equally many blocks, up to one, and no fewer than asked for; each has a permutation of its rows. In a compressed pack
    of whose blocks a batch has many, each is read as it lies.

    Parameters
    ----------
    window : int or str, optional
        Rows, or a size such as "256MB"; at least two blocks; default: WINDOW_BYTES, or, of rows that are compressed in blocks,
        DECODED_BLOCKS of these, or one where a batch has enough of them.
    block : int, optional
        Rows; default: those of BLOCK_BYTES, or the pack's where it compresses them.

    Examples
    --------
    Four blocks of four rows, two of them in a window:

    >>> Blocks(window=8, block=4).place(one_run(0, 16), n=16, seed=0, epoch=0).rows().tolist()
    [12, 3, 13, 15, 2, 0, 14, 1, 11, 10, 7, 5, 9, 6, 4, 8]
    """

    window: int | str | None = None
    block: int | None = None
    name: ClassVar[str] = "blocks"
    lengths: ClassVar[tuple[str, ...]] = ("window", "block")
    looks_ahead: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.window, str):
            _byte_size("Blocks: window", self.window)
        check_lengths(self, *(self.lengths[isinstance(self.window, str) :]))

    def bind(self, about: Context) -> Blocks:
        """Return the order with window and block in rows."""
        row_bytes = max(1, about.row_bytes)
        block = self.block or (about.block_rows if about.coded else max(1, BLOCK_BYTES // row_bytes))
        if about.coded and self.window is None:
            few = block - 1 <= ALWAYS_MET * (min(about.global_batch, about.n) - 1)
            return Blocks(block if few else DECODED_BLOCKS * block, block)
        if isinstance(self.window, int):
            return Blocks(max(self.window, 2 * block), block)
        nbytes = WINDOW_BYTES if self.window is None else _byte_size("Blocks: window", self.window)
        return Blocks(max(int(nbytes * about.share) // row_bytes, 2 * block), block)

    def rows_at(self, positions: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the rows that the windows' permutations put at the positions."""
        return _block_epoch(self, n, seed, epoch).rows(positions)

    def ahead(self, reach: Reach, n: int, seed: int, epoch: int) -> Runs:
        """Return the blocks of each window one window before it is needed; at the beginning, of the first two.

        Window after window, each in the order of the file. All ranks get the same: each of them reads from all blocks.
        None where windows are single blocks, which are asked for when they are read. Where a global batch is of many windows, of which
        a rank reads a few rows, these are the rows that `own` has one interval later.
        """
        if reach.start == reach.stop or not (window := self.mixed_rows(1)):
            return one_run(0, 0)
        if reach.is_wide(window):
            return self.place(reach.later(n), n, seed, epoch)
        first, last = reach.first, reach.stop - 1
        return all_runs(_block_epoch(self, n, seed, epoch).ahead(first, last, begin=reach.begins))

    def mixed_rows(self, ranks: int) -> int:
        """See RowOrder: those of a window; 0 where it is one block."""
        window, block = self.bound
        return window if window > block else 0


@lru_cache(maxsize=16)
def _block_epoch(order: Blocks, n: int, seed: int, epoch: int) -> BlockEpoch:
    """Return an epoch of an order, bound; kept, since it costs as much as placing 256 rows."""
    window, block = order.bound
    cut = WindowCut.of(n, block, -(-window // block))
    key = None if cut.windows > 1 and not order.mixed_rows(1) else (seed, epoch, "whole")
    return BlockEpoch(0, n, cut, order_key(seed, epoch, "whole"), key, 0)


Blocks.__init__ = refuses_foreign_words(Blocks.__init__)  # type: ignore[method-assign]


@dataclass(frozen=True)
class Rows(RowOrder):
    """A full permutation of the rows: the best shuffle, at one read a row.

    As fast as the others where rows are resident (RAM, page cache, GPU); from a cold disk "slices" reads
    several times faster. Computed position by position, so a billion rows need no memory.

    Examples
    --------
    >>> Rows().place(one_run(0, 12), n=12, seed=0, epoch=0).rows().tolist()
    [10, 8, 2, 7, 6, 4, 0, 5, 3, 11, 1, 9]
    """

    name: ClassVar[str] = "rows"

    def rows_at(self, positions: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the permuted positions."""
        return randomness.permute(positions, n, order_key(seed, epoch, self.name))


BY_NAME: dict[str, Callable[[], RowOrder]] = {
    "sequential": Sequential,
    "slices": Slices,
    "blocks": Blocks,
    "rows": Rows,
    "regions": Regions,
}
"""The orders that need nothing but their name."""


def _byte_size(subject: str, text: str) -> int:
    """Return the bytes of a size such as "256MB". Raise UsageError for what is none."""
    nbytes = as_bytes(text, unit=True)
    if nbytes is None:
        raise UsageError(
            f"{subject}: is {text!r}; a number and a unit are allowed. Pass for example '256MB'."
        )
    return nbytes
