"""Orders "sequential", "slices" and "rows"; others are in blocks, regions, buckets, sampling and mixture.py.

The sequences are frozen: a resumed epoch depends on them, and the tests hold golden values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.declared_types import checked_class
from packer.orders.blocks import Blocks
from packer.orders.epochs import Context, RowOrder, order_key
from packer.orders.regions import Regions
from packer.orders.runs import Runs, on_ring, one_run


@dataclass(frozen=True)
class Sequential(RowOrder):
    """Rows in stored order: the fastest read, one run a batch, and the same batches in every epoch.

    For evaluation and inference. In training the same neighbours would always share a batch, which "slices"
    avoids in part and "rows" in full.

    Examples
    --------
    >>> Sequential().over(12).within(one_run(2, 5), epoch=0).rows().tolist()
    [2, 3, 4]
    """

    name: ClassVar[str] = "sequential"
    by_run: ClassVar[bool] = True
    fixed: ClassVar[bool] = True

    def within(self, at: Runs, epoch: int) -> Runs:
        """Return the positions, which equal the rows."""
        return at


@checked_class
@dataclass(frozen=True)
class Slices(RowOrder):
    """Contiguous slices in a random order: reads like "sequential", shuffles a shuffled pack well.

    The rows form a ring, cut at a random place, then every `rows`; the slices are permuted, but a shorter
    slice comes last. So batches of that many rows start where slices start (one run a batch, two where the
    ring closes), every epoch cuts elsewhere, and dropping the last batch drops other rows each time.
    Neighbours in the pack meet in most
    epochs: to avoid that take "rows", which costs one read a row instead of one a batch.

    Parameters
    ----------
    rows : int, optional
        Rows of a slice, at least 1; default: the global batch.

    Examples
    --------
    >>> Slices(rows=4).over(12).within(one_run(0, 12), epoch=0).rows().tolist()
    [3, 4, 5, 6, 11, 0, 1, 2, 7, 8, 9, 10]
    """

    rows: int | None = None
    name: ClassVar[str] = "slices"
    lengths: ClassVar[tuple[str, ...]] = ("rows",)
    by_run: ClassVar[bool] = True

    def bind(self, about: Context) -> Slices:
        """Return the order with slices of a global batch, unless their rows were given."""
        return Slices(self.rows or about.global_batch).over(about.subset, about.seed)

    def within(self, at: Runs, epoch: int) -> Runs:
        """Return the slices, or parts of them, at the positions."""
        if not len(at.starts):
            return at
        n = self.length
        size = min(*self.bound, n)
        whole, key = n // size, order_key(self.seed, epoch, self.name)
        heads: Any  # places of the first slices of runs, and of the last, and their rows that are left out
        tails: Any
        skipped: Any
        left: Any
        if len(at.starts) == 1:
            begin, rows = int(at.starts[0]), int(at.lengths[0])
            number, inside = divmod(begin, size)
            if inside + rows <= size:  # a batch within one slice
                if number < whole:
                    number = int(randomness.permute(np.array([number]), whole, key)[0])
                row = (number * size + inside + key) % n
                if row + rows <= n:
                    return one_run(row, row + rows)
            numbers = np.arange(begin // size, (begin + rows - 1) // size + 1)
            heads, tails, skipped, left = 0, -1, inside, -(begin + rows) % size
        else:
            firsts, lasts = at.starts // size, (at.starts + at.lengths - 1) // size
            numbers = Runs(firsts, lasts - firsts + 1).rows()
            tails = np.cumsum(lasts - firsts + 1) - 1
            heads = tails - (lasts - firsts)
            skipped, left = at.starts - firsts * size, -(at.starts + at.lengths) % size
        lengths = np.full(len(numbers), size)
        lengths[heads] -= skipped
        lengths[tails] -= left
        full = numbers < whole
        if full.all():
            numbers = randomness.permute(numbers, whole, key)
        elif whole:
            numbers[full] = randomness.permute(numbers[full], whole, key)
        numbers *= size
        numbers[heads] += skipped
        return on_ring(numbers, lengths, n, key % n)


@dataclass(frozen=True)
class Rows(RowOrder):
    """A full permutation of the rows: the best shuffle, at one read a row.

    As fast as the others if rows are resident (RAM, page cache, GPU); from a cold disk "slices" reads several
    times faster. Computed position by position, so a billion rows need no memory.

    Examples
    --------
    >>> Rows().over(12).within(one_run(0, 12), epoch=0).rows().tolist()
    [10, 8, 2, 7, 6, 4, 0, 5, 3, 11, 1, 9]
    """

    name: ClassVar[str] = "rows"

    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """Return the permuted positions."""
        return randomness.permute(positions, self.length, order_key(self.seed, epoch, self.name))


def order_of_epoch(order: RowOrder, epoch: int) -> RowOrder:
    """Return the order of an epoch: in epoch 0 the stored order, if the order says so.

    >>> [order_of_epoch(Rows().over(3).having(stored_first=True), epoch).name for epoch in range(2)]
    ['sequential', 'rows']
    """
    return Sequential().over(order.subset, order.seed) if order.stored_first and epoch == 0 else order


BY_NAME: dict[str, Callable[[], RowOrder]] = {
    "sequential": Sequential,
    "slices": Slices,
    "blocks": Blocks,
    "rows": Rows,
    "regions": Regions,
}
"""Orders that need no arguments."""
