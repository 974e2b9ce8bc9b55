"""Measures a user's training script: the rate of its loop, and of its step when batches are ready.

The script runs unchanged in a separate process. The first loader (PackedBatchDataset, or torch's DataLoader)
that yields enough batches is measured for some seconds. Then the loop gets the last 8 of these batches
repeatedly, as from an infinitely fast loader, for as long. Then the script is ended.
"""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import runpy
import shlex
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

from packer.errors import PackerError, UsageError
from packer.format.file_io import write_file
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.stats import Stats
from packer.starting import python_command

WARM_UP = 5  # batches before the measurement, while kernels are compiled and workers started
LEAST = 8  # batches measured, at least
KEPT = 8  # batches repeated for the step alone
PROFILED_SECONDS = 1.0
WAITS = 0.5  # share of reading time: threads with less processor time wait for a disk or a network
_STAGES = {
    "decoding": ("decod", "imread", "read_image", "decompress", "jpeg"),
    "reading": ("read", "open", "posix.", "stat", "seek"),
    "resizing": ("resize", "resample", "interpolate"),
}


@dataclass(frozen=True)
class LoopReport:
    """Figures of a loop. Rates in rows/s.

    loader: "PackedBatchDataset" or "DataLoader".
    rate: rate of the unchanged loop; step_rate: rate when batches are always ready.
    waiting: share of the time in which the loop waited for batches.
    stages: name -> seconds of the loader's work: for one row of a DataLoader, for all measured batches of a
        PackedBatchDataset.
    """

    loader: str
    rate: float
    step_rate: float
    waiting: float
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def limit(self) -> str:
        """The slowest stage; "Python" if none is known."""
        return max(self.stages, key=lambda name: self.stages[name], default="Python")


