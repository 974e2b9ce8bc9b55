"""bench(): compares loading from a pack with loading its source, and both with the machine's limits.

Every round measures all lanes in turn, and ratios are taken within a round, so that a slow phase of the
machine affects both sides. The limit is measured immediately before each of packer's lanes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from packer import units
from packer.bench import hardware_limits
from packer.bench.bench_report import BenchReport, MeasuredLane
from packer.bench.diagnosis import diagnose
from packer.bench.hardware_limits import drop, machine, read_rate, resident_share, versions
from packer.bench.image_baseline import image_baseline
from packer.bench.lanes import (
    ORDERS,
    Baseline,
    Lane,
    Packed,
    best_workers,
    epochs_rate,
    item_seconds,
    loader_rate,
    measured,
    run_rounds,
    worker_counts,
)
from packer.bench.table_baseline import table_baseline
from packer.errors import UsageError
from packer.given_values import call_text
from packer.machine import cores, memory
from packer.packs.pack import Pack
from packer.packs.pack_opening import check_order, open_pack
from packer.path_text import as_text
from packer.progress import Progress

BAR = "{desc}: {percentage:3.0f}%|{bar}| {remaining} left"
COLD_ORDERS = ORDERS[:3]
FEW_PAGES = 0.1  # share of pages that the kernel may keep while it uses them (6 % right after a write)


def bench(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    pack: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    rounds: int = 3,
    seconds: float = 1.0,
    workers: Sequence[int] | None = None,
    cold: bool = True,
    progress: bool = False,
    model_rate: float | None = None,
) -> BenchReport:
    """Measure batches per second from images or a table, from their pack, and at the machine's limit.

    source: the images, or the files of the table, that the pack was converted from.
    pack: a pack of raw or JPEG images, or of a table.
    batch_size: rows a batch; default 256, for tables 1,024; reduced if the pack has fewer than four batches.
    rounds: measurements of each lane; seconds: duration of each measurement.
    workers: worker counts to try for the DataLoader, of which the fastest is reported;
        default 0, 1, 2, 4, … up to the cores.
    cold: images only: also measure with an empty page cache.
    progress: say on stderr how long it will take, then show a bar, or a line a minute if stderr is no
        terminal.
    model_rate: rows/s of a model that never waits, if known.

    Raises UsageError (a number is out of range, or the pack cannot be compared), FormatError (no pack),
    SourceError (no source), PackerError (the pack was converted from another source). Ends all its worker
    processes and threads.
    """
    given = {"batch_size": batch_size, "rounds": rounds, "seconds": seconds, "model_rate": model_rate}
    for name, number in given.items():
        if number is not None and not 0 < number < math.inf:
            raise UsageError(f"{name}={number}: is not a number above 0. Pass another one.")
    if any(n < 0 for n in workers or ()):
        raise UsageError(f"workers={workers}: counts below 0 are not allowed. Pass other numbers.")
    check_order(pack, source, call_text("bench", os.fspath(pack), str(source)))
    opened, threads = open_pack(pack), min(4, cores())
    is_table = opened.header.table is not None
    wanted = batch_size or (1024 if is_table else 256)
    size = max(1, min(wanted, opened.rows // 4))
    open_baseline = table_baseline if is_table else image_baseline
    with Progress(progress) as bar:
        bar.say("comparing rows")
        with open_baseline(source, opened, size, threads) as baseline:
            run = _Run(opened, baseline, size, threads, rounds, seconds, bar)
            if size < wanted:
                run.notes.append(
                    f"batches of {size:,} instead of {wanted:,}: a quarter of the pack's rows, at most."
                )
            run.measure(sorted(set(workers or worker_counts(cores()))), cold)
    report = run.report()
    return replace(report, diagnosis=diagnose(report, step_rate=model_rate))


@dataclass
class _Run:
    """A benchmark of one pack, with its results so far. done: measurements so far, which `bar` shows."""

    pack: Pack
    base: Baseline
    batch_size: int
    threads: int
    rounds: int
    seconds: float
    bar: Progress
    done: int = 0
    sections: dict[str, tuple[MeasuredLane, ...]] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def measure(self, workers: Sequence[int], cold: bool) -> None:
        """Say how long it will take, and measure all sections.

        workers: worker counts to try for the DataLoader.
        """
        if cold and (reason := self._not_cold()):
            self.notes.append(f"cold page cache: {reason}; not measured.")
            cold = False
        beside_limit = 2 * len(ORDERS) + cold * 2 * len(COLD_ORDERS)
        loaders = len(workers) + self.rounds * (1 + cold)
        count = loaders + len(self.base.stages) + self.rounds * (len(self.base.peers) + beside_limit)
        # A DataLoader's clock starts after its first batches and stops after complete ones.
        batch_seconds = item_seconds(self.base.items) * self.batch_size
        about = units.duration(math.ceil(count * self.seconds + loaders * 2 * batch_seconds))
        self.bar.print(f"takes about {about}: {count} measurements of {self.seconds:g} s")
        self.bar.start(count, "measurements", bar_format=BAR)
        raw = self.measure_warm(workers)
        if cold:
            self.measure_cold(raw)

    def _say(self, text: str) -> None:
        """Show the next measurement."""
        self.bar.move(self.done)
        self.bar.say(text)
        self.done += 1

    def measure_warm(self, workers: Sequence[int]) -> Lane:
        """Measure all lanes with a full page cache. Returns the DataLoader's lane, limited to one epoch.

        workers: worker counts to try for the DataLoader.
        """
        base, size, seconds = self.base, self.batch_size, self.seconds
        files = [*_pack_files(self.pack), *base.files]
        if sum(map(os.path.getsize, files)) > memory() // 2:
            self.notes.append(
                "warm page cache: source and pack are larger than half of the memory;"
                " some reads go to the disk."
            )
        else:
            self.bar.say("reading source and pack into the page cache")
            read_rate(files, self.threads, float("inf"))
        for name, stage in base.stages.items():
            self._say(f"{name} alone")
            self.stages[name] = stage(seconds)
        count = best_workers(base.items, batch_size=size, counts=workers, seconds=seconds, say=self._say)
        rate = partial(loader_rate, base.items, batch_size=size, workers=count, seconds=seconds)
        raw = Lane(f"{base.name}, {units.count(count, 'worker')}", rate)
        peers = [
            Lane(name, partial(epochs_rate, batches, base.peer_rows, seconds))
            for name, batches in base.peers.items()
        ]
        packed = {order: self._packed(order) for order in ORDERS}
        ours = [
            Lane(f"packed, {order}", partial(loader.rate, seconds), lambda: base.limit(seconds) * size)
            for order, loader in packed.items()
        ]
        self._measure("warm page cache", [raw, *peers, *ours], base.limit_name)
        for loader in packed.values():
            loader.batches.close()  # mapped pages cannot be dropped from the page cache
        return Lane(raw.name, partial(rate, epochs=1))

    def measure_cold(self, raw: Lane) -> None:
        """Measure with an empty page cache.

        raw: the DataLoader's lane of one epoch.
        """
        sizes, seconds = _pack_files(self.pack), self.seconds
        names = list(sizes)
        drop(names)
        if (share := resident_share(names[0])) is None or share > FEW_PAGES:
            self.notes.append(
                "cold page cache: the system kept pages of the pack; cold rates may be too high."
            )
        row_bytes = sum(sizes.values()) / self.pack.rows
        limit = partial(_cold, names, lambda: read_rate(names, self.threads, seconds) / row_bytes)
        lanes = [Lane(raw.name, partial(_cold, self.base.files, raw.measure))]
        for order in COLD_ORDERS:
            first = partial(lambda order: self._packed(order).first_epoch(seconds), order)
            lanes.append(Lane(f"packed, {order}", partial(_cold, names, first), limit))
        self._measure("cold page cache", lanes, "plain reads")

    def _not_cold(self) -> str | None:
        """Return the reason why nothing can be measured with an empty page cache, if any."""
        if not hardware_limits.CAN_DROP:
            return "this system cannot empty it"
        return None if self.base.files else f"{self.base.source} is not read file by file"

    def report(self) -> BenchReport:
        """Return the results as a report."""
        base, path = self.base, as_text(self.pack.path)
        about = {"threads": self.threads, "packed_bytes": self.pack.nbytes, "stages": self.stages}
        return BenchReport(
            source=base.source,
            pack=path,
            heading=f"{base.source} beside {path}: {base.heading}, batches of {self.batch_size:,}",
            unit=base.unit,
            rows=self.pack.rows,
            batch_size=self.batch_size,
            rounds=self.rounds,
            seconds=self.seconds,
            sections=self.sections,
            conditions={**machine(), "versions": versions(), **about, **base.conditions},
            notes=(*base.notes, *self.notes),
        )

    def _packed(self, order: str) -> Packed:
        return Packed(self.pack, self.batch_size, order, threads=self.threads, **self.base.loading)

    def _measure(self, title: str, lanes: Sequence[Lane], limit: str) -> None:
        run_rounds({title: lanes}, self.rounds, self._say)
        self.sections[title] = measured(lanes, f"{limit}, {units.count(self.threads, 'thread')}")


def _cold(files: Sequence[str], measure: Callable[[], float]) -> float:
    drop(files)
    return measure()


def _pack_files(pack: Pack) -> Mapping[str, int]:
    """Return the files with image or table rows, largest first, each with the bytes of rows in it.

    Ragged fields are left out, except images of different sizes.
    """
    sizes: dict[str, int] = {}
    for f in pack.fields:
        if f.loaded.ragged and f.own_size is None:
            continue
        for extent in (extent for array in f.arrays for extent in pack.header.extents[array]):
            sizes[pack.file(extent)] = sizes.get(pack.file(extent), 0) + extent.nbytes
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))
