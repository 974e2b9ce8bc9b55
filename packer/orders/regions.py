"""The order "regions", for packs in object stores: each rank reads the same part of the pack in every epoch.

A pack is cut into regions, runs of rows. Every global batch holds equally many rows of each, region after
region. A rank reads a run of each batch, hence always the same regions: its node has them in its cache after
the first epoch, and needs room for only its share of the pack. Within a region, stretches of rows are fetched
as units in a random order, and rows are mixed in a window of some stretches, as in the order "blocks".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from packer.declared_types import checked_class
from packer.orders.blocks import Blocks
from packer.orders.epochs import Context
from packer.orders.interleaving import Dealt, Interleaved, OrderPart
from packer.orders.runs import Subset

STRETCH_BYTES = 8 << 20
"""Approximate bytes per fetch: smaller ones cost more requests, larger ones delay the first batch."""
# One region for this many rows of a global batch, 8 to 64 regions: the first batches wait for all windows.
BATCH_ROWS = 32
REGIONS = 8, 64
LEAST_STRETCHES = 4  # per region: it shares the stretches at its ends with others
_NEAR = 1.5
# Stretches of a window. In a sorted pack (400,000 photos, 100 classes, batches of 2,048, 64 regions) the
# class counts of batches vary 2.5 times as much as in a uniform shuffle with 8, and as much with 32.
WINDOW, SORTED_WINDOW = 8, 32
CODED_WINDOW = 1  # for rows compressed in blocks: "blocks" decodes and caches as many at once


@checked_class
@dataclass(frozen=True)
class Regions(Interleaved):
    """Equally many rows of each region of the pack in every global batch; a rank reads only its own regions.

    For packs on object stores and slow network disks: a node with a cache for its share of the pack downloads
    everything once, in the first epoch. All other orders read the full pack on every node. Rows meet others
    of their region within a window of stretches, and rows of other regions without limits, so batches are
    still well mixed.

    A rank keeps its regions as long as the global batch does not change (the sequence is the same on any
    number of ranks); the ranks should divide the number of regions.

    Parameters
    ----------
    regions : int, optional
        Number of regions: rounded to the nearest divisor of the global batch. Default: one for 32 rows of the
        batch, 8 to 64, and fewer if regions would be shorter than four stretches.
    window : int, optional
        Stretches of a region whose rows are mixed. Default: 8; for a pack that was converted without
        shuffling 32; for a compressed pack 1.
    block : int, optional
        Rows of a stretch; default: full blocks of the pack, of about 8 MiB.
    batch : int, optional
        Rows of a global batch.

    Examples
    --------
    Two regions, with two rows each in every batch of four:

    >>> from packer.orders.runs import one_run
    >>> order = Regions(regions=2, window=2, block=2, batch=4).over(16)
    >>> order.within(one_run(0, 16), epoch=0).rows().reshape(4, 4).tolist()
    [[4, 3, 13, 15], [5, 2, 12, 14], [1, 0, 11, 8], [7, 6, 9, 10]]

    Two ranks read eight rows each, those of a single region:

    >>> from packer.orders.epochs import Share
    >>> read = [Share(16, 2, 2, rank).positions(0, 4) for rank in (0, 1)]
    >>> [sorted(order.within(positions, epoch=1).rows().tolist()) for positions in read]
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
        """Return the order bound to rows, cut into regions by their share of the global batches."""
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
        """See Interleaved: each global batch in equal parts; a shorter batch too, up to a row."""
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
        """See RowOrder: the rows of its own regions."""
        return -(-super().mixed_rows(1) // ranks)


def _divisor(batch: int, number: int, near: float) -> int:
    """Return a divisor of a batch near a number: within a factor, the one that most rank counts divide."""
    small = [k for k in range(1, math.isqrt(batch) + 1) if batch % k == 0]
    every = {*small, *(batch // k for k in small)}

    def fitness(divisor: int) -> tuple[bool, int, float]:
        apart = abs(math.log(divisor / number))
        close = apart <= math.log(near)
        return not close, -sum(divisor % k == 0 for k in range(1, divisor + 1)) if close else 0, apart

    return min(every, key=fitness)
