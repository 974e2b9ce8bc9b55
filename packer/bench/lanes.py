"""The frame of a benchmark: ways to get batches, measured in turn, round after round, each beside its limit, and told once."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from packer import units
from packer.augment import Transform
from packer.bench.bench_report import BenchReport, MeasuredLane
from packer.bench.conditions import machine, versions
from packer.bench.dataloader_rate import RowItems, best_workers, loader_rate, worker_counts
from packer.bench.diagnosis import diagnose
from packer.bench.hardware_limits import CopyLimit
from packer.bench.training_loop import measure_script
from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack, open_pack
from packer.load.batch_dataset import PackedBatchDataset
from packer.machine import cores
from packer.path_text import as_text
from packer.sentence import Option, Sentence

LOOP_TIMES = 3  # a training loop is measured for longer: its steps differ more
ORDERS = ("sequential", "slices", "blocks", "rows")
_Report = TypeVar("_Report", bound=BenchReport)


class Limit(Protocol):
    """A rate that no loader can beat."""

    def rate(self, seconds: float) -> float:
        """Return batches a second over about that many seconds."""


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
    return (*ways, MeasuredLane(limit_name, limits)) if limits else tuple(ways)


class Packed:
    """Our loader in one order, made once and measured again and again, as a training run uses it."""

    def __init__(
        self,
        pack: Pack,
        batch_size: int,
        order: str,
        *,
        threads: int,
        augment: Sequence[Transform] | None = None,
        fields: Sequence[str] | None = None,
    ) -> None:
        self.batches = PackedBatchDataset(
            pack,
            batch_size,
            order=order,
            augment=augment,
            fields=fields,
            subset=slice(None),  # every row, whatever the splits
            threads=threads,
            placement="disk",
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


class BenchRun:
    """A benchmark of one pack: its settings, the lanes that images and tables have alike, and what was measured.

    batch_size: fewer rows if that would not give four batches. Raises UsageError (a number is out of range), FormatError (no pack).
    """

    def __init__(
        self,
        pack: Any,
        batch_size: int,
        rounds: int,
        seconds: float,
        workers: Sequence[int] | None,
        progress: Callable[[str], None] | None,
        script: str | None = None,
        model_rate: float | None = None,
    ) -> None:
        if script is not None and model_rate is not None:
            raise UsageError(
                Option("model_rate") + " is what " + Option("script") + " finds out. Pass one of them."
            )
        if model_rate is not None and not model_rate > 0:
            raise UsageError(
                Sentence(Option("model_rate", model_rate), ": is no rate in rows a second. Pass more than 0.")
            )
        if batch_size < 1 or rounds < 1 or seconds <= 0 or any(count < 0 for count in workers or ()):
            raise UsageError(
                f"bench: batch_size={batch_size}, rounds={rounds}, seconds={seconds}, workers={workers};"
                " at least 1, at least 1, more than 0 and at least 0 are allowed. Pass other numbers."
            )
        self.say = progress or (lambda _: None)
        self.pack = open_pack(pack)
        self.batch_size = max(1, min(batch_size, self.pack.rows // 4))
        self.rounds, self.seconds = rounds, seconds
        self.threads = min(4, cores())
        self.row_bytes = sum(f.row_bytes for f in fixed_fields(self.pack))  # of a row in a batch
        self._script, self._model_rate = script, model_rate
        self._workers = sorted(set(workers or worker_counts(cores())))
        self._sections: dict[str, tuple[MeasuredLane, ...]] = {}
        self.notes: list[str] = []

    def best_loader(self, name: str, items: RowItems) -> tuple[str, Callable[..., float]]:
        """Try a DataLoader with each number of workers. Returns the lane's name, and a function of items that measures the fastest."""
        self.say(f"{name} with {', '.join(map(str, self._workers))} workers")
        size, seconds = self.batch_size, self.seconds
        count = best_workers(items, batch_size=size, counts=self._workers, seconds=seconds)
        rate = partial(loader_rate, batch_size=size, workers=count, seconds=seconds)
        return f"{name}, {units.count(count, 'worker')}", rate

    def packed(self, order: str, **options: Any) -> Packed:
        """Return packer's loader in one order."""
        return Packed(self.pack, self.batch_size, order, threads=self.threads, **options)

    def copy_limit(self, threads: int) -> CopyLimit:
        """Return the limit of what comes from memory."""
        return CopyLimit(self.batch_size * self.row_bytes, self.pack.rows * self.row_bytes, threads)

    def packed_lanes(self, loaders: Mapping[str, Packed], limit: Limit) -> list[Lane]:
        """Return the lanes of loaders by their orders, each beside the limit."""
        return [
            Lane(
                f"packed, {order}",
                partial(loader.rate, self.seconds),
                lambda: limit.rate(self.seconds) * self.batch_size,
            )
            for order, loader in loaders.items()
        ]

    def measure(self, sections: Mapping[str, Sequence[Lane]], limit: str) -> None:
        """Measure the lanes of some sections. limit: its name, without its number of threads."""
        run_rounds(sections, self.rounds, self.say)
        for title, lanes in sections.items():
            self._sections[title] = measured(lanes, f"limit: {limit}")

    def report(
        self, kind: type[_Report], more_versions: Mapping[str, str], conditions: Mapping[str, Any], **own: Any
    ) -> _Report:
        """Return the report, with what limits. more_versions, conditions: besides those of every benchmark; own: fields of this kind."""
        loop = None
        if self._script is not None:
            self.say(self._script)
            loop = measure_script(self._script, LOOP_TIMES * self.seconds)
        report = kind(
            pack=as_text(self.pack.path),
            rows=self.pack.rows,
            batch_size=self.batch_size,
            rounds=self.rounds,
            seconds=self.seconds,
            sections=self._sections,
            conditions={
                **machine(),
                "versions": {**versions(), **more_versions},
                "threads": self.threads,
                **conditions,
            },
            notes=tuple(self.notes),
            **own,
        )
        coded = [f.codec["name"] for f in self.pack.fields if f.codec is not None]
        diagnosis = diagnose(
            report,
            cores=os.cpu_count() or 1,
            stored=coded[0] if coded else "raw",
            loop=loop,
            step_rate=self._model_rate,
        )
        return replace(report, diagnosis=diagnosis)


def fixed_fields(pack: Pack) -> list[Field]:
    """Return the fields of one length, as they are loaded."""
    return [f.loaded for f in pack.fields if not f.loaded.ragged]


def pack_files(pack: Pack) -> dict[str, int]:
    """Return the files that hold the rows of these fields and of whole pictures, largest first, and how many bytes each has of them."""
    sizes: dict[str, int] = {}
    for f in pack.fields:
        if f.loaded.ragged and f.own_size is None:
            continue
        for extent in (extent for array in f.arrays for extent in pack.header.extents[array]):
            sizes[pack.file(extent)] = sizes.get(pack.file(extent), 0) + extent.nbytes
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))
