"""Orders: which rows stand where in an epoch; the order that an argument means, and which one to take where none is named.

Blocks is in `block_orders.py`, sampling with repetitions in `sampling.py`. The sequences are frozen: a resumed epoch depends on
them, and the tests hold golden values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from packer import randomness, units
from packer.errors import UsageError
from packer.orders.block_orders import WINDOW_BYTES, Blocks
from packer.orders.epochs import Context, RowOrder, order_key, recorded, whole_number
from packer.orders.runs import Runs, consecutive, on_ring, one_run

AUTO = "auto"
# Smaller rows are read in runs. Of rows read one by one from a cold disk came 0.1 of what runs of 1 MiB gave at 4 KiB, 0.7 at
# 16 KiB and all of it at 64 KiB (4 threads, a virtual disk); and in memory a row of 112 bytes costs more to find than to copy.
SMALL_BYTES = 16 << 10
# A table above this is not expected in memory where it is read anew each epoch.
LARGE_BYTES = 1 << 30
# Blocks of a window for each row of a batch, where a block holds one class: the class counts of batches vary 1 + 1 / 32 times as much
# as in a uniform shuffle.
MIXING_BLOCKS = 32
# Of the memory at hand: the rest is for batches, the model and the epochs' other reads.
CACHED_SHARE = 0.7


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
        return consecutive(randomness.permute(positions.rows(), n, order_key(seed, epoch, self.name)))


BY_NAME: dict[str, Callable[[], RowOrder]] = {
    "sequential": Sequential,
    "slices": Slices,
    "blocks": Blocks,
    "rows": Rows,
}
"""The orders that need nothing but their name."""


def parse(order: str | RowOrder | None, shuffle: bool, about: Context) -> tuple[RowOrder, str]:
    """Return the order that the arguments of a dataset mean, bound, and a sentence that says why if it was chosen here, else "".

    order: a name, "auto", an order, or None: "sequential", or with shuffle what the pack alone decides (`shuffled`).
    Raises UsageError for an unknown name, or shuffle=True with "sequential".
    """
    if order is None:
        return (shuffled(about) if shuffle else Sequential()).bind(about), ""
    if order == AUTO:
        chosen, why = choose(about)
        return chosen.bind(about), why
    if isinstance(order, str) and order in BY_NAME:
        order = BY_NAME[order]()
    if isinstance(order, type) or not isinstance(order, RowOrder):
        raise UsageError(
            f"order={order!r}: is not one of {', '.join(map(repr, (*BY_NAME, AUTO)))}. Pass one of them,"
            " or an order such as packer.Blocks(window='1GB')."
        )
    if shuffle and order.fixed:
        raise UsageError(
            f"shuffle=True with order={order.name!r}: they contradict each other. Pass one of them."
        )
    return order.bind(about), ""


def resume(bound: RowOrder, record: Mapping[str, Any], *, chosen: bool) -> RowOrder:
    """Return the order to go on with after a state was loaded.

    bound: this dataset's. record: of the state's order. chosen: whether bound was chosen here, by order="auto" or by shuffle
    without an order: then any order that is chosen so is taken from the state, since another machine may choose another.
    Raises UsageError if the state has an order that this dataset cannot have.
    """
    name = record.get("name") if isinstance(record, Mapping) else None
    if chosen and isinstance(name, str) and name in BY_NAME and not BY_NAME[name]().fixed:
        return BY_NAME[name]().resumed(record)
    return bound.resumed(record)


def shuffled(about: Context) -> RowOrder:
    """Return the order that shuffle=True means: as good as a uniform shuffle, on every machine the same, by the pack alone.

    A pack that was shuffled when it was made needs blocks: they read a disk as fast as slices, cost no more in memory, and
    batch-mates part each epoch, which those of a slice do not. Where rows are compressed, whole blocks, each decoded once.

    In any other pack neighbours are alike, often of one class, and a window would have to hold some twenty blocks for each row
    of a batch: that takes every row by itself. Small rows of a large pack are read from a disk in short runs then, in a
    window of as many as it takes.
    """
    if about.shuffled:
        return Blocks(whole=about.coded)
    if about.coded or about.row_bytes >= SMALL_BYTES or about.n * about.row_bytes <= LARGE_BYTES:
        return Rows()
    block = SMALL_BYTES // max(1, about.row_bytes)
    return Blocks(max(WINDOW_BYTES // about.row_bytes, MIXING_BLOCKS * about.global_batch * block), block)


def choose(about: Context) -> tuple[RowOrder, str]:
    """Return the best shuffle that rows can be read in at full speed, and a sentence that says why.

    "rows" where all stay in memory after the first epoch and are neither small nor compressed in blocks; else what
    shuffle=True means (`shuffled`). Depends on this machine's memory: a resumed epoch takes its order from the state.
    """
    nbytes, memory = units.size(about.n * about.row_bytes), units.size(about.memory_bytes)
    made = f"the pack was {'' if about.shuffled else 'not '}shuffled when it was made"
    rows = f"rows of {units.size(about.row_bytes)}"
    resident = about.medium == "memory" or about.n * about.row_bytes <= CACHED_SHARE * about.memory_bytes
    stay = f"{nbytes} stay in {memory} of memory" if about.memory_bytes else f"{nbytes} stay in memory"
    order = shuffled(about)
    if isinstance(order, Rows):
        why = f"{made}, so neighbours may be alike, and each row is drawn by itself"
    elif about.coded:
        why = f"rows are compressed in blocks of {about.block_rows:,}, which are decoded whole, and {made}"
    elif not resident:
        room = f"{memory} of memory" if about.memory_bytes else "an unknown amount of memory"
        source = "network file system" if about.medium == "network" else "disk"
        why = f"{nbytes} do not stay in {room}, so the {source} is read in long runs, and {made}"
    elif about.row_bytes >= SMALL_BYTES:
        order, why = Rows(), f"{stay}, where {rows} in any order cost no more than neighbours"
    else:
        why = f"{rows} come faster in runs than one by one, and {made}"
    return order, f"order={order.name!r}: {why}."
