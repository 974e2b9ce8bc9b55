"""Lanes: ways to get batches, measured in rounds; packer's loader and torch's DataLoader."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from packer import units
from packer.bench.bench_report import LIMIT, MeasuredLane
from packer.load.batch_dataset import PackedBatchDataset
from packer.packs.pack import Pack

_AT_ONCE = 1 << 15  # rows
_TIMED_ITEMS = 9
ORDERS = ("sequential", "slices", "blocks", "rows")


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The source of a pack, and how it is loaded without a pack.

    source: its name, as the user wrote it.
    unit: the noun for a row, "images" or "rows".
    heading: both sides of the comparison, in a line.
    name, items: name of the DataLoader's lane, whose first words, up to a comma, head the column of ratios;
        and its dataset.
    limit_name, limit: a function of `seconds` that measures the most batches/s, for rows in the page cache.
    peers: other loaders, each of whole epochs of `peer_rows`.
    loading: options with which packer's loader does the same work.
    files: read in an epoch; empty where the page cache cannot be emptied of them.
    stages: functions of `seconds` that measure rows/s of parts of the baseline's work alone.
    notes: sentences; conditions: figures for the JSON.
    """

    source: str
    unit: str
    heading: str
    name: str
    items: Sized
    limit_name: str
    limit: Callable[[float], float]
    peers: Mapping[str, Iterable[Any]] = field(default_factory=dict)
    peer_rows: int = 0
    loading: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[str] = ()
    stages: Mapping[str, Callable[[float], float]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Lane:
    """A named way to get batches, with functions that measure its rate and its limit, in rows/s."""

    name: str
    measure: Callable[[], float]
    limit: Callable[[], float] | None = None
    rates: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)


def run_rounds(sections: Mapping[str, Sequence[Lane]], rounds: int, say: Callable[[str], None]) -> None:
    """Measure every lane in turn, `rounds` times over. say: called before each measurement."""
    for _ in range(rounds):
        for title, lanes in sections.items():
            for lane in lanes:
                if lane.limit is not None:
                    say(f"{title}: limit")
                    lane.limits.append(lane.limit())
                say(f"{title}: {lane.name}")
                lane.rates.append(lane.measure())


def measured(lanes: Sequence[Lane], limit_name: str = "") -> tuple[MeasuredLane, ...]:
    """Return a section's lanes with their rates. The first is the baseline; a limit, if any, comes last."""
    raw = tuple(lanes[0].rates)
    ways = [MeasuredLane(lane.name, tuple(lane.rates), raw, tuple(lane.limits) or None) for lane in lanes]
    limits = tuple(rate for lane in lanes for rate in lane.limits)
    return (*ways, MeasuredLane(LIMIT + limit_name, limits)) if limits else tuple(ways)


def epochs_rate(batches: Iterable[Any], rows: int, seconds: float) -> float:
    """Return rows per second over complete epochs, for at least `seconds`.

    Work that is done once an epoch is therefore counted in proportion.
    """
    began, epochs = time.perf_counter(), 0
    while not epochs or time.perf_counter() - began < seconds:
        deque(batches, maxlen=0)
        epochs += 1
    return epochs * rows / (time.perf_counter() - began)


class Packed:
    """Packer's loader in one order, constructed once and measured repeatedly, as a training run uses it.

    options: of the loader.
    """

    def __init__(self, pack: Pack, batch_size: int, order: str, *, threads: int, **options: Any) -> None:
        every_row = slice(None)  # of all splits
        self.batches = PackedBatchDataset(
            pack, batch_size, order=order, subset=every_row, threads=threads, placement="disk", **options
        )
        self._warm = False

    def rate(self, seconds: float) -> float:
        """Return rows per second until `seconds` are over, including the starts of epochs."""
        if not self._warm:  # the first epoch starts threads, allocates slots and maps pages
            deque(self.batches, maxlen=0)
            self._warm = True
        return self._rate(seconds, endless=True)

    def first_epoch(self, seconds: float) -> float:
        """Return rows per second of the first epoch, for at most `seconds`; closes the loader."""
        with self.batches:
            return self._rate(seconds, endless=False)

    def _rate(self, seconds: float, *, endless: bool) -> float:
        rows, started = 0, time.perf_counter()
        while True:
            for batch in self.batches:
                rows += len(batch[0])
                if time.perf_counter() - started >= seconds:
                    return rows / (time.perf_counter() - started)
            if not endless:
                return rows / (time.perf_counter() - started)


