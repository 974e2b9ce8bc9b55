"""Lanes: ways to get batches, measured in turn, round after round, each beside its limit; our loader, and torch's DataLoader."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from packer.bench.bench_report import LIMIT, MeasuredLane
from packer.format.pack import Pack
from packer.load.batch_dataset import PackedBatchDataset

_AT_ONCE = 1 << 15  # rows
ORDERS = ("sequential", "slices", "blocks", "rows")


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The source of a pack, and how it is loaded without a pack.

    source: as the user calls it; unit: "images" or "rows"; heading: both sides of the comparison, in a line; items: rows for a
    DataLoader, whose lane has the name; peers: other loaders of whole epochs of `peer_rows`; loading: options of our loader, for the
    same work; limit: measures for so many seconds how many batches/s nothing can beat, of rows in the page cache, with its name;
    files: read for an epoch, none where the page cache cannot be emptied of them; stages: rows/s of parts of the baseline's work
    alone; notes: sentences; conditions: figures for the JSON.
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
    stages: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Lane:
    """A way to be measured: its name, and functions that measure its rate and its limit now, in rows/s."""

    name: str
    measure: Callable[[], float]
    limit: Callable[[], float] | None = None
    rates: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)


def run_rounds(sections: Mapping[str, Sequence[Lane]], rounds: int, say: Callable[[str], None]) -> None:
    """Measure every lane in turn, `rounds` times over."""
    for number in range(1, rounds + 1):
        for title, lanes in sections.items():
            for lane in lanes:
                say(f"round {number} of {rounds}: {lane.name} ({title})")
                if lane.limit is not None:
                    lane.limits.append(lane.limit())
                lane.rates.append(lane.measure())


def measured(lanes: Sequence[Lane], limit_name: str = "") -> tuple[MeasuredLane, ...]:
    """Return the lanes of a section with their rates; the first one is the baseline. The limit, if there is one, comes last."""
    raw = tuple(lanes[0].rates)
    ways = [MeasuredLane(lane.name, tuple(lane.rates), raw, tuple(lane.limits) or None) for lane in lanes]
    limits = tuple(rate for lane in lanes for rate in lane.limits)
    return (*ways, MeasuredLane(LIMIT + limit_name, limits)) if limits else tuple(ways)


def epochs_rate(batches: Iterable[Any], rows: int, seconds: float) -> float:
    """Rows a second over whole epochs, for at least so long: what is done once an epoch counts as often as batches do."""
    began, epochs = time.perf_counter(), 0
    while not epochs or time.perf_counter() - began < seconds:
        deque(batches, maxlen=0)
        epochs += 1
    return epochs * rows / (time.perf_counter() - began)


class Packed:
    """Our loader in one order, made once and measured again and again, as a training run uses it. options: of the loader."""

    def __init__(self, pack: Pack, batch_size: int, order: str, *, threads: int, **options: Any) -> None:
        every_row = slice(None)  # whatever the splits
        self.batches = PackedBatchDataset(
            pack, batch_size, order=order, subset=every_row, threads=threads, placement="disk", **options
        )
        self._warm = False

    def rate(self, seconds: float) -> float:
        """Rows a second until the time is over, the beginnings of epochs included."""
        if not self._warm:  # the first epoch pays once for threads, slots and mapped pages
            deque(self.batches, maxlen=0)
            self._warm = True
        return self._rate(seconds, endless=True)

    def first_epoch(self, seconds: float) -> float:
        """Rows a second of the first epoch, as far as the time allows; the loader is closed afterwards."""
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
    """A batch sampler: shuffled epochs one after the other, whole batches only; endless if epochs is None."""

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
    """Rows a second that a DataLoader delivers once it runs; starting its workers is not counted.

    The clock starts when each worker could have delivered a batch. It stops after about `seconds`, at a whole number of
    batches a worker (they arrive in bursts of one each), or after `epochs`, of at least two batches each.
    """
    sampler: Any = _Epochs(len(items), batch_size, epochs)
    dataset: Any = items
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        # What Linux users have had by default; a forked worker shares the listing instead of making it again.
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


def worker_counts(cores: int) -> list[int]:
    """0, 1, 2, 4, … and the number of cores."""
    return sorted({0, cores, *(1 << k for k in range(cores.bit_length()))})


def best_workers(items: Sized, *, batch_size: int, counts: Sequence[int], seconds: float) -> int:
    """Return the worker count that delivers most rows a second."""
    return max(
        counts,
        key=lambda workers: loader_rate(items, batch_size=batch_size, workers=workers, seconds=seconds),
    )


def held_tensors(pack: Pack, fields: Sequence[str], rows: int, threads: int) -> list[torch.Tensor]:
    """Return the first rows of a pack: a tensor [rows, ...] of each field."""
    held: list[torch.Tensor] = []
    at = 0
    with PackedBatchDataset(
        pack, _AT_ONCE, fields=fields, subset=slice(rows), threads=threads, placement="disk"
    ) as batches:
        for batch in batches:
            held = held or [torch.empty(rows, *t.shape[1:], dtype=t.dtype) for t in batch]
            for part, tensor in zip(held, batch, strict=True):
                part[at : at + len(tensor)] = tensor
            at += len(batch[0])
    return held
