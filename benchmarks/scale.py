"""Packs from 50,000 to 5,000,000,000 images on one machine, and the simulated ranks of 1,000 GPUs.

    python benchmarks/scale.py                        CIFAR-10, ImageNet-1k and 10^8 photos of 256 px: minutes
    python benchmarks/scale.py --full                 10^9 and 5 x 10^9 too: half an hour, 4 GB disk, 2 GB RAM
    python benchmarks/scale.py --rows 3e7 --ranks 64

The packs are sparse files: index, headers, trailers and block checksums are real; rows are holes, which read
as zeros (so are HDF5's chunk tables, which packer does not read). A separate process opens, orders and reads
each pack, then once more by URL, from a server in this process. Core-hours of conversion follow from
CONVERTED.

Ranks are simulated (simulated_ranks.py), 8 a node, of --batch rows each. The simulation checks that their
positions are the epoch's, each once, and that every row occurs once (up to 2^27 rows each is marked; beyond,
the rows of a node are checked to be distinct). It counts the rows of a read (adjacent rows count as one);
what a rank without a cache (a window of 1 GiB) fetches from a store in stretches of 8 MiB, over what it
needs; the share of the pack that a node with a cache fetches in the first epoch, and the part of the second
epoch's that is new.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from simulated_ranks import NODE, Cluster, check_shares, simulate
from sparse_pack import SHARD_ROWS, by_url, write_pack

from packer import PackedBatchDataset, open_pack
from packer.bench.hardware_limits import load, machine, versions
from packer.format.header import INDEX_FILE, block_rows
from packer.orders.blocks import Blocks
from packer.orders.epochs import Context, RowOrder
from packer.orders.regions import Regions
from packer.orders.row_orders import Rows, Sequential, Slices
from packer.orders.runs import Subset
from packer.packs.pack import Pack

ROOT = Path(__file__).parents[1]
REGIONS = "regions of ranks"
POINTS = {"CIFAR-10": (50_000, 32), "ImageNet-1k": (1_281_167, 256), "10^8 photos": (10**8, 256)}
FULL = {"10^9 photos": (10**9, 256), "5 x 10^9 photos": (5 * 10**9, 256)}


def resident() -> float:
    """Return this process's private memory in megabytes."""
    with open("/proc/self/statm") as file:
        _, all_pages, shared = map(int, file.read().split()[:3])
    return (all_pages - shared) * resource.getpagesize() / 1e6


def used(pack: Pack, order: RowOrder, ranks: int, batch: int) -> dict[str, Any]:
    """Open a dataset of the last rank, read a batch, and resume in mid-epoch as a new process would.

    Returns [seconds, of CPU] of each.
    """
    found: dict[str, Any] = {}
    state: dict[str, Any] = {}
    for name in ("first", "resumed"):
        began, cpu = time.perf_counter(), time.process_time()
        with PackedBatchDataset(
            pack, batch, order=order, rank=ranks - 1, world_size=ranks, output="numpy", ends="uneven"
        ) as data:
            if state:
                data.load_state_dict(json.loads(json.dumps(state)))
            assert not next(iter(data))[0].any()
            found[name] = time.perf_counter() - began, time.process_time() - cpu
            state = data.state_dict() | {"rows": pack.rows // (2 * ranks * batch) * ranks * batch}
    return found | {"state_bytes": len(json.dumps(state))}


def opened(folder: str, url: str, ranks: int, batch: int) -> dict[str, Any]:
    """Open and read a pack by path and by URL, in a separate process that has read another pack before."""
    with tempfile.TemporaryDirectory() as other:
        write_pack(f"{other}/warm", 1000, 32)
        for order in orders(1).values():
            used(open_pack(f"{other}/warm"), order, 1, batch)
    found: dict[str, Any] = {}
    for way, place in (("local", folder), ("remote", url)):
        before, began, cpu = resident(), time.perf_counter(), time.process_time()
        pack = open_pack(place)
        took = time.perf_counter() - began, time.process_time() - cpu
        chosen = {name: order for name, order in orders(ranks).items() if way == "local" or name == REGIONS}
        found[way] = {"opened": took, "pack_mb": resident() - before}
        found[way]["orders"] = {name: used(pack, order, ranks, batch) for name, order in chosen.items()}
        found[way]["own_mb"] = resident()
    return found


def orders(ranks: int) -> dict[str, RowOrder]:
    """Return the compared orders."""
    return {
        "sequential": Sequential(),
        "slices": Slices(),
        "blocks": Blocks(),
        "rows": Rows(),
        "regions": Regions(),
        REGIONS: Regions(regions=ranks),
    }


def measured(name: str, rows: int, side: int, work: str, ranks: int, batch: int) -> dict[str, Any]:
    """Write a sparse pack, and measure opening and reading it."""
    folder = f"{work}/pack"
    began = time.perf_counter()
    write_pack(folder, rows, side)
    found: dict[str, Any] = {"name": name, "rows": rows, "ranks": ranks, "batch": batch}
    found["write_seconds"] = time.perf_counter() - began
    found["shards"], found["index_bytes"] = -(-rows // SHARD_ROWS), os.path.getsize(f"{folder}/{INDEX_FILE}")
    found["bytes"] = rows * (side * side * 3 + 8)

    def run(url: str, keys: dict[str, str]) -> dict[str, Any]:
        command = [
            sys.executable,
            __file__,
            "--opened",
            folder,
            url,
            "--ranks",
            str(ranks),
            "--batch",
            str(batch),
        ]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **keys}
        )
        return dict(json.loads(done.stdout.splitlines()[-1]))

    found |= by_url(work, run)
    found["core_hours"] = rows / CONVERTED[side] / 3600
    return found


