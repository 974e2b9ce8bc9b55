"""The order for packs that lie elsewhere, on an object store: each rank reads the same part of the pack in every epoch.

A pack is cut into regions, runs of rows. Every global batch holds equally many rows of each, region after region, so that a rank,
which reads a run of each batch, reads the same regions for ever: what its node has fetched once it finds in its cache again, and a
node needs room for its share of the pack only. Within a region, stretches of rows that are fetched whole come in a random order, and
rows are mixed in a window of some stretches, as "blocks" does it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.orders.block_windows import BlockEpoch, WindowCut, all_runs
from packer.orders.epochs import Context, Reach, RowOrder, order_key
from packer.orders.runs import Runs, one_run

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
class Regions(RowOrder):
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

    >>> order = Regions(regions=2, window=2, block=2, batch=4)
    >>> order.place(one_run(0, 16), n=16, seed=0, epoch=0).rows().reshape(4, 4).tolist()
    [[7, 5, 12, 15], [6, 4, 13, 14], [1, 0, 10, 9], [3, 2, 8, 11]]
    """

    regions: int | None = None
    window: int | None = None
    block: int | None = None
    batch: int | None = None
    name: ClassVar[str] = "regions"
    lengths: ClassVar[tuple[str, ...]] = ("regions", "window", "block", "batch")
    looks_ahead: ClassVar[bool] = True

    def bind(self, about: Context) -> Regions:
        """Return the order with all its lengths."""
        batch = self.batch or about.global_batch
        rows = max(1, STRETCH_BYTES // max(1, about.row_bytes))
        block = self.block or max(1, rows // about.block_rows) * about.block_rows
        window = self.window or (CODED_WINDOW if about.coded else WINDOW if about.shuffled else SORTED_WINDOW)
        if self.regions is not None:
            return Regions(_divisor(batch, self.regions, 1), window, block, batch)
        most = max(REGIONS[0], min(REGIONS[1], round(batch / BATCH_ROWS)))
        regions = max(1, min(round(about.share * most), about.n // (LEAST_STRETCHES * block)))
        return Regions(_divisor(batch, regions, _NEAR), window, block, batch)

    def rows_at(self, positions: NDArray[np.int64], n: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the rows that the regions' windows put at the positions."""
        regions, draws = _region_cut(self, n).dealt(positions)
        every, rows = _region_epoch(self, n, seed, epoch), np.empty(len(positions), np.int64)
        for region in np.unique(regions).tolist():
            own = np.flatnonzero(regions == region)
            rows[own] = every[region].rows(draws[own])
        return rows

    def ahead(self, reach: Reach, n: int, seed: int, epoch: int) -> Runs:
        """Return the stretches of each window one window before it is needed, at the beginning of the first two; of `own`'s regions."""
        if reach.start == reach.stop:
            return one_run(0, 0)
        cut = _region_cut(self, n)
        most = int(cut.sizes.max()) - 1
        first, last = (min(at // cut.batch * cut.each, most) for at in (reach.first, reach.stop - 1))
        last = min(last + cut.each - 1, most)
        every = _region_epoch(self, n, seed, epoch)
        regions = cut.of_positions(reach.own).tolist()
        return all_runs([runs for k in regions for runs in every[k].ahead(first, last, begin=reach.begins)])

    def mixed_rows(self, ranks: int) -> int:
        """See RowOrder: those of its own regions."""
        regions, window, block, _ = self.bound
        return -(-regions * window * block // ranks)


def _divisor(batch: int, number: int, near: float) -> int:
    """Return the divisor of a batch nearest to a number; of those within a factor the one with most divisors, for many numbers of ranks."""
    small = [k for k in range(1, math.isqrt(batch) + 1) if batch % k == 0]
    every = {*small, *(batch // k for k in small)}

    def fitness(divisor: int) -> tuple[bool, int, float]:
        apart = abs(math.log(divisor / number))
        close = apart <= math.log(near)
        return not close, -sum(divisor % k == 0 for k in range(1, divisor + 1)) if close else 0, apart

    return min(every, key=fitness)


class _RegionCut(NamedTuple):
    """A division of n rows into regions, by what they give to the global batches.

    batch: rows of one; each: of them from a region. batches: whole ones of an epoch; rest: rows of the last, shorter one, which
    regions share as evenly. starts, sizes: of the regions.
    """

    batch: int
    each: int
    batches: int
    rest: int
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def dealt(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the region that each position is dealt to, and which of its rows this is."""
        numbers = positions // self.batch
        inside = positions - numbers * self.batch
        regions = inside // self.each
        draws = numbers * self.each + inside - regions * self.each
        if self.rest and int(positions.max()) >= self.batches * self.batch:
            short = np.flatnonzero(numbers == self.batches)
            inside, count = inside[short], len(self.sizes)
            regions[short] = own = ((inside + 1) * count - 1) // self.rest
            draws[short] = self.batches * self.each + inside - own * self.rest // count
        return regions, draws

    def of_positions(self, positions: Runs | None) -> NDArray[np.int64]:
        """Return the regions that runs of positions in whole batches are dealt to; None: all."""
        count = len(self.sizes)
        if positions is None or not len(positions.starts) or int(positions.lengths.max()) >= self.batch:
            return np.arange(count)
        firsts = positions.starts % self.batch // self.each
        stops = (positions.starts + positions.lengths - 1) % self.batch // self.each
        found = np.zeros(count, bool)
        for first, last in {*zip(firsts.tolist(), stops.tolist(), strict=True)}:
            if first <= last:
                found[first : last + 1] = True
            else:
                found[first:] = found[: last + 1] = True
        return np.flatnonzero(found)


@lru_cache(maxsize=16)
def _region_cut(order: Regions, n: int) -> _RegionCut:
    """Return the regions of an order, bound."""
    regions, _, _, batch = order.bound
    each = batch // regions
    batches, rest = divmod(n, batch)
    edges = np.arange(regions + 1) * rest // regions
    sizes = batches * each + np.diff(edges)
    starts = np.arange(regions) * (batches * each) + edges[:-1]
    return _RegionCut(batch, each, batches, rest, starts, sizes)


@lru_cache(maxsize=8)
def _region_epoch(order: Regions, n: int, seed: int, epoch: int) -> list[BlockEpoch]:
    """Return an epoch of each region of an order, bound; kept, since they cost as much as placing some batches."""
    _, window, block, _ = order.bound
    regions, key = _region_cut(order, n), order_key(seed, epoch, order.name)
    cut, found = WindowCut.of(max(1, int(regions.sizes.max())), block, window), []
    for number, (start, size) in enumerate(zip(regions.starts.tolist(), regions.sizes.tolist(), strict=True)):
        own = randomness.key(key, number)
        found.append(BlockEpoch(start, size, cut, own, (key, "window"), own >> 2))
    return found
