"""Simulated fetches of each order from an object store, and its shuffle quality. No store is contacted.

    python benchmarks/store_orders.py                400,000 photos of 192 KiB, 8 nodes, caches of 25 %
    python benchmarks/store_orders.py --cache 1 --nodes 4

Each node fetches whole stretches of about 8 MiB for its part of every global batch, once a batch; it keeps
them until its cache is full, and never evicts them. The table has the fetches of all nodes over one reading
of the pack, in the first epoch and in the second; the label mix of a pack sorted by class and the score of a
shuffled pack (1: as a uniform shuffle, `order_quality.py`); and the time to place a node's batch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np
from order_quality import measure

from packer.bench.hardware_limits import machine, versions
from packer.orders.blocks import Blocks
from packer.orders.epochs import Context, RowOrder, Share
from packer.orders.regions import Regions
from packer.orders.row_orders import Rows, Slices
from packer.orders.runs import Subset

ROW_BYTES, BLOCK_ROWS = 196_608, 43  # a photo of 256 x 256, and a block of the pack


def fetched(order: RowOrder, n: int, batch: int, nodes: int, cache: float, epochs: int = 2) -> list[float]:
    """Return all nodes' fetches in each epoch, in readings of the pack. cache: a node's share of the pack."""
    stretches = -(-n // BLOCK_ROWS)
    room = int(cache * stretches)
    kept = np.zeros((nodes, stretches), bool)
    shares = []
    for epoch in range(epochs):
        count = 0
        for node in range(nodes):
            share = Share(n, batch // nodes, nodes, node, ends="uneven")
            for step in range(share.steps):
                rows = order.within(share.positions(step, step + 1), epoch).rows()
                missing = np.unique(rows // BLOCK_ROWS)
                missing = missing[~kept[node, missing]]
                count += len(missing)
                kept[node, missing[: max(0, room - int(kept[node].sum()))]] = True
        shares.append(count / stretches)
    return shares


def microseconds(order: RowOrder, n: int, batch: int, nodes: int) -> float:
    """Return the median time to place a node's batch."""
    share = Share(n, batch // nodes, nodes, ends="uneven")
    times = []
    for step in range(min(share.steps, 200)):
        started = time.perf_counter()
        order.within(share.positions(step, step + 1), 0)
        times.append(time.perf_counter() - started)
    return 1e6 * float(np.median(times))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--batch", type=int, default=256, help="rows of a node's part of a batch")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--cache", type=float, default=25, help="cache of a node, in percent of the pack")
    given = parser.parse_args(arguments)
    n, batch = given.rows, given.batch * given.nodes
    labels = np.arange(n) * given.classes // n
    orders: dict[str, RowOrder] = {
        "slices": Slices(),
        "blocks": Blocks(),
        "rows": Rows(),
        "regions, window 8": Regions(window=8),
        "regions, window 32": Regions(window=32),
    }
    about = Context(Subset([(0, n)]), ROW_BYTES, BLOCK_ROWS, batch)
    print(", ".join(f"{name} {value}" for name, value in {**machine(), **versions()}.items()))
    print(
        f"{n:,} rows, {given.nodes} nodes, {given.batch} rows a node and batch, {given.classes} classes,"
        f" cache {given.cache:g} %\n"
    )
    print(
        "| order | epoch 1 | epoch 2 | label mix, sorted | score, shuffled | us a batch |\n"
        "|---|---|---|---|---|---|"
    )
    for name, order in orders.items():
        bound = order.bind(about)
        first, second = fetched(bound, n, batch, given.nodes, given.cache / 100)
        mix = measure(bound, n, batch, labels=labels).label_mix
        score = measure(bound, n, batch).score
        took = microseconds(bound, n, batch, given.nodes)
        print(f"| {name} | {first:.2f} | {second:.2f} | {mix:,.2f} | {score:.3f} | {took:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
