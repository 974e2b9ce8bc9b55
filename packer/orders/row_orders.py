"""Orders: which rows stand where in an epoch. Sampling with repetitions is in `sampling.py`, that of packs in stores in `regions.py`.

The sequences are frozen: a resumed epoch depends on them, and the tests hold golden values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.arguments import as_bytes
from packer.errors import UsageError
from packer.orders.epochs import Context, RowOrder, one_later, order_key, recorded, whole_number
from packer.orders.regions import Regions
from packer.orders.runs import Runs, consecutive, on_ring, one_run
from packer.orders.window_cut import WindowCut

# Of "blocks". Cold reads from blocks of 0.4, 1, 2 and 8 MiB took as long (0.9 to 1.2 of a sequential read, a virtual disk), and
# batches are as mixed as a window has blocks. Of a sorted pack (100,000 photos of 192 KiB, 100 classes) the class counts of batches
# of 256 vary 24 times as much as in a uniform shuffle with 8 MiB and 64 MB, 8 times with 8 MiB and 256 MB, 1.7 times with these.
WINDOW_BYTES = 256_000_000
BLOCK_BYTES = 1 << 20
# Of blocks that are decoded whole. Two rows of a block meet again in the next epoch if they meet in a batch of a window, which is
# one pair in 64 * 64 for each batch that a window has; and 64 MiB of decoded rows fit every machine, twice.
DECODED_BLOCKS = 64
# Of more ranks than this, whose global batch is of so many windows, each asks for its own rows only: else every node would read the
# rows of all others, too (at 1,000 GPUs, 64 photos each, 12.6 GB a step instead of 100 MB).
WIDE_RANKS, WIDE_WINDOWS = 4, 3
# Of a batch's pairs of rows, those that always meet since one block holds them: below this share blocks are not mixed at all.
ALWAYS_MET = 0.025
_PIECE_ROWS = (
    8192  # are placed at once: the arrays of more no longer stay in the cache, and took twice as long
)


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
    by_run: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rows is not None:
            rows = whole_number("Slices: rows", self.rows, "Pass the global batch size.")
            object.__setattr__(self, "rows", rows)

    def bind(self, about: Context) -> Slices:
        """Return the order with slices of a global batch, unless their rows were given."""
        return Slices(self.rows or about.global_batch)

    def place(self, positions: Runs, n: int, seed: int, epoch: int) -> Runs:
        """Return the slices, or parts of them, that stand at the positions."""
        if not len(positions.starts):
            return positions
        assert self.rows is not None  # by bind
        size = min(self.rows, n)
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

    def record(self) -> dict[str, Any]:
        """Return the name, and the rows of a slice."""
        return {"name": self.name, "rows": self.rows}

    def resumed(self, record: Mapping[str, Any]) -> Slices:
        """Return the order with the recorded length of a slice. Raises UsageError for the record of another order."""
        return Slices(**recorded(record, self.name, "rows"))


@dataclass(frozen=True)
class Blocks(RowOrder):
    """Blocks of neighbouring rows in a random order, and the rows mixed inside a window of several blocks.

    Between "slices" and "rows": a batch is drawn from all blocks of a window, and a disk that is told (`ahead`) reads whole
    blocks. The batches are as mixed as the window is wide. Memory for the rows of two windows should be at hand.

    The rows form a ring, which is cut at a random place, then every `block`; the blocks are permuted, but a shorter one comes
    last. Windows hold equally many blocks, up to one, and no fewer than asked for; each has a permutation of its rows.
    Whole blocks begin where the pack's do, and the shorter one comes anywhere; a window of one block is read as it lies.

    Parameters
    ----------
    window : int or str, optional
        Rows, or a size such as "256MB"; at least two blocks; default: WINDOW_BYTES.
    block : int, optional
        Rows; default: those of BLOCK_BYTES, or the pack's where it compresses them.
    whole : bool
        Blocks are the pack's own, which it compresses and which have to be decoded whole, so that each had better be read in one
        place. A window is then one block, or DECODED_BLOCKS, and `window` says which.

    Examples
    --------
    Four blocks of four rows, two of them in a window:

    >>> Blocks(window=8, block=4).place(one_run(0, 16), n=16, seed=0, epoch=0).rows().tolist()
    [15, 0, 14, 13, 3, 1, 2, 12, 10, 5, 4, 6, 11, 8, 7, 9]
    """

    window: int | str | None = None
    block: int | None = None
    whole: bool = False
    name: ClassVar[str] = "blocks"
    looks_ahead: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.window, str):
            _byte_size("Blocks: window", self.window)
        elif self.window is not None:
            window = whole_number("Blocks: window", self.window, "Pass its rows, or a size such as '256MB'.")
            object.__setattr__(self, "window", window)
        if self.block is not None:
            remedy = "Pass the rows that lie together and are read together."
            object.__setattr__(self, "block", whole_number("Blocks: block", self.block, remedy))

    def bind(self, about: Context) -> Blocks:
        """Return the order with window and block in rows."""
        row_bytes = max(1, about.row_bytes)
        block = self.block or (about.block_rows if about.coded else max(1, BLOCK_BYTES // row_bytes))
        window = int(WINDOW_BYTES * about.share) // row_bytes if self.window is None else self.window
        if isinstance(window, str):
            window = int(_byte_size("Blocks: window", window) * about.share) // row_bytes
        if self.whole and self.window is None:
            few = block - 1 <= ALWAYS_MET * (min(about.global_batch, about.n) - 1)
            window = block if few else DECODED_BLOCKS * block
        return Blocks(max(1, window), block, self.whole)

    def place(self, positions: Runs, n: int, seed: int, epoch: int) -> Runs:
        """Return the rows that the windows' permutations put at the positions."""
        if not len(positions.starts):
            return positions
        places = positions.rows()
        if self.whole:
            return consecutive(_WholeBlocks.of(self, n, seed, epoch).rows(places))
        cut = self._cut(n)
        first = cut.window(int(positions.starts.min()))
        last = cut.window(int((positions.starts + positions.lengths).max()) - 1)
        if first == last:
            return consecutive(_mixed_in_pieces(cut, first, seed, epoch, places))
        windows = cut.windows_of(places)
        return consecutive(
            np.concatenate(
                [
                    _mixed_in_pieces(cut, int(windows[a]), seed, epoch, places[a:b])
                    for a, b in _stretches(windows)
                ]
            )
        )

    def ahead(
        self,
        start: int,
        stop: int,
        n: int,
        seed: int,
        epoch: int,
        *,
        begin: bool = False,
        own: Runs | None = None,
    ) -> Runs:
        """Return the blocks of each window one window before it is needed; at the beginning, of the first two.

        Window after window, each in the order of the file. All ranks get the same: each of them reads from all blocks.
        None where windows are single blocks, which are asked for when they are read. Where a global batch is of many windows, of which
        a rank reads a few rows, these are the rows that `own` has one interval later.
        """
        if start == stop:
            return one_run(0, 0)
        if own is not None and self.alone(own.total, stop - start, n):
            return self.place(one_later(own, stop - start, n), n, seed, epoch)
        if self.whole:
            return _WholeBlocks.of(self, n, seed, epoch).ahead(start, stop, begin=begin)
        cut = self._cut(n)
        first = cut.window(start) if begin or not start else cut.window(start - 1) + 2
        last = min(cut.window(stop - 1) + 2, cut.windows)
        if first >= last:
            return one_run(0, 0)
        parts = [_window(cut, number, seed, epoch) for number in range(first, last)]
        starts = np.concatenate([np.sort(part.blocks) for part in parts])
        lengths = np.full(len(starts), cut.block)
        if last == cut.windows and n % cut.block:
            lengths[starts == parts[-1].blocks[-1]] = n % cut.block
        return on_ring(starts, lengths, n, 0)

    def record(self) -> dict[str, Any]:
        """Return the name, and the rows of a window and of a block."""
        lengths = {"name": self.name, "window": self.window, "block": self.block}
        return lengths | ({"whole": True} if self.whole else {})

    def resumed(self, record: Mapping[str, Any]) -> Blocks:
        """Return the order with the recorded lengths. Raises UsageError for the record of another order."""
        lengths = recorded(record, self.name, "window", "block")
        return Blocks(**lengths, whole=record.get("whole") is True)

    @property
    def mixed_blocks(self) -> int:
        """Blocks of which a batch needs rows at once, at most: what a reader that decodes them keeps; 0 where they come one by one."""
        assert isinstance(self.window, int)  # by bind, like the next
        assert self.block is not None
        return -(-self.window // self.block) if self.whole and self.window > self.block else 0

    def alone(self, own: int, interval: int, n: int) -> bool:
        """Return True if so many rows of a rank are few of those that all ranks read next, and of few of their windows."""
        if self.whole and not self.mixed_blocks:
            return False
        cut = self._cut(n, least=1 if self.whole else 2)
        return WIDE_RANKS * own < interval and interval >= WIDE_WINDOWS * cut.each * cut.block

    def _cut(self, n: int, least: int = 2) -> WindowCut:
        assert isinstance(self.window, int)  # by bind, like the next
        assert self.block is not None
        block = min(self.block, n)
        blocks = -(-n // block)
        windows = max(1, blocks // max(least, -(-self.window // block)))
        return WindowCut(n, block, windows, *divmod(blocks, windows))


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

    def place(self, positions: Runs, n: int, seed: int, epoch: int) -> Runs:
        """Return the permuted positions."""
        if not len(positions.starts):
            return positions
        return consecutive(self.rows_at(positions.rows(), n, seed, epoch))

    def rows_at(self, positions: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the row at each of some scattered positions, int64 [k]."""
        return randomness.permute(positions, n, order_key(seed, epoch, self.name))


BY_NAME: dict[str, Callable[[], RowOrder]] = {
    "sequential": Sequential,
    "slices": Slices,
    "blocks": Blocks,
    "rows": Rows,
    "regions": Regions,
}
"""The orders that need nothing but their name."""


class _Window(NamedTuple):
    """start: its first position; rows: in it; key: of its permutation; blocks: int64, the first row of each block in it."""

    start: int
    rows: int
    key: int
    blocks: NDArray[np.int64]


@lru_cache(maxsize=16)
def _window(cut: WindowCut, number: int, seed: int, epoch: int) -> _Window:
    """Return a window; kept, since it costs as much as placing 256 rows and serves thousands."""
    key = order_key(seed, epoch, "blocks")
    first, last = cut.slots(number)
    whole = cut.n // cut.block  # blocks; a shorter one behind them stays the last
    numbers = np.arange(first, last)
    full = min(last, whole) - first
    numbers[:full] = randomness.permute(numbers[:full], whole, key)
    start = first * cut.block
    rows = min(cut.n, last * cut.block) - start
    return _Window(
        start,
        rows,
        randomness.key(seed, epoch, "blocks", number),
        (numbers * cut.block + key % cut.n) % cut.n,
    )


def _mixed(
    cut: WindowCut, number: int, seed: int, epoch: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the rows at positions that lie in one window, int64 [k]."""
    window = _window(cut, number, seed, epoch)
    places = randomness.permute(positions - window.start, window.rows, window.key)
    slots = places // cut.block  # np.divmod takes three times as long
    inside = window.blocks[slots]
    inside += places
    slots *= cut.block
    inside -= slots
    return np.subtract(inside, cut.n, out=inside, where=inside >= cut.n)  # the ring closes


def _mixed_in_pieces(
    cut: WindowCut, number: int, seed: int, epoch: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return what `_mixed` returns, in arrays that stay in the processor's cache."""
    if len(positions) <= _PIECE_ROWS:
        return _mixed(cut, number, seed, epoch, positions)
    rows = np.empty(len(positions), np.int64)
    for k in range(0, len(positions), _PIECE_ROWS):
        rows[k : k + _PIECE_ROWS] = _mixed(cut, number, seed, epoch, positions[k : k + _PIECE_ROWS])
    return rows


def _stretches(windows: NDArray[np.int64]) -> itertools.pairwise[tuple[int, int]]:
    """[first, last + 1) of the places of an array between which its numbers stay the same."""
    return itertools.pairwise([0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(windows)])


@dataclass(frozen=True)
class _WholeBlocks:
    """The blocks of an epoch that are never cut elsewhere than the pack's are; the last of them may be shorter.

    Places are positions counted as if that block was as long as the others, and stood at the end of its window.
    cut: of places. single: windows are one block each, which is not mixed. missing: rows that the shorter block lacks; short: the
    window it is in, and edge: where its rows end.
    """

    cut: WindowCut
    single: bool
    missing: int
    short: int
    edge: int
    seed: int
    epoch: int

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, order: Blocks, n: int, seed: int, epoch: int) -> _WholeBlocks:
        """Return the blocks of an order, bound."""
        cut = order._cut(n, least=1)
        blocks = -(-n // cut.block)
        missing = blocks * cut.block - n
        last = randomness.unpermute(np.array([blocks - 1]), blocks, order_key(seed, epoch, "whole"))
        short = cut.window(int(last[0]) * cut.block)
        edge = cut.slots(short)[1] * cut.block - missing
        single = order.mixed_blocks == 0 and blocks > 1
        return cls(cut._replace(n=blocks * cut.block), single, missing, short, edge, seed, epoch)

    def rows(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row at each position, int64 [k]."""
        cut = self.cut
        places = np.where(positions < self.edge, positions, positions + self.missing)
        if self.single:
            slots, count = places // cut.block, cut.n // cut.block
            permuted = randomness.permute(slots, count, order_key(self.seed, self.epoch, "whole"))
            rows: NDArray[np.int64] = permuted * cut.block + (places - slots * cut.block)
            return rows
        windows = cut.windows_of(places)
        return np.concatenate([self._mixed(int(windows[a]), places[a:b]) for a, b in _stretches(windows)])

    def ahead(self, start: int, stop: int, *, begin: bool) -> Runs:
        """See Blocks."""
        cut = self.cut
        if self.single:
            return one_run(0, 0)
        first, last = (
            cut.window(position + (position >= self.edge) * self.missing)
            for position in (start if begin or not start else start - 1, stop - 1)
        )
        first, last = first if begin or not start else first + 2, min(last + 2, cut.windows)
        if first >= last:
            return one_run(0, 0)
        starts = np.concatenate([np.sort(self._blocks(number)) for number in range(first, last)])
        lengths = np.full(len(starts), cut.block)
        lengths[starts == cut.n - cut.block] -= self.missing
        return Runs(starts, lengths)

    def _blocks(self, window: int) -> NDArray[np.int64]:
        """Return the first row of each block of a window, int64 [k]; the shorter one at the end."""
        count = self.cut.n // self.cut.block
        numbers = randomness.permute(
            np.arange(*self.cut.slots(window)), count, order_key(self.seed, self.epoch, "whole")
        )
        if window == self.short:
            numbers = np.append(numbers[numbers != count - 1], count - 1)
        return numbers * self.cut.block

    def _mixed(self, window: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows at places that lie in one window, int64 [k]."""
        first, last = self.cut.slots(window)
        rows = (last - first) * self.cut.block - (self.missing if window == self.short else 0)
        key = randomness.key(self.seed, self.epoch, "whole", window)
        mixed = randomness.permute(places - first * self.cut.block, rows, key)
        slots = mixed // self.cut.block
        found: NDArray[np.int64] = self._blocks(window)[slots] + (mixed - slots * self.cut.block)
        return found


def _byte_size(subject: str, text: str) -> int:
    """Return the bytes of a size such as "256MB". Raise UsageError for what is none."""
    nbytes = as_bytes(text, unit=True)
    if nbytes is None:
        raise UsageError(
            f"{subject}: is {text!r}; a number and a unit are allowed. Pass for example '256MB'."
        )
    return nbytes