CONVERTED = {32: 18_200, 256: 938}
"""Images/s that a core converts, by side: CIFAR-10's JPEGs; 3,068 photos of 400x533 (2 workers, 2026-11)."""


def report(points: list[dict[str, Any]]) -> None:
    """Print the tables; seconds of CPU in brackets."""
    print("\n| | " + " | ".join(one["name"] for one in points) + " |\n|---" * 1 + "|---" * len(points) + "|")
    lines: dict[str, list[str]] = {}
    for one in points:
        local, remote = one["local"], one["remote"]
        found = {
            "rows": f"{one['bytes'] / 1e12:,.3g} TB",
            "shards": f"{one['shards']:,}",
            "index": f"{one['index_bytes'] / 1e6:,.3g} MB",
            "opened": "{:.2g} s ({:.2g})".format(*local["opened"]),
            "by URL": "{:.2g} s ({:.2g})".format(*remote["opened"]) + f", {one['index_requests']} request",
            "memory of the open pack": f"{local['pack_mb']:,.0f} MB",
            "state": f"{max(own['state_bytes'] for own in local['orders'].values())} bytes",
            "conversion": f"{one['core_hours']:,.2g} core-hours",
        }
        for name, own in local["orders"].items():
            for what in ("first", "resumed"):
                found[f"{name}, {what}"] = "{:.2g} s ({:.2g})".format(*own[what])
        for name, value in found.items():
            lines.setdefault(name, []).append(value)
    for name, values in lines.items():
        print(f"| {name} | " + " | ".join(values) + " |")
    for one in points:
        if "simulated" not in one:
            continue
        print(
            f"\n{one['name']}, {one['ranks']:,} ranks of {one['batch']};"
            f" rows of the largest rank by the mean {one['largest']:.6f}\n"
        )
        print(
            "| order | every row once | rows a read | fetched / needed | node, epoch 1 | epoch 2, new"
            " | us a batch | kB |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for name, own in one["simulated"].items():
            print(
                f"| {name} | {own['checked']} | {own['rows_a_read']:.1f} | {own['fetched_by_needed']:.2f}"
                f" | {own['node_share']:.2%}"
                f" | {own['node_share_new']:.2%} | {own['batch_us']:,.0f} | {own['memory_kb']:,.0f} |"
            )


def main(argv: list[str] | None = None) -> int:
    """Measure, simulate, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=float, help="only one pack, with this many photos")
    parser.add_argument("--full", action="store_true", help="also 10^9 and 5 x 10^9 photos")
    parser.add_argument("--ranks", type=int, default=1000, help="ranks, 8 a node; fewer for small packs")
    parser.add_argument("--batch", type=int, default=64, help="rows of a rank's batch")
    parser.add_argument("--work", help="folder for the packs; default: a temporary one")
    parser.add_argument("--json", metavar="FILE", help="also write all measurements to this file")
    parser.add_argument("--opened", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.opened:
        print(json.dumps(opened(given.opened[0], given.opened[1], given.ranks, given.batch)))
        return 0
    points = (
        {f"{int(given.rows):,} photos": (int(given.rows), 256)}
        if given.rows
        else POINTS | (FULL if given.full else {})
    )
    about = (
        machine()
        | versions()
        | {"load_before": load(), "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}
    )
    found = []
    for name, (rows, side) in points.items():
        ranks = min(given.ranks, max(NODE, rows // 5000 // NODE * NODE))
        with tempfile.TemporaryDirectory(dir=given.work) as work:
            found.append(measured(name, rows, side, work, ranks, given.batch))
        print(f"{name}: measured", file=sys.stderr, flush=True)
    for one, (rows, side) in zip(found, points.values(), strict=True):
        ranks, shard = one["ranks"], min(rows, SHARD_ROWS)
        cluster = Cluster(rows, ranks, given.batch, shard, block_rows(shard, side * side * 3))
        context = Context(Subset([(0, rows)]), side * side * 3 + 8, cluster.stretch_rows, ranks * given.batch)
        one["largest"], one["simulated"] = check_shares(cluster), {}
        for name, order in orders(ranks).items():
            one["simulated"][name] = simulate(order.bind(context), cluster)
            print(f"{one['name']}, {name}: simulated", file=sys.stderr, flush=True)
            if given.json:
                Path(given.json).write_text(
                    json.dumps({"conditions": about, "points": found}, indent=1) + "\n"
                )
    about["load_after"] = load()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    report(found)
    if given.json:
        Path(given.json).write_text(json.dumps({"conditions": about, "points": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
