"""Loading a table: packer beside DataLoader, other loaders of tensors in memory, and copies and gathers in memory.

    python benchmarks/tables_loading.py                                        (about five minutes)
    python benchmarks/tables_loading.py --rounds 9 --json found.json
    python benchmarks/tables_loading.py --only packer,slices --touch

The table: --rows rows of --columns float32 and an int64 that is the row's number, from a seed; kept as a pack (.h5) and as tensors.
Before it is measured, an epoch of each lane is compared with it: every row, once, bit for bit.

Lanes, each with batches of each of the sizes (--batch):

    packer ...           PackedBatchDataset in its four orders; threads: --threads
    DataLoader           with TensorDataset, num_workers=0, in order and shuffled
    DataLoader batches   the same with a BatchSampler as sampler, so that nothing is collated
    slices               the contiguous-slice loader: the tensors' slices, as views; shuffled, it first copies the table by a permutation
    index_select         a permutation of the rows, a batch gathered at once into a reused buffer
    memcpy               batches copied from memory into a reused buffer, by one thread and by two

A lane's rate is rows a second over an epoch (over several, until --seconds have passed), from iter() to the last batch. The consumer
takes the batches, or with --touch adds up each of them: lanes that hand out views have moved nothing before. All lanes run in turn,
--rounds times; the order is turned from round to round; ratios are medians of ratios of the same round. Memory is of a process of its
own for each lane, over two epochs: most anonymous memory, less what it had before the lane began, and in brackets with the
pages of files that it has mapped, which are the page cache's.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
from lanes import report
from torch import Tensor

from packer import PackedBatchDataset
from packer.bench.limits import CopyLimit
from packer.format.header import Field
from packer.format.pack_writer import PackWriter

Batches: TypeAlias = Iterable[tuple[Tensor, Tensor]]
ORDERS = ("sequential", "slices", "blocks", "rows")
BLOCK_ROWS = 1 << 16
LIMIT_SECONDS = 0.2
LOADER, SLICES = "DataLoader", "slices"
SHUFFLED = " shuffled"
MEMCPY = "memcpy, {} threads"
PEERS = (LOADER, "DataLoader batches", SLICES)
# Lane, the other one, at least so many times its rate, at batches of which size (None: of all).
GOALS = (
    ("packer sequential", LOADER, 200.0, 1024),
    ("packer slices", LOADER, 200.0, 1024),
    ("packer blocks", LOADER + SHUFFLED, 100.0, 1024),
    ("packer rows", LOADER + SHUFFLED, 60.0, 1024),
    ("packer slices", SLICES + SHUFFLED, 1.0, None),
    ("packer blocks", SLICES + SHUFFLED, 1.0, None),
    ("packer rows", SLICES + SHUFFLED, 1.0, None),
)


@dataclass(frozen=True)
class Setting:
    """rows, columns: of the table; batch: rows in one; threads: that packer reads with; pack: its path."""

    rows: int
    columns: int
    batch: int
    threads: int
    pack: str


def table(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """The table: features float32 [rows, columns], numbers int64 [rows]."""
    draws = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=draws), torch.arange(rows)


def write(path: str, features: Tensor, numbers: Tensor) -> None:
    """Write the table as a pack, unless it is there."""
    if os.path.exists(path):
        return
    rows, columns = features.shape
    fields = (Field("features", "<f4", (columns,)), Field("label", "<i8", ()))
    with PackWriter(path, fields=fields, rows=rows, block_rows=BLOCK_ROWS, format="h5") as writer:
        for block, start in enumerate(range(0, rows, BLOCK_ROWS)):
            part = slice(start, start + BLOCK_ROWS)
            writer.write_block(
                block, (), {"features": features[part].numpy(), "label": numbers[part].numpy()}
            )
        writer.finish(rows=rows, ragged={})


class ContiguousSlices:
    """Batches of tensors as slices of them; shuffled, they are copied by a permutation before each epoch.

    As public snippets and posts have it ("FastTensorDataLoader", J. Mu).
    """

    def __init__(self, *tensors: Tensor, batch_size: int, shuffle: bool) -> None:
        self._tensors, self._batch_size, self._shuffle = tensors, batch_size, shuffle

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        if self._shuffle:
            permutation = torch.randperm(len(self._tensors[0]))
            self._tensors = tuple(tensor[permutation] for tensor in self._tensors)
        for first in range(0, len(self._tensors[0]), self._batch_size):
            yield tuple(tensor[first : first + self._batch_size] for tensor in self._tensors)


def gathered(features: Tensor, numbers: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches by a permutation, in buffers that are used again."""
    out = torch.empty(batch, features.shape[1]), torch.empty(batch, dtype=torch.int64)
    for rows in torch.randperm(len(features)).split(batch):
        for values, buffer in zip((features, numbers), out, strict=True):
            torch.index_select(values, 0, rows, out=buffer[: len(rows)])
        yield out[0][: len(rows)], out[1][: len(rows)]


