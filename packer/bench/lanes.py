"""Lanes: ways to get batches, measured in turn, round after round, each beside its limit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from packer.bench.bench_report import LIMIT, MeasuredLane
from packer.bench.dataloader_rate import RowItems
from packer.format.pack import Pack
from packer.load.batch_dataset import PackedBatchDataset

ORDERS = ("sequential", "slices", "blocks", "rows")


class Limit(Protocol):
    """A rate that no loader can beat."""

    def rate(self, seconds: float) -> float:
        """Return batches a second over about that many seconds."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The source of a pack, and how it is loaded without a pack.

    source: as the user calls it; unit: "images" or "rows"; heading: both sides of the comparison, in a line; items: rows for a
    DataLoader, whose lane has the name; peers: other loaders of whole epochs of `peer_rows`; loading: options of our loader, for the
    same work; limit: of rows in the page cache, with its name; files: read for an epoch, none where the page cache cannot be emptied
    of them; stages: rows/s of parts of the baseline's work alone; notes: sentences; conditions: figures for the JSON.
    """

    source: str
    unit: str
    heading: str
    name: str
    items: RowItems
    limit_name: str
    limit: Limit
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
