"""How long a consumer waits for batches that a slow Python generator makes.

    python benchmarks/producer_consumer.py [--processes 6] [--batches 24] [--rounds 1]

The generator sleeps 0.5 s and computes 48 MiB of float32 from the seeds that its batch's rows hold; the consumer takes 0.1 s a batch.
So one producer is five times too slow, and from six on the consumer need not wait at all. Ways to bring them together:

    serial              generate, then consume
    Queue x N           N processes put arrays on a multiprocessing.Queue of four: each batch is pickled and goes through a pipe
    DataLoader x N      N workers of torch's DataLoader: each batch is moved to shared memory of its own
    packer x N          PackedBatchDataset with a batched transform in N processes: each batch is written into a shared slot

Each batch is checked: its seeds are the expected ones, and one of its samples is made again. The first N batches are not counted:
all producers begin at once, so these come in a burst after the first. CPU is that of all processes together.
Seen on 2 cores of a Xeon that much other work shared (numpy 2.4.6, torch 2.13), which stretched the 40 ms of computing to 300 and more;
so with both times four times as long (--batches 24 --sleep 2 --step 0.4):

ms                mean wait   median  longest    first  CPU a batch
serial               2401.1   2288.3   3026.9     3109          166
Queue x 1            2234.9   2133.9   3326.6     3020          331
Queue x 6             303.6    258.8    630.1     5091          276
DataLoader x 6         20.0      8.3    154.9     3042          139
packer x 6             16.0      0.2    279.5     5766          146
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer import PackedBatchDataset
from packer.format.header import Field
from packer.format.pack_writer import PackWriter
from packer.load.processes.transforms import PythonTransform

Batch = tuple[NDArray[np.float32], NDArray[np.int64]]


@dataclass(frozen=True)
class Task:
    """What is to be made. path: of a pack of seeds; rows: of a batch; shape: of a sample; sleep, step: seconds."""

    path: str

    rows: int
    shape: tuple[int, ...]
    batches: int
    sleep: float
    step: float

    def seeds(self, batch: int) -> NDArray[np.int64]:
        """The seeds of a batch's rows."""
        return np.arange(batch * self.rows, (batch + 1) * self.rows)

    def sample(self, seed: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """One sample."""
        return np.random.default_rng(seed).random(self.shape, np.float32, out=out)

    def produce(self, seeds: NDArray[np.int64]) -> NDArray[np.float32]:
        """A batch: float32 [rows, *shape]."""
        time.sleep(self.sleep)
        batch = np.empty((len(seeds), *self.shape), np.float32)
        for out, seed in zip(batch, seeds.tolist(), strict=True):
            self.sample(seed, out)
        return batch


@dataclass
class Run:
    """waits: seconds for each counted batch; first: for the first of all; cpu: seconds of all processes a batch."""

    waits: list[float]
    first: float
    cpu: float


def serial(task: Task, processes: int) -> Iterator[Batch]:
    """Generate, then consume."""
    for number in range(task.batches):
        seeds = task.seeds(number)
        yield task.produce(seeds), seeds


def put_all(task: Task, first: int, processes: int, batches: Any) -> None:
    """In a process: put every processes-th batch on the queue."""
    for number in range(first, task.batches, processes):
        seeds = task.seeds(number)
        batches.put((task.produce(seeds), seeds))


def queued(task: Task, processes: int) -> Iterator[Batch]:
    """From producers through a multiprocessing.Queue, in whatever order they come."""
    context = multiprocessing.get_context("fork")
    batches: Any = context.Queue(4)
    producers = [
        context.Process(target=put_all, args=(task, first, processes, batches), daemon=True)
        for first in range(processes)
    ]
    for producer in producers:
        producer.start()
    for _ in range(task.batches):
        while True:
            try:
                batch: Batch = batches.get(timeout=5)
                break
            except queue.Empty:  # a Queue does not tell that its producers have died
                if not any(producer.is_alive() for producer in producers):
                    raise RuntimeError("the producers died") from None
        yield batch
    for producer in producers:
        producer.join()


def loaded(task: Task, processes: int) -> Iterator[Batch]:
    """From workers of torch's DataLoader."""

    class Batches(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return task.batches

        def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
            seeds = task.seeds(number)
            return torch.from_numpy(task.produce(seeds)), torch.from_numpy(seeds)

    loader: Any = torch.utils.data.DataLoader(
        Batches(), batch_size=None, num_workers=processes, multiprocessing_context="fork"
    )
    for made, seeds in loader:
        yield made.numpy(), seeds.numpy()


def packed(task: Task, processes: int) -> Iterator[Batch]:
    """From a PackedBatchDataset whose transform makes the batches."""

    def fn(batch: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {"made": task.produce(batch["seed"]), "seed": batch["seed"]}

    transform = PythonTransform(fn, batched=True, processes=processes)
    with PackedBatchDataset(task.path, task.rows, output="numpy", transform=transform) as dataset:
        for batch in dataset:
            yield batch.made, batch.seed
            del batch  # held here, the slot would come back one batch later


def write_seeds(path: str, rows: int) -> None:
    """A pack whose rows hold 0, 1, 2, ..."""
    with PackWriter(
        path, fields=(Field("seed", "<i8", ()),), rows=rows, block_rows=rows, format="h5"
    ) as writer:
        writer.write_block(0, (), {"seed": np.arange(rows)})
        writer.finish(rows=rows, ragged={})


WAYS: dict[str, Callable[[Task, int], Iterator[Batch]]] = {
    "serial": serial,
    "Queue": queued,
    "DataLoader": loaded,
    "packer": packed,
}


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def consume(way: Callable[[Task, int], Iterator[Batch]], task: Task, processes: int) -> Run:
    """Take all batches, checking each. Raises: AssertionError if one is not what it should be."""
    began = cpu_seconds()
    waits: list[float] = []
    seen: list[int] = []
    with closing(way(task, processes)) as batches:  # type: ignore[type-var]
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            got = time.perf_counter()
            waits.append(got - asked)
            made, seeds = batch
            del batch
            number = int(seeds[0]) // task.rows
            assert np.array_equal(seeds, task.seeds(number)), "seeds are not those of a batch"
            k = len(waits) % task.rows
            assert np.array_equal(made[k], task.sample(int(seeds[k]))), "a sample is not what its seed makes"
            seen.append(number)
            del made, seeds
            time.sleep(max(0.0, task.step - (time.perf_counter() - got)))
    assert sorted(seen) == list(range(task.batches)), "batches are missing"
    counted = waits[processes:] if processes < len(waits) else waits[1:]
    return Run(counted, waits[0], (cpu_seconds() - began) / task.batches)


def measure(task: Task, processes: int, rounds: int) -> dict[str, list[Run]]:
    """Each way, in turns."""
    ways = {
        "serial": partial(consume, serial, task, 1),
        "Queue x 1": partial(consume, queued, task, 1),
    }
    for name in islice(WAYS, 1, None):
        ways[f"{name} x {processes}"] = partial(consume, WAYS[name], task, processes)
    runs: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            runs[name].append(run())
    return runs


def report(runs: dict[str, list[Run]]) -> str:
    """The table, of all rounds together."""
    lines = [f"{'ms':16}{'mean wait':>11}{'median':>9}{'longest':>9}{'first':>9}{'CPU a batch':>13}"]
    for name, many in runs.items():
        waits = [1e3 * wait for run in many for wait in run.waits]
        first = 1e3 * statistics.median(run.first for run in many)
        cpu = 1e3 * statistics.median(run.cpu for run in many)
        lines.append(
            f"{name:16}{statistics.mean(waits):11.1f}{statistics.median(waits):9.1f}{max(waits):9.1f}"
            f"{first:9.0f}{cpu:13.0f}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run and print; see the module's text."""
    parser = argparse.ArgumentParser(description="How long a consumer waits for batches of a slow generator.")
    parser.add_argument("--processes", type=int, default=6, help="that make batches")
    parser.add_argument("--batches", type=int, default=24, help="a way and round")
    parser.add_argument("--rounds", type=int, default=1, help="of all ways, in turns")
    parser.add_argument(
        "--rows", type=int, default=64, help="samples a batch, of 3 x side x side float32 each"
    )
    parser.add_argument("--side", type=int, default=256, help="pixels")
    parser.add_argument("--sleep", type=float, default=0.5, help="seconds that the generator sleeps a batch")
    parser.add_argument("--step", type=float, default=0.1, help="seconds that the consumer takes a batch")
    given = parser.parse_args(arguments)
    nbytes = 4 * given.rows * 3 * given.side**2
    print(
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, NumPy {np.__version__};"
        f" {given.batches} batches of {nbytes / 2**20:.1f} MiB, {given.rounds} rounds; generator sleeps {given.sleep} s,"
        f" consumer takes {given.step} s"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "seeds.h5"))
        write_seeds(path, given.rows * given.batches)
        task = Task(path, given.rows, (3, given.side, given.side), given.batches, given.sleep, given.step)
        began = time.perf_counter()
        task.produce(task.seeds(0))
        alone = time.perf_counter() - began
        least = max(0.0, alone / given.processes - given.step)
        print(
            f"one batch takes {1e3 * alone:.0f} ms alone; {given.processes} processes need make nobody wait more than"
            f" {1e3 * least:.0f} ms\n"
        )
        print(report(measure(task, given.processes, given.rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
