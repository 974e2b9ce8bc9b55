"""Loading a table: packer, DataLoader, other loaders of tensors in memory, and copies in memory.

    python benchmarks/tables_loading.py                                        (about a minute)
    python benchmarks/tables_loading.py --rounds 9 --json found.json

The table has --rows rows of --columns float32 and an int64, the row's number; generated from a seed, kept as
a pack (.h5) and as tensors. First an epoch of each lane is compared with it: every row, once, bit for bit.
Lanes, for each size of --batch:

    DataLoader, rows     with TensorDataset, num_workers=0, shuffled
    DataLoader, batches  the same with a BatchSampler as sampler, which avoids collation
    slices               the contiguous-slice loader: permutes the tensors each epoch, yields views
    index_select         a permutation of the rows, a batch gathered at a time into a reused buffer
    packed, ...          PackedBatchDataset in its four orders; threads: --threads

Lanes, rounds, limits and the report are those of `packer bench`, which compares a pack with a user's table.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from packer.bench.bench_report import BenchReport
from packer.bench.hardware_limits import CopyLimit, load, machine, versions
from packer.bench.lanes import ORDERS, Lane, Packed, epochs_rate, measured, run_rounds
from packer.bench.table_baseline import ContiguousSlices, batch_sampled
from packer.format.fields import Field
from packer.packs.pack_opening import open_pack
from packer.writing.pack_writer import PackWriter

Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]
BLOCK_ROWS = 1 << 16


def table(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return features float32 [rows, columns], and row numbers, int64 [rows]."""
    draws = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=draws), torch.arange(rows)


def write(path: str, features: Tensor, numbers: Tensor) -> None:
    """Write the table as a pack, unless it exists."""
    if os.path.exists(path):
        return
    rows, columns = features.shape
    fields = (Field("features", "<f4", (columns,)), Field("label", "<i8", ()))
    with PackWriter(path, fields=fields, rows=rows, block_rows=BLOCK_ROWS, format="h5") as writer:
        for block, start in enumerate(range(0, rows, BLOCK_ROWS)):
            part = slice(start, start + BLOCK_ROWS)
            writer.write_block(block, {"features": features[part].numpy(), "label": numbers[part].numpy()})
        writer.finish(rows=rows, ragged={})


class Gathered:
    """Batches by a permutation, in reused buffers."""

    def __init__(self, features: Tensor, numbers: Tensor, batch: int) -> None:
        self._tensors, self._batch = (features, numbers), batch
        self._out = torch.empty(batch, features.shape[1]), torch.empty(batch, dtype=torch.int64)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(len(self._tensors[0])).split(self._batch):
            for values, buffer in zip(self._tensors, self._out, strict=True):
                torch.index_select(values, 0, rows, out=buffer[: len(rows)])
            yield self._out[0][: len(rows)], self._out[1][: len(rows)]


def peers(features: Tensor, numbers: Tensor, batch: int) -> dict[str, Batches]:
    """Return the other ways to load the table, by name; the baseline first."""
    data = TensorDataset(features, numbers)
    slices: Any = ContiguousSlices(features, numbers, batch_size=batch)
    return {
        "DataLoader, rows": DataLoader(data, batch, shuffle=True),
        "DataLoader, batches": batch_sampled(data, batch),
        "slices": slices,
        "index_select": Gathered(features, numbers, batch),
    }


def check(name: str, batches: Batches, features: Tensor, numbers: Tensor) -> None:
    """Compare an epoch with the table. Raises RuntimeError."""
    seen = torch.zeros(len(numbers), dtype=torch.int64)
    in_order = []
    for values, rows in batches:
        seen.index_add_(0, rows, torch.ones_like(rows))
        if not torch.equal(values, features[rows]):
            raise RuntimeError(f"{name}: rows differ from the table's.")
        in_order.append(bool((rows[1:] - rows[:-1] == 1).all()))
    if not (seen == 1).all():
        raise RuntimeError(f"{name}: {int((seen != 1).sum()):,} rows of {len(seen):,} did not come once.")
    if not name.endswith(("sequential", "packed, slices")) and all(in_order):
        raise RuntimeError(f"{name}: was not shuffled.")


def measure(
    path: str, features: Tensor, numbers: Tensor, batch: int, options: argparse.Namespace
) -> BenchReport:
    """Check and measure all lanes with one batch size."""
    lanes, pack, threads = [], open_pack(path), options.threads
    row_bytes = features[0].nbytes + numbers[0].nbytes
    for name, batches in peers(features, numbers, batch).items():
        check(name, batches, features, numbers)
        lanes.append(Lane(name, partial(epochs_rate, batches, len(numbers), options.seconds)))
    limit = CopyLimit(batch * row_bytes, pack.rows * row_bytes, threads)
    loaders = {order: Packed(pack, batch, order, threads=threads) for order in ORDERS}
    for order, loader in loaders.items():
        check(f"packed, {order}", loader.batches, features, numbers)
        lanes.append(
            Lane(
                f"packed, {order}",
                partial(loader.rate, options.seconds),
                lambda: limit.rate(options.seconds) * batch,
            )
        )
    run_rounds({"warm page cache": lanes}, options.rounds, lambda _: None)
    for loader in loaders.values():
        loader.batches.close()
    return BenchReport(
        source="a table from a seed",
        pack=path,
        heading=f"{len(numbers):,} rows of {features.shape[1]} float32 and a number, batches of {batch:,}",
        unit="rows",
        rows=pack.rows,
        batch_size=batch,
        rounds=options.rounds,
        seconds=options.seconds,
        sections={"warm page cache": measured(lanes, f"memcpy, {threads} threads")},
        conditions=machine() | {"versions": versions(), "threads": threads, "load": load()},
    )


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=28)
    parser.add_argument("--batch", type=int, nargs="+", default=[1024, 16384])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.3, help="least seconds of each lane in each round")
    parser.add_argument("--work", metavar="DIR", help="folder of the pack; default: a temporary one")
    parser.add_argument("--json", metavar="FILE", help="also write all measurements to this file")
    options = parser.parse_args(argv)
    features, numbers = table(options.rows, options.columns)
    with tempfile.TemporaryDirectory() as scratch:
        pack = os.path.join(options.work or scratch, f"table-{options.rows}x{options.columns}.h5")
        os.makedirs(os.path.dirname(pack), exist_ok=True)
        write(pack, features, numbers)
        reports = []
        for batch in options.batch:
            reports.append(measure(pack, features, numbers, batch, options))
            print(reports[-1].table(), end="\n\n")
    if options.json:
        Path(options.json).write_text(json.dumps([each.to_dict() for each in reports], indent=2) + "\n")


if __name__ == "__main__":
    main()
