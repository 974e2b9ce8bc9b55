"""The order for packs that lie elsewhere, on an object store: each rank reads the same part of the pack in every epoch.

A pack is cut into regions, runs of rows. Every global batch holds equally many rows of each, region after region, so that a rank,
which reads a run of each batch, reads the same regions for ever: what its node has fetched once it finds in its cache again, and a
node needs room for its share of the pack only. Within a region, stretches of rows that are fetched whole come in a random order, and
rows are mixed in a window of some stretches: that is the order "blocks".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from packer.orders.blocks import Blocks
from packer.orders.epochs import Context
from packer.orders.interleaving import Dealt, Interleaved, OrderPart
from packer.orders.runs import Subset

STRETCH_BYTES = 8 << 20
"""Bytes, about, that are fetched at once: fewer cost more requests, more wait longer."""
# A region for so many rows of a global batch, 8 to 64 of them: the windows of all regions together are what the first batches wait for.
BATCH_ROWS = 32
REGIONS = 8, 64
LEAST_STRETCHES = 4  # of a region: the stretches at its ends are another's too
_NEAR = 1.5
# Stretches of a window. Of a sorted pack (400,000 photos, 100 classes, batches of 2,048, 64 regions) the class counts of batches vary
# 2.5 times as much as in a uniform shuffle with 8, and as much with 32.
WINDOW, SORTED_WINDOW = 8, 32
CODED_WINDOW = 1  # of rows compressed in blocks: as many blocks are decoded at once as "blocks" keeps


@dataclass(frozen=True)
class Regions(Interleaved):
    """Equally many rows of each of some regions of the pack in every global batch; a rank reads its own regions only.

    For packs on object stores and slow network disks: with a cache of its share of the pack a node fetches everything once, in
    the first epoch. All other orders read the whole pack on every node. Rows meet others of their region within a window of stretches, and
    rows of the other regions without bounds, so batches are well mixed all the same.

    It holds for as long as the global batch is what it was when training began (the sequence is the same on any number of
    ranks), and best if the ranks divide the number of regions.

    Parameters
    ----------
    regions : int, optional
        How many: the nearest number by which the global batch can be divided; default: one for 32 rows of the batch, 8 to 64, and fewer
        where regions would be shorter than four stretches.
    window : int, optional
        Stretches of a region whose rows are mixed; default: 8, for a pack that was not shuffled when it was made 32, for a compressed
        one 1.
    block : int, optional
        Rows of a stretch; default: whole blocks of the pack, of about 8 MiB.
    batch : int, optional
        Rows of a global batch.

    Examples
    --------
    Two regions, which give two rows to each batch of four:

    >>> from packer.orders.runs import one_run
    >>> order = Regions(regions=2, window=2, block=2, batch=4).over(16)
    >>> order.within(one_run(0, 16), epoch=0).rows().reshape(4, 4).tolist()
    [[4, 3, 13, 15], [5, 2, 12, 14], [1, 0, 11, 8], [7, 6, 9, 10]]

    Two ranks read eight rows each, those of one region:

    >>> from packer.orders.epochs import Share
    >>> [sorted(order.within(Share(16, 2, 2, rank).positions(0, 4), epoch=1).rows().tolist()) for rank in (0, 1)]
    [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]]
    """

    regions: int | None = None
    window: int | None = None
    block: int | None = None
    batch: int | None = None
    name: ClassVar[str] = "regions"
    lengths: ClassVar[tuple[str, ...]] = ("regions", "window", "block", "batch")

    def bind(self, about: Context) -> Regions:
        """Return the order with all its lengths."""
        batch = self.batch or about.global_batch
        rows = max(1, STRETCH_BYTES // max(1, about.row_bytes))
        block = self.block or max(1, rows // about.block_rows) * about.block_rows
        window = self.window or (CODED_WINDOW if about.coded else WINDOW if about.shuffled else SORTED_WINDOW)
        if self.regions is not None:
            regions = _divisor(batch, self.regions, 1)
        else:
            most = max(REGIONS[0], min(REGIONS[1], round(batch / BATCH_ROWS)))
            regions = min(round(about.share * most), about.subset.rows // (LEAST_STRETCHES * block))
            regions = _divisor(batch, max(1, regions), _NEAR)
        return Regions(regions, window, block, batch).over(about.subset, about.seed)

    def over(self, rows: int | Subset, seed: int = 0) -> Regions:
        """Return the order bound to rows, which are cut into regions by what these give to the global batches."""
        regions, window, block, batch = self.bound
        parts, begin = [], 0
        batches, rest = divmod(rows if isinstance(rows, int) else rows.rows, batch)
        for region in range(1, regions + 1):
            end = batches * (batch // regions) * region + rest * region // regions
            order = Blocks(window * block, block).in_region(begin)
            parts.append(OrderPart(order.over(Subset([(begin, end)])), end - begin))
            begin = end
        return Interleaved.over(self.having(parts=tuple(parts)), rows, seed)

    def deal(self, positions: NDArray[np.int64], epoch: int) -> Iterator[Dealt]:
        """See Interleaved: each global batch in equal parts; so a shorter one, but for a row."""
        count, _, _, batch = self.bound
        numbers = positions // batch
        firsts = numbers * batch
        inside, sizes = positions - firsts, np.minimum(self.length - firsts, batch)
        regions = ((inside + 1) * count - 1) // sizes
        draws = numbers * (batch // count) + inside - regions * sizes // count
        where = np.argsort(regions, kind="stable")
        regions, draws = regions[where], draws[where]
        bounds = [0, *(np.flatnonzero(regions[1:] != regions[:-1]) + 1).tolist(), len(where)]
        for begin, end in pairwise(bounds):
            yield int(regions[begin]), where[begin:end], draws[begin:end]

    def mixed_rows(self, ranks: int) -> int:
        """See RowOrder: those of its own regions."""
        return -(-super().mixed_rows(1) // ranks)


def _divisor(batch: int, number: int, near: float) -> int:
    """Return the divisor of a batch nearest to a number; of those within a factor the one with most divisors, for many numbers of ranks."""
    small = [k for k in range(1, math.isqrt(batch) + 1) if batch % k == 0]
    every = {*small, *(batch // k for k in small)}

    def fitness(divisor: int) -> tuple[bool, int, float]:
        apart = abs(math.log(divisor / number))
        close = apart <= math.log(near)
        return not close, -sum(divisor % k == 0 for k in range(1, divisor + 1)) if close else 0, apart

    return min(every, key=fitness)