def measure_script(command: str, seconds: float) -> LoopReport:
    """Run a script and measure its loop. command: its path and arguments, as in a shell.

    Raises UsageError (no such file), PackerError (the script failed, or took too few batches).
    """
    words = shlex.split(command)
    if not words or not os.path.isfile(words[0]):
        raise UsageError(
            f"script {command!r}: is no file. Pass a training script in Python and its arguments."
        )
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "loop.json")
        done = subprocess.run(
            python_command(f"from {__name__} import main; main()", report, str(seconds), *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if os.path.exists(report):
            with open(report, encoding="utf-8") as file:
                return LoopReport(**json.load(file))
    if done.returncode:
        last_line = (done.stdout.strip().splitlines() or ["it printed nothing"])[-1]
        raise PackerError(
            f"{words[0]}: ended with exit code {done.returncode}: {last_line}."
            f" To see all that it prints, run python {command}"
        )
    raise PackerError(
        f"{words[0]}: took fewer than {WARM_UP + 2 * LEAST} batches (or less than {2 * seconds:g} s) from a"
        " PackedBatchDataset or a DataLoader of its own process."
        " Pass arguments with which it trains for longer."
    )


class _MeasuredError(BaseException):
    """Ends the script; a BaseException, so that the script's handlers do not catch it."""


class _Loop:
    """Measures the loop over one loader, across epochs."""

    def __init__(self, loader: Any, seconds: float) -> None:
        self.loader, self._seconds = loader, seconds
        self.waited = self.stepped = 0.0
        self.rows = self.batches = 0
        self.step_seconds, self.step_rows = 0.0, 0
        self._replayed = 0
        self._last: deque[Any] = deque(maxlen=KEPT)
        self.stages: dict[str, float] = {}

    def over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield an epoch's batches; once enough of them are measured, repeat the last ones until the end."""
        processor = _other_threads()
        while not self._enough(self.batches - WARM_UP, self.waited + self.stepped):
            if self.batches == WARM_UP:
                self.waited, self.rows = 0.0, 0
                self.stepped = -_synchronised()
            began = time.perf_counter()
            try:
                batch = next(batches)
            except StopIteration:
                return
            came = time.perf_counter()
            self.waited += came - began
            self._last.append(batch)
            yield batch
            self.stepped += time.perf_counter() - came
            self.batches += 1
            self.rows += rows_of(batch)
        self.stepped += _synchronised()
        if isinstance(self.loader, PackedBatchDataset):
            stats = self.loader.stats()
            self.stages = {
                self._reading(stats, _other_threads() - processor): stats.read_seconds / stats.readers,
                "transform": stats.transform_seconds / stats.processes,
                "copy": stats.copy_seconds,
                "augmenting": stats.augment_seconds,
            }
        began = time.perf_counter()
        while not self._enough(self._replayed, time.perf_counter() - began):
            batch = self._last[self._replayed % len(self._last)]
            yield batch
            self._replayed += 1
            self.step_rows += rows_of(batch)
        _synchronised()
        self.step_seconds = time.perf_counter() - began
        raise _MeasuredError

    def _reading(self, stats: Stats, processor: float) -> str:
        """Return what mainly limits reading: "store", "disk", "decoding" or "memory".

        processor: seconds of processor time of the reading threads.
        """
        pack = self.loader.pack
        if processor < WAITS * stats.read_seconds:
            return "store" if "://" in pack.path else "disk"
        return "decoding" if any(f.codec is not None for f in pack.fields) else "memory"

    def _enough(self, batches: int, seconds: float) -> bool:
        return batches >= LEAST and seconds >= self._seconds

    def report(self) -> LoopReport:
        """Return the figures; for a DataLoader, profile its dataset's rows first."""
        ours, total = isinstance(self.loader, PackedBatchDataset), self.waited + self.stepped
        return LoopReport(
            loader="PackedBatchDataset" if ours else "DataLoader",
            rate=self.rows / total,
            step_rate=self.step_rows / self.step_seconds,
            waiting=self.waited / total,
            stages=self.stages if ours else profile_rows(self.loader.dataset),
        )


def rows_of(batch: Any) -> int:
    """Return the rows of a batch: the length of its first array or list; 1 if it has none."""
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    while isinstance(batch, list | tuple) and batch and hasattr(batch[0], "__len__"):
        batch = batch[0]
    try:
        return max(1, len(batch))
    except TypeError:
        return 1


def profile_rows(dataset: Any) -> dict[str, float]:
    """Profile a map-style dataset for a second. Returns the seconds a row of each stage.

    Returns nothing for a dataset without access by row number.
    """
    try:
        size = len(dataset)
        dataset[0]  # work that only the first row causes
    except Exception:
        return {}
    profiler, rows, began = cProfile.Profile(), 0, time.perf_counter()
    with profiler:
        while time.perf_counter() - began < PROFILED_SECONDS:
            dataset[rows * 7919 % size]
            rows += 1
    stages: dict[str, float] = {}
    timings: Mapping[tuple[str, int, str], Any] = vars(pstats.Stats(profiler))["stats"]
    for (file, _, function), (_, _, own, _, _) in timings.items():
        stage = stage_of(function if file == "~" else "")
        stages[stage] = stages.get(stage, 0.0) + own / rows
    return stages


def stage_of(function: str) -> str:
    """Return the stage of a C function, by its name; "Python" for any other."""
    name = function.lower()
    return next((stage for stage, words in _STAGES.items() if any(word in name for word in words)), "Python")


def _other_threads() -> float:
    """Return seconds of processor time of all threads except this one."""
    return time.process_time() - time.thread_time()


def _synchronised() -> float:
    """Wait for the GPU if it is in use. Returns the seconds waited."""
    began = time.perf_counter()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _measure(report: str, seconds: float, words: list[str]) -> None:
    """Run the script with measured loaders, and write the report of the first loop with enough batches."""
    loops: dict[int, _Loop] = {}
    asked: list[_Loop] = []  # loops getting a batch now: an inner loader is part of the outer loop's work

    def measured(plain: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        def iterate(loader: Any) -> Iterator[Any]:
            batches = iter(plain(loader))
            if asked:
                return batches
            # Some scripts construct a DataLoader for each epoch, over the same dataset.
            source = loader.dataset if isinstance(loader, DataLoader) else loader
            loop = loops.setdefault(id(source), _Loop(loader, seconds))
            return loop.over(_outermost(batches, asked, loop))

        return iterate

    for kind in (PackedBatchDataset, DataLoader):
        kind.__iter__ = measured(kind.__iter__)  # type: ignore[method-assign]
    sys.argv = words
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except _MeasuredError:
        asked.append(next(iter(loops.values())))  # disables further measuring
        loop = next(loop for loop in loops.values() if loop.step_seconds)
        text = json.dumps(asdict(loop.report()))
        write_file(report, text.encode())


def _outermost(batches: Iterator[Any], asked: list[_Loop], loop: _Loop) -> Iterator[Any]:
    while True:
        asked.append(loop)
        try:
            batch = next(batches)
        except StopIteration:
            return
        finally:
            asked.pop()
        yield batch


def main() -> None:
    """Measure in a separate process. Arguments: the report's path, seconds, the script's command."""
    _measure(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
