"""The order for packs that lie elsewhere, on an object store: each rank reads the same part of the pack in every epoch.

A pack is cut into regions, runs of rows. Every global batch holds equally many rows of each, region after region, so that a rank,
which reads a run of each batch, reads the same regions for ever: what its node has fetched once it finds in its cache again, and a
node needs room for its share of the pack only. Within a region, stretches of rows that are fetched whole come in a random order, and
rows are mixed in a window of some stretches, as "blocks" does it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.orders.epochs import Context, RowOrder, order_key, recorded, whole_number
from packer.orders.runs import Runs, consecutive, on_ring, one_run
from packer.orders.window_cut import WindowCut

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
    looks_ahead: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, remedy in (
            ("regions", "Pass how many there shall be, about."),
            ("window", "Pass the stretches of a region that are mixed."),
            ("block", "Pass the rows that are fetched together."),
            ("batch", "Pass the global batch size."),
        ):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole_number(f"Regions: {name}", value, remedy))

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

    def place(self, positions: Runs, n: int, seed: int, epoch: int) -> Runs:
        """Return the rows that the regions' windows put at the positions."""
        if not len(positions.starts):
            return positions
        cut = _RegionCut.of(self, n)
        regions, draws = cut.dealt(positions.rows())
        return consecutive(_RegionEpoch.of(self, n, seed, epoch).rows(regions, draws))

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
        """Return the stretches of each window one window before it is needed, at the beginning of the first two; of `own`'s regions."""
        if start == stop:
            return one_run(0, 0)
        cut = _RegionCut.of(self, n)
        ends = np.array([max(start - 1, 0), stop - 1])
        first, last = np.minimum(ends // cut.batch * cut.each, cut.sizes.max() - 1)
        last = min(last + cut.each - 1, cut.sizes.max() - 1)
        return _RegionEpoch.of(self, n, seed, epoch).ahead(
            cut.of_positions(own), int(first), int(last), begin=begin or not start
        )

    def record(self) -> dict[str, Any]:
        """Return the name, and all lengths."""
        return {
            "name": self.name,
            "regions": self.regions,
            "window": self.window,
            "block": self.block,
            "batch": self.batch,
        }

    @property
    def mixed_rows(self) -> int:
        """Rows of the stretches from which a global batch is drawn."""
        assert self.regions is not None  # by bind, like the next
        assert self.window is not None
        assert self.block is not None
        return self.regions * self.window * self.block

    def resumed(self, record: Mapping[str, Any]) -> Regions:
        """Return the order with the recorded lengths. Raises UsageError for the record of another order."""
        return Regions(**recorded(record, self.name, "regions", "window", "block", "batch"))


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
    regions share as evenly. starts, sizes: of the regions, int64 [regions]. lead: rows of each before its first whole stretch.
    blocks: stretches of a region, the last of them shorter by `missing` (0 to a whole one), int64 [regions]. places: windows of them.
    """

    batch: int
    each: int
    batches: int
    rest: int
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    lead: NDArray[np.int64]
    missing: NDArray[np.int64]
    places: WindowCut

    @classmethod
    def of(cls, order: Regions, n: int) -> _RegionCut:
        """Return the regions of an order, bound."""
        return _region_cut(order, n)

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
    assert order.regions is not None  # by bind, like the next
    assert order.batch is not None
    assert order.block is not None
    assert order.window is not None
    each = order.batch // order.regions
    batches, rest = divmod(n, order.batch)
    edges = np.arange(order.regions + 1) * rest // order.regions
    sizes = batches * each + np.diff(edges)
    starts = np.arange(order.regions) * (batches * each) + edges[:-1]
    block = min(order.block, max(1, int(sizes.max())))
    blocks = max(1, -(-int(sizes.max()) // block))
    windows = max(1, blocks // min(order.window, blocks))
    places = WindowCut(blocks * block, block, windows, *divmod(blocks, windows))
    lead = np.minimum(-starts % block, np.maximum(sizes - 1, 0))
    return _RegionCut(order.batch, each, batches, rest, starts, sizes, lead, blocks * block - sizes, places)


class _RegionEpoch:
    """The rows of an epoch by region and number.

    Rows of a region form a ring that begins at its first whole stretch; its shorter stretch is the last one, and stands at the end of the
    window that it is drawn into. A row's place is counted as if that stretch was as long as the others.
    """

    def __init__(self, order: Regions, n: int, seed: int, epoch: int) -> None:
        self._cut = cut = _RegionCut.of(order, n)
        self._key = order_key(seed, epoch, order.name)
        count, block = len(cut.sizes), cut.places.block
        self._blocks = cut.places.n // block
        self._keys = [randomness.key(self._key, number) for number in range(count)]
        # Where each region begins in the permutation of a window, which they share.
        self._turns = np.array([key >> 2 for key in self._keys], np.int64)
        last = np.array([self._blocks - 1])
        slots = [int(randomness.unpermute(last, self._blocks, key)[0]) for key in self._keys]
        self._short = cut.places.windows_of(np.array(slots) * block)  # the window of the shorter stretch
        ends = np.array([cut.places.slots(int(window))[1] for window in self._short])
        self._edges = ends * block - cut.missing
        # By window: rows, and the regions whose rows are there.
        self._tables: dict[int, tuple[NDArray[np.int64], NDArray[np.bool_]]] = {}

    @staticmethod
    @lru_cache(maxsize=8)
    def of(order: Regions, n: int, seed: int, epoch: int) -> _RegionEpoch:
        """Return an epoch of an order, bound; kept, since it costs as much as placing some batches."""
        return _RegionEpoch(order, n, seed, epoch)

    def rows(self, regions: NDArray[np.int64], draws: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return rows by region and number there, int64 [k], at least one."""
        cut, block = self._cut, self._cut.places.block
        places = draws + cut.missing[regions] * (draws >= self._edges[regions])
        windows = cut.places.windows_of(places)
        lengths = cut.missing[regions] * (self._short[regions] == windows)  # what the window lacks
        rows = np.empty(len(regions), np.int64)
        groups = windows * (block + 1) + lengths
        for group in [groups[0]] if (groups == groups[0]).all() else np.unique(groups):
            own = np.flatnonzero(groups == group)
            window, lacking = divmod(int(group), block + 1)
            first, last = cut.places.slots(window)
            length, some = (last - first) * block - lacking, regions[own]
            turned = (places[own] - first * block + self._turns[some]) % length
            mixed = randomness.permute(turned, length, randomness.key(self._key, "window", window))
            slots = mixed // block
            rows[own] = self._table(window, some)[some, slots] + (mixed - slots * block)
        rows += cut.lead[regions]
        rows -= cut.sizes[regions] * (rows >= cut.sizes[regions])
        rows += cut.starts[regions]
        return rows

    def ahead(self, regions: NDArray[np.int64], first: int, last: int, *, begin: bool) -> Runs:
        """Return the stretches of regions that come after rows first..last of each, see Regions.ahead."""
        cut, found = self._cut, [one_run(0, 0)]
        edges, missing = self._edges[regions], cut.missing[regions]
        lows = cut.places.windows_of(first + missing * (first >= edges)) + (0 if begin else 2)
        highs = np.minimum(cut.places.windows_of(last + missing * (last >= edges)) + 2, cut.places.windows)
        for region, low, high in zip(regions.tolist(), lows.tolist(), highs.tolist(), strict=True):
            size, lead = int(cut.sizes[region]), int(cut.lead[region])
            for window in range(low, high):
                starts = np.sort(self._table(window, np.array([region]))[region])
                lengths = np.minimum(cut.places.block, size - starts)
                runs = on_ring(starts[lengths > 0], lengths[lengths > 0], size, lead) if size else found[0]
                found.append(Runs(runs.starts + cut.starts[region], runs.lengths))
        return Runs(*map(np.concatenate, zip(*found, strict=True)))

    def _table(self, window: int, regions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first row of each stretch of a window in these regions, counted on its ring: int64 [all regions, slots].

        Others may not be filled in: a rank reads few of thousands.
        """
        slots = np.arange(*self._cut.places.slots(window))
        kept = self._tables.get(window)
        if kept is None:
            kept = np.empty((len(self._keys), len(slots)), np.int64), np.zeros(len(self._keys), bool)
            if len(self._tables) >= _TABLES:
                self._tables.clear()
            self._tables[window] = kept
        table, known = kept
        if not known[regions].all():
            for region in np.unique(regions[~known[regions]]).tolist():
                own = randomness.permute(slots, self._blocks, self._keys[region])
                if self._short[region] == window:
                    own = np.append(own[own != self._blocks - 1], self._blocks - 1)
                table[region] = own * self._cut.places.block
                known[region] = True
        return table


_TABLES = 16  # windows whose stretches are kept