def open_lane(
    name: str, setting: Setting, tensors: Callable[[], tuple[Tensor, Tensor]]
) -> Callable[[], Batches]:
    """What gives the batches of one epoch after the other. tensors: makes the table, or has it. Raises KeyError."""
    batch = setting.batch
    kind = name.removesuffix(SHUFFLED)
    if kind.startswith("packer "):
        order = kind.removeprefix("packer ")
        dataset = PackedBatchDataset(setting.pack, batch, order=order, threads=setting.threads)
        return lambda: dataset
    shuffle = name.endswith(SHUFFLED)
    if kind == LOADER:
        from torch.utils.data import DataLoader, TensorDataset

        loader = DataLoader(TensorDataset(*tensors()), batch, shuffle=shuffle)
        return lambda: loader
    if kind == "DataLoader batches":
        from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

        data = TensorDataset(*tensors())
        one_by_one = RandomSampler(data) if shuffle else SequentialSampler(data)
        fast = DataLoader(data, sampler=BatchSampler(one_by_one, batch, drop_last=False), batch_size=None)
        return lambda: fast
    if kind == SLICES:
        slices: Any = ContiguousSlices(*tensors(), batch_size=batch, shuffle=shuffle)
        return lambda: slices
    if kind == "index_select":
        values = tensors()
        return lambda: gathered(*values, batch)
    raise KeyError(name)


def names_of(only: str | None) -> list[str]:
    """All lanes that give batches, or those that have one of the words in their names. Raises ValueError."""
    every = [f"packer {order}" for order in ORDERS]
    every += [name + ending for name in PEERS for ending in ("", SHUFFLED)] + ["index_select" + SHUFFLED]
    words = [word.strip() for word in only.split(",")] if only else [""]
    for word in words:
        if not any(word in name for name in every):
            raise ValueError(f"--only {word}: no lane has that in its name; there are {'; '.join(every)}.")
    return [name for name in every if any(word in name for word in words)]


def check(name: str, epoch: Callable[[], Batches], features: Tensor, numbers: Tensor) -> None:
    """Compare an epoch with the table. Raises RuntimeError."""
    seen = torch.zeros(len(numbers), dtype=torch.int64)
    in_order = []
    for values, rows in epoch():
        seen += torch.bincount(rows, minlength=len(seen)) if len(seen) < 1 << 14 else 0
        if len(seen) >= 1 << 14:
            seen.index_add_(0, rows, torch.ones_like(rows))
        if not torch.equal(values, features[rows]):
            raise RuntimeError(f"{name}: rows differ from the table's.")
        in_order.append(bool((rows[1:] - rows[:-1] == 1).all()))
    if not (seen == 1).all():
        raise RuntimeError(f"{name}: {int((seen != 1).sum()):,} rows of {len(seen):,} did not come once.")
    if name.endswith((SHUFFLED, "blocks", "rows")) and all(in_order):
        raise RuntimeError(f"{name}: was not shuffled.")


def rate(epoch: Callable[[], Batches], rows: int, seconds: float, touch: bool) -> float:
    """Rows a second over whole epochs, for at least so long."""
    began, epochs = time.perf_counter(), 0
    while not epochs or time.perf_counter() - began < seconds:
        for values, _ in epoch():
            if touch:
                values.sum()
        epochs += 1
    return epochs * rows / (time.perf_counter() - began)


