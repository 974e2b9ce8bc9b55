"""bench of tables: rows in memory loaded as is usual, beside the pack, beside what the machine can do.

All ways run in turn, round after round, and ratios are taken within a round. Each of our rates has its own measurement
of the limit right before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import TensorDataset

from packer import units
from packer.bench.bench_report import FirstBatch, TableBenchReport
from packer.bench.lanes import ORDERS, BenchRun, Lane, Packed, fixed_fields
from packer.bench.table_comparison import HeldRows, check_epoch, check_source, reading_of, sought_rows
from packer.bench.table_lanes import ContiguousSlices, batch_sampled, epochs_rate, first_batch, parser
from packer.errors import UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.machine import memory
from packer.path_text import as_text
from packer.tables.reading.table_source import open_table

HELD_SHARE = 8  # of the memory: tensors are copied each epoch, and their copies before are held meanwhile
_SECTION = "warm page cache"


def bench(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    pack: str | os.PathLike[str],
    *,
    batch_size: int = 1024,
    rounds: int = 3,
    seconds: float = 1.0,
    workers: Sequence[int] | None = None,
    progress: Callable[[str], None] | None = None,
    script: str | None = None,
    model_rate: float | None = None,
) -> TableBenchReport:
    """Measure how fast batches of a table come from tensors in memory, from its pack, and at most.

    source: the files or globs that the pack was converted from; pack: .h5 or directory. Its fields of one length are loaded.
    batch_size: rows a batch, fewer if that would not give four batches.
    seconds: of each measurement, longer where an epoch is; rounds: how many measurements of each way.
    workers: of the DataLoader that is asked for rows, each tried, the best reported; default 0, 1, 2, 4, … up to the cores.
    progress: called with what is measured next; script, model_rate: as in image_bench.bench.

    Raises UsageError (a number is out of range; the table is not that of the pack), FormatError (no pack), SourceError,
    PackerError (the table's rows are not the pack's). Ends every worker process and thread that it started.
    """
    run = BenchRun(pack, batch_size, rounds, seconds, workers, progress, script, model_rate)
    opened = run.pack
    if opened.header.table is None:
        raise UsageError(f"{opened.path}: is not a pack of a table. Pass one that was made from a table.")
    names = [os.fspath(s) for s in ([source] if isinstance(source, (str, os.PathLike)) else source)]
    called = names[0] if len(names) == 1 else f"{names[0]} and {units.count(len(names) - 1, 'other')}"
    reading = reading_of(opened)
    fields = fixed_fields(opened)
    table = open_table(names, reading)
    check_source(table, called, opened)
    run.say("comparing rows")
    sought = sought_rows(table, opened, fields)
    rows = min(opened.rows, memory() // HELD_SHARE // run.row_bytes)
    held = HeldRows(opened, fields, rows, threads=run.threads, sought=sought)
    loaded = [f.name for f in fields]
    loaders = {order: run.packed(order, fields=loaded) for order in ORDERS}
    try:
        _measure(run, held, loaders)
        run.say("first batch")
        parse, name = parser(table.names, reading)
        make = partial(PackedBatchDataset, opened.path, run.batch_size, fields=loaded)
        times = [((parse(),) if parse else (), first_batch(make)) for _ in range(rounds)]
    finally:
        for loader in loaders.values():
            loader.batches.close()
    if not parse:
        run.notes.append(name)
    ragged = [f.name for f in opened.fields if f.ragged]
    if ragged:
        run.notes.append(f"left out: {', '.join(ragged)}, of any length.")
    if held.rows < opened.rows:
        run.notes.append(
            f"tensors: the first {units.count(held.rows, 'row')}, an eighth of the memory; packer loads all."
        )
    conditions = {
        "torch_threads": torch.get_num_threads(),
        "source_bytes": table.nbytes,
        "packed_bytes": opened.nbytes,
        "rows_held": held.rows,
        "rows_compared": len(sought.keys),
    }
    first = FirstBatch(
        parser=name if parse else "",
        parse=tuple(t for parsed, _ in times for t in parsed),
        pack=tuple(t for _, t in times),
    )
    shapes = {f.name: f.shape or () for f in fields}
    return run.report(
        TableBenchReport, {}, conditions, source=as_text(called), fields=shapes, first_batch=first
    )


def _measure(run: BenchRun, held: HeldRows, loaders: dict[str, Packed]) -> None:
    """Measure every lane; what is slow to begin is begun, and what each hands out is compared, before the rounds."""
    items = TensorDataset(*held.tensors)
    name, rate = run.best_loader("DataLoader, rows", items)
    lanes = [Lane(name, partial(rate, items))]
    peers: dict[str, Iterable[Any]] = {
        "DataLoader, batches by a sampler": batch_sampled(items, run.batch_size),
        "tensors, copied each epoch, slices": ContiguousSlices(*held.tensors, batch_size=run.batch_size),
    }
    for name, batches in peers.items():
        run.say(f"comparing rows: {name}")
        check_epoch(run.pack, name, batches, held.own)
        lanes.append(Lane(name, partial(epochs_rate, batches, held.rows, run.seconds)))
    copies = {n: run.copy_limit(n) for n in {1, run.threads}}
    threads = max(copies, key=lambda n: copies[n].rate(run.seconds))
    copy = copies.pop(threads)
    copies.clear()
    for order, loader in loaders.items():
        run.say(f"comparing rows: packed, {order}")
        check_epoch(run.pack, f"packed, {order}", loader.batches, held.total)
    lanes += run.packed_lanes(loaders, copy)
    run.measure({_SECTION: lanes}, f"memcpy, {units.count(threads, 'thread')}")
