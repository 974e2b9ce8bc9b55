"""Simulated ranks of a cluster: their reads of a pack in an order, and a check that they read every row once.

Used by scale.py. Each node has NODE ranks, which take `batch` rows each of every global batch. No file is
read: orders are pure functions.
"""

from __future__ import annotations

import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.orders.epochs import RowOrder, Share
from packer.orders.runs import Runs, one_run

NODE = 8
WINDOW = 128  # most recent stretches that a rank without a cache keeps: 1 GiB
MARKED = 1 << 27  # rows up to which each row is marked as seen
_PIECE, _STEPS = 1 << 18, 300


@dataclass(frozen=True)
class Cluster:
    """Ranks, and a pack's layout: shards of shard_rows in stretches of stretch_rows, the units of a fetch."""

    n: int
    ranks: int
    batch: int
    shard_rows: int
    stretch_rows: int

    def share(self, rank: int) -> Share:
        """Return a rank's part of an epoch."""
        return Share(self.n, self.batch, self.ranks, rank, ends="uneven")

    def stretches(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stretch of each row."""
        shards = rows // self.shard_rows
        return (
            shards * -(-self.shard_rows // self.stretch_rows)
            + (rows - shards * self.shard_rows) // self.stretch_rows
        )

    def node(self, order: RowOrder, node: int, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of a node's full batches in an epoch, several at a time."""
        own = NODE * self.batch
        for first in range(0, self.n // (self.ranks * self.batch), max(1, _PIECE // own)):
            steps = np.arange(first, min(first + max(1, _PIECE // own), self.n // (self.ranks * self.batch)))
            positions = Runs(steps * self.ranks * self.batch + node * own, np.full(len(steps), own))
            yield order.within(positions, epoch).rows()


def check_shares(cluster: Cluster) -> float:
    """Check that all ranks' positions are the epoch's, each once. Returns the largest share over the mean."""
    whole = cluster.ranks * cluster.batch
    full, largest = cluster.n // whole, 0
    at = full * whole
    for rank in range(cluster.ranks):
        share = cluster.share(rank)
        starts, lengths = share.positions(0, share.steps)
        assert (starts[:full] == np.arange(full) * whole + rank * cluster.batch).all()
        assert (lengths[:full] == cluster.batch).all()
        for start, length in zip(starts[full:].tolist(), lengths[full:].tolist(), strict=True):
            assert start == at
            at += length
        largest = max(largest, int(lengths.sum()))
    assert at == cluster.n
    return largest * cluster.ranks / cluster.n


def check_rows(order: RowOrder, cluster: Cluster, some: NDArray[np.int64]) -> str:
    """Check that an epoch has every row once.

    some: sorted rows of a large epoch, which are only checked to be distinct.
    """
    if cluster.n <= MARKED:
        seen = np.zeros(cluster.n, bool)
        for first in range(0, cluster.n, _PIECE):
            run = one_run(first, min(first + _PIECE, cluster.n))
            seen[order.within(run, 0).rows()] = True
        assert seen.all()  # as many positions as rows
        return "all rows"
    some.sort()
    assert some[0] >= 0
    assert some[-1] < cluster.n
    assert (some[1:] > some[:-1]).all()
    return f"{len(some):,} rows"


def simulate(order: RowOrder, cluster: Cluster) -> dict[str, Any]:
    """Return the reads of ranks and nodes in a bound order: shares of the pack, means over sampled nodes."""
    count, nodes = int(cluster.stretches(np.array([cluster.n - 1]))[0]) + 1, cluster.ranks // NODE
    touched, new = [], []
    # The first, middle and last nodes; only one for a large pack.
    for node in {0, nodes // 2, nodes - 1} if cluster.n <= MARKED else {nodes // 2}:
        before, now = np.zeros(count, bool), np.zeros(count, bool)
        whole = np.concatenate(list(cluster.node(order, node, 0)))
        for rows in np.array_split(whole, -(-len(whole) // _PIECE)):
            before[cluster.stretches(rows)] = True
        for rows in cluster.node(order, node, 1):
            now[cluster.stretches(rows)] = True
        touched.append(before.mean())
        new.append((now & ~before).mean())
    share = cluster.share(cluster.ranks // 2)
    first = share.steps // 2
    steps = range(first, min(first + _STEPS, share.steps))
    kept: OrderedDict[int, None] = OrderedDict()
    runs = fetched = 0
    seconds = []
    for step in steps:
        began = time.perf_counter()
        placed = order.within(share.positions(step, step + 1), 0)
        seconds.append(time.perf_counter() - began)
        runs += len(placed.starts)
        for stretch in np.unique(cluster.stretches(placed.rows())).tolist():
            fetched += stretch not in kept
            kept[stretch] = None
            kept.move_to_end(stretch)
            if len(kept) > WINDOW:
                kept.popitem(last=False)
    tracemalloc.start()
    order.within(share.positions(first, first + 1), 7)  # an epoch without cached state
    memory = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "order": order.record(),
        "checked": check_rows(order, cluster, whole),
        "rows_a_read": len(steps) * cluster.batch / runs,
        "fetched_by_needed": fetched * cluster.stretch_rows / (len(steps) * cluster.batch),
        "node_share": float(np.mean(touched)),
        "node_share_new": float(np.mean(new)),
        "batch_us": 1e6 * float(np.median(seconds)),
        "memory_kb": memory / 1e3,
    }