def measure(
    names: list[str], setting: Setting, features: Tensor, numbers: Tensor, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Rows a second of each lane in each round, those of memcpy too."""
    epochs = {name: open_lane(name, setting, lambda: (features, numbers)) for name in names}
    for name, epoch in epochs.items():
        check(name, epoch, features, numbers)
    batch_bytes = setting.batch * (4 * setting.columns + 8)
    limits = {
        threads: CopyLimit(batch_bytes, setting.rows * batch_bytes // setting.batch, threads)
        for threads in (1, 2)
    }
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        turn = number * len(names) // options.rounds
        for name in names[turn:] + names[:turn]:
            found.setdefault(name, []).append(
                rate(epochs[name], setting.rows, options.seconds, options.touch)
            )
        for threads, limit in limits.items():
            copied = limit.rate(min(LIMIT_SECONDS, options.seconds)) * setting.batch
            found.setdefault(MEMCPY.format(threads), []).append(copied)
    return {name: found[name] for name in (*names, *(MEMCPY.format(threads) for threads in limits))}


def status(*names: str) -> int:
    """Bytes that /proc/self/status gives for these, added up."""
    with open("/proc/self/status") as file:
        return sum(1024 * int(line.split()[1]) for line in file if line.startswith(names))


def measure_memory(name: str, setting: Setting) -> tuple[float, float]:
    """MB of this process over two epochs of a lane, at most: its own, and with mapped files; less what it had before."""
    gc.collect()
    own, every = status("RssAnon", "RssShmem"), status("VmRSS")
    most, over = [own, every], threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            most[0] = max(most[0], status("RssAnon", "RssShmem"))
            most[1] = max(most[1], status("VmRSS"))

    looking = threading.Thread(target=look)
    looking.start()
    epoch = open_lane(name, setting, lambda: table(setting.rows, setting.columns))
    for _ in range(2):
        for _batch in epoch():
            pass
    over.set()
    looking.join()
    return (most[0] - own) / 1e6, (most[1] - every) / 1e6


def memory_of(name: str, setting: Setting) -> tuple[float, float]:
    """The same in a process of its own. Raises RuntimeError."""
    given = [str(value) for value in (setting.rows, setting.columns, setting.batch, setting.threads)]
    command = [sys.executable, __file__, "--memory-of", name, *given, setting.pack]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path))
    }  # packer may not be installed
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"{name}: its process failed: {done.stderr.strip()[-500:]}")
    own, every = done.stdout.split()
    return float(own), float(every)


def ratio(found: dict[str, list[float]], one: str, other: str) -> float | None:
    """Median of the ratios of the same round; None if one of them was not measured."""
    if one not in found or other not in found:
        return None
    return median(a / b for a, b in zip(found[one], found[other], strict=True))


def show(found: dict[str, list[float]], memory: dict[str, tuple[float, float]]) -> str:
    """The table of one batch size."""
    shown = [
        "lane                            M rows/s  spread  x DataLoader  x slices  x memcpy   own MB (with files)"
    ]
    for name, rates in found.items():
        shuffled = (
            SHUFFLED if name.endswith((SHUFFLED, "slices", "blocks", "rows")) and name != SLICES else ""
        )
        cells = [
            "" if value is None else f"{value:.2f}" if value < 10 else f"{value:,.0f}"
            for value in (
                ratio(found, name, LOADER + shuffled),
                ratio(found, name, SLICES + shuffled),
                ratio(found, name, MEMCPY.format(1)),
            )
        ]
        spread = (max(rates) - min(rates)) / median(rates)
        taken = "{:.0f} ({:.0f})".format(*memory[name]) if name in memory else ""
        shown.append(
            f"{name:30}  {median(rates) / 1e6:8.2f}  {spread:5.0%}   {cells[0]:>12}  {cells[1]:>8}  {cells[2]:>8}   {taken:>12}"
        )
    return "\n".join(shown)


def goals(batch: int, found: dict[str, list[float]], memory: dict[str, tuple[float, float]]) -> Iterator[str]:
    """Which goals were met."""
    for one, other, least, at in GOALS:
        value = ratio(found, one, other) if at in (None, batch) else None
        if value is not None:
            verdict = "met" if value >= least else "MISSED"
            yield f"batch {batch:,}: {one} / {other}: {value:.1f}; goal {least:g}, {verdict}"
    for one in ("packer slices", "packer rows"):
        if one in memory and memory.get(SLICES + SHUFFLED, (0.0,))[0]:  # a small table may take no page more
            share = memory[one][0] / memory[SLICES + SHUFFLED][0]
            verdict = "met" if share <= 0.5 else "MISSED"
            yield f"batch {batch:,}: memory of {one} / {SLICES}{SHUFFLED}: {share:.2f}; goal 0.5, {verdict}"


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
    parser.add_argument("--seconds", type=float, default=0.3, help="of each lane in each round, at least")
    parser.add_argument("--only", metavar="WORD,...", help="lanes that have one of the words in their names")
    parser.add_argument("--touch", action="store_true", help="the consumer adds up each batch")
    parser.add_argument("--work", metavar="DIR", help="where the pack is kept; default: a temporary folder")
    parser.add_argument("--json", metavar="FILE", help="write everything that was measured here, too")
    parser.add_argument("--memory-of", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.memory_of:
        name, *numbers, pack = options.memory_of
        rows, columns, batch, threads = map(int, numbers)
        print(*measure_memory(name, Setting(rows, columns, batch, threads, pack)))
        return
    try:
        names = names_of(options.only)
    except ValueError as error:
        parser.error(str(error))
    before, record = report.load(), {}
    features, numbers_of_rows = table(options.rows, options.columns)
    with tempfile.TemporaryDirectory() as scratch:
        pack = os.path.join(options.work or scratch, f"table-{options.rows}x{options.columns}.h5")
        os.makedirs(os.path.dirname(pack), exist_ok=True)
        write(pack, features, numbers_of_rows)
        for batch in options.batch:
            setting = Setting(options.rows, options.columns, batch, options.threads, pack)
            found = measure(names, setting, features, numbers_of_rows, options)
            memory = {name: memory_of(name, setting) for name in names}
            print(
                f"{options.rows:,} rows of {options.columns} float32 and a number, batches of {batch:,}, {options.threads} threads,"
                f" {options.rounds} rounds, interleaved; the consumer {'adds up each batch' if options.touch else 'takes the batches'}\n"
            )
            print(show(found, memory), *goals(batch, found, memory), sep="\n", end="\n\n")
            record[batch] = {"rates": found, "memory": memory}
    about = report.conditions({}) | {"load_before": before, "load_after": report.load()}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if options.json:
        asked = {
            name: getattr(options, name)
            for name in ("rows", "columns", "batch", "threads", "rounds", "seconds", "touch")
        }
        Path(options.json).write_text(
            json.dumps({"conditions": about, "options": asked, "batches": record}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
