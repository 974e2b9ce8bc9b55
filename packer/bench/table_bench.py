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
from packer.bench.bench_report import FirstBatch, MeasuredLane, TableBenchReport
from packer.bench.conditions import check_numbers, machine, versions
from packer.bench.dataloader_rate import best_workers, loader_rate, worker_counts
from packer.bench.hardware_limits import CopyLimit
from packer.bench.lanes import Lane, measured, run_rounds
from packer.bench.packed_lane import ORDERS, Packed, fixed_fields, row_bytes
from packer.bench.table_comparison import HeldRows, check_epoch, check_source, reading_of, sought_rows
from packer.bench.table_lanes import ContiguousSlices, batch_sampled, epochs_rate, first_batch
from packer.bench.table_parsing import parser
from packer.errors import UsageError
from packer.format.pack import Pack, open_pack
from packer.load.batch_dataset import PackedBatchDataset
from packer.starting import cores, memory
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
) -> TableBenchReport:
    """Measure how fast batches of a table come from tensors in memory, from its pack, and at most.

    source: the files or globs that the pack was converted from; pack: .h5 or directory. Its fields of one length are loaded.
    batch_size: rows a batch, fewer if that would not give four batches.
    seconds: of each measurement, longer where an epoch is; rounds: how many measurements of each way.
    workers: of the DataLoader that is asked for rows, each tried, the best reported; default 0, 1, 2, 4, … up to the cores.
    progress: called with what is measured next.

    Raises UsageError (a number is out of range; the table is not that of the pack), FormatError (no pack), SourceError,
    PackerError (the table's rows are not the pack's). Ends every worker process and thread that it started.
    """
    check_numbers(batch_size, rounds, seconds, workers)
    say = progress or (lambda _: None)
    opened = open_pack(pack)
    if opened.header.table is None:
        raise UsageError(f"{opened.path}: is not a pack of a table. Pass one that was made from a table.")
    names = [os.fspath(s) for s in ([source] if isinstance(source, (str, os.PathLike)) else source)]
    called = names[0] if len(names) == 1 else f"{names[0]} and {units.count(len(names) - 1, 'other')}"
    reading = reading_of(opened)
    threads, size = min(4, cores()), max(1, min(batch_size, opened.rows // 4))
    fields = fixed_fields(opened)
    table = open_table(names, reading)
    check_source(table, called, opened)
    say("comparing rows")
    sought = sought_rows(table, opened, fields)
    rows = min(opened.rows, memory() // HELD_SHARE // row_bytes(opened))
    held = HeldRows(opened, fields, rows, threads=threads, sought=sought)
    loaders = {
        order: Packed(opened, size, order, threads=threads, fields=[f.name for f in fields])
        for order in ORDERS
    }
    try:
        counts = sorted(set(workers or worker_counts(cores())))
        ways = _measure(opened, held, loaders, size, rounds, seconds, counts, say)
        say("first batch")
        parse, name = parser(table.names, reading)
        make = partial(PackedBatchDataset, opened.path, size, fields=[f.name for f in fields])
        times = [((parse(),) if parse else (), first_batch(make)) for _ in range(rounds)]
    finally:
        for loader in loaders.values():
            loader.batches.close()
    notes = [] if parse else [name]
    ragged = [f.name for f in opened.fields if f.ragged]
    if ragged:
        notes.append(f"left out: {', '.join(ragged)}, of any length.")
    if held.rows < opened.rows:
        notes.append(
            f"tensors: the first {units.count(held.rows, 'row')}, an eighth of the memory; packer loads all."
        )
    return TableBenchReport(
        source=called,
        pack=opened.path,
        rows=opened.rows,
        fields={f.name: f.shape or () for f in fields},
        batch_size=size,
        rounds=rounds,
        seconds=seconds,
        sections={_SECTION: ways},
        first_batch=FirstBatch(
            parser=name if parse else "",
            parse=tuple(t for parsed, _ in times for t in parsed),
            pack=tuple(t for _, t in times),
        ),
        conditions={
            **machine(),
            "versions": versions(),
            "threads": threads,
            "torch_threads": torch.get_num_threads(),
            "source_bytes": table.nbytes,
            "packed_bytes": opened.nbytes,
            "rows_held": held.rows,
            "rows_compared": len(sought.keys),
        },
        notes=tuple(notes),
    )


def _measure(
    pack: Pack,
    held: HeldRows,
    loaders: dict[str, Packed],
    size: int,
    rounds: int,
    seconds: float,
    workers: list[int],
    say: Callable[[str], None],
) -> tuple[MeasuredLane, ...]:
    """Every lane; what is slow to begin is begun, and what each hands out is compared, before the rounds."""
    items = TensorDataset(*held.tensors)
    say(f"DataLoader with {', '.join(map(str, workers))} workers")
    count = best_workers(items, batch_size=size, counts=workers, seconds=seconds)
    one_by_one = partial(loader_rate, items, batch_size=size, workers=count, seconds=seconds)
    peers: dict[str, Iterable[Any]] = {
        "DataLoader, batches by a sampler": batch_sampled(items, size),
        "tensors, copied each epoch, slices": ContiguousSlices(*held.tensors, batch_size=size),
    }
    lanes = [Lane(f"DataLoader, rows, {units.count(count, 'worker')}", one_by_one)]
    for name, batches in peers.items():
        say(f"comparing rows: {name}")
        check_epoch(pack, name, batches, held.own)
        lanes.append(Lane(name, partial(epochs_rate, batches, held.rows, seconds)))
    nbytes = row_bytes(pack)
    copies = {n: CopyLimit(size * nbytes, pack.rows * nbytes, n) for n in {1, min(4, cores())}}
    threads = max(copies, key=lambda n: copies[n].rate(seconds))
    copy = copies.pop(threads)
    copies.clear()
    for order, loader in loaders.items():
        say(f"comparing rows: packed, {order}")
        check_epoch(pack, f"packed, {order}", loader.batches, held.total)
        lanes.append(
            Lane(f"packed, {order}", partial(loader.rate, seconds), lambda: copy.rate(seconds) * size)
        )
    run_rounds({_SECTION: lanes}, rounds, say)
    return measured(lanes, f"limit: memcpy, {units.count(threads, 'thread')}")