class _Epochs:
    """A batch sampler of consecutive shuffled epochs, full batches only; endless if `epochs` is None."""

    def __init__(self, rows: int, batch_size: int, epochs: int | None) -> None:
        self._rows, self._batch_size, self._epochs = rows, batch_size, epochs

    def __iter__(self) -> Iterator[list[int]]:
        epoch = 0
        while self._epochs is None or epoch < self._epochs:
            order = np.random.default_rng(epoch).permutation(self._rows).tolist()
            for start in range(0, self._rows - self._batch_size + 1, self._batch_size):
                yield order[start : start + self._batch_size]
            epoch += 1


def loader_rate(
    items: Sized, *, batch_size: int, workers: int, seconds: float, epochs: int | None = None
) -> float:
    """Return rows per second of a running DataLoader; the start of its workers is not counted.

    The clock starts once each worker can have delivered a batch. It stops after about `seconds`, at a
    multiple of one batch a worker (batches arrive in such bursts), or after `epochs` of at least two batches
    each.
    """
    sampler: Any = _Epochs(len(items), batch_size, epochs)
    dataset: Any = items
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        # The long-time default on Linux; a forked worker shares the listing instead of repeating it.
        multiprocessing_context="fork" if workers else None,
    )
    burst = max(1, workers)
    skipped = burst if epochs is None else min(burst, epochs * (len(items) // batch_size) // 2)
    batches = iter(loader)
    for _ in range(skipped):
        next(batches)
    count = 0
    started = time.perf_counter()
    for _ in batches:
        count += 1
        if count % burst == 0 and time.perf_counter() - started >= seconds:
            break
    elapsed = time.perf_counter() - started
    del batches  # ends the workers
    return count * batch_size / elapsed


def item_seconds(items: Any) -> float:
    """Return the seconds that a dataset takes for an item: the median of a few."""
    seconds = []
    for item in range(min(len(items), _TIMED_ITEMS)):
        began = time.perf_counter()
        items[item]
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def worker_counts(cores: int) -> list[int]:
    """Return 0, 1, 2, 4, … and the number of cores."""
    return sorted({0, cores, *(1 << k for k in range(cores.bit_length()))})


def best_workers(
    items: Sized, *, batch_size: int, counts: Sequence[int], seconds: float, say: Callable[[str], None]
) -> int:
    """Return the worker count with the highest rate. say: called before each measurement."""

    def rate(workers: int) -> float:
        say(f"DataLoader, {units.count(workers, 'worker')}")
        return loader_rate(items, batch_size=batch_size, workers=workers, seconds=seconds)

    return max(counts, key=rate)


def held_tensors(pack: Pack, fields: Sequence[str], rows: int, threads: int) -> list[torch.Tensor]:
    """Return the first rows of a pack in memory, a tensor [rows, ...] for each field."""
    held: list[torch.Tensor] = []
    at = 0
    with PackedBatchDataset(
        pack, _AT_ONCE, fields=fields, subset=slice(rows), threads=threads, placement="disk"
    ) as batches:
        for batch in batches:
            held = held or [torch.empty(rows, *t.shape[1:], dtype=t.dtype, device="cpu") for t in batch]
            for part, tensor in zip(held, batch, strict=True):
                part[at : at + len(tensor)] = tensor
            at += len(batch[0])
    return held
