"""A user's own training script, measured: the rate of its loop, and what its step would do with batches at hand.

The script runs as it is, in a process of its own. The first loader that it takes enough batches from (PackedBatchDataset, or
torch's DataLoader) is measured for some seconds; then the loop gets the last of these batches again and again, as an infinitely
fast loader would give them, for as long. Then the script is ended.
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
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.stats import Stats
from packer.starting import python_command

WARM_UP = 5  # batches that are not measured: kernels are compiled, workers started
LEAST = 8  # batches measured, at least
KEPT = 8  # batches handed out again and again
PROFILED_SECONDS = 1.0
WAITS = 0.5  # of the time that threads read: with less processor time they wait for a disk or a network
_STAGES = {
    "decoding": ("decod", "imread", "read_image", "decompress", "jpeg"),
    "reading": ("read", "open", "posix.", "stat", "seek"),
    "resizing": ("resize", "resample", "interpolate"),
}


@dataclass(frozen=True)
class LoopReport:
    """Figures of a loop. Rates in rows/s.

    loader: "PackedBatchDataset" or "DataLoader"; rate: of the loop as it is; step_rate: with batches at hand; waiting: the share of
    the time in which the loop waited for batches; stages: seconds that parts of the loader's work take, those of one row of a
    DataLoader, those of all batches measured of ours, by name.
    """

    loader: str
    rate: float
    step_rate: float
    waiting: float
    stages: Mapping[str, float] = field(default_factory=dict)

    @property
    def limit(self) -> str:
        """The stage that takes longest; "Python" if none is known."""
        return max(self.stages, key=lambda name: self.stages[name], default="Python")


def measure_script(command: str, seconds: float) -> LoopReport:
    """Run a script and measure its loop. command: its path and arguments, as in a shell.

    Raises UsageError (no such file), PackerError (it failed, or took too few batches).
    """
    words = shlex.split(command)
    if not words or not os.path.isfile(words[0]):
        raise UsageError(
            f"script {command!r}: is no file. Pass a training script in Python and its arguments."
        )
    with tempfile.TemporaryDirectory() as folder:
        found = os.path.join(folder, "loop.json")
        done = subprocess.run(
            python_command(f"from {__name__} import main; main()", found, str(seconds), *words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if os.path.exists(found):
            with open(found, encoding="utf-8") as file:
                return LoopReport(**json.load(file))
    if done.returncode:
        said = (done.stdout.strip().splitlines() or ["it printed nothing"])[-1]
        raise PackerError(
            f"{words[0]}: ended with exit code {done.returncode}: {said}. To see all that it prints, run python {command}"
        )
    raise PackerError(
        f"{words[0]}: took no {WARM_UP + 2 * LEAST} batches from a PackedBatchDataset or a DataLoader of its own process."
        " Pass arguments with which it trains for longer."
    )


class _MeasuredError(BaseException):
    """Ends the script, through whatever it catches."""


class _Loop:
    """Measures the loop over one loader, over as many epochs as it takes."""

    def __init__(self, loader: Any, seconds: float) -> None:
        self.loader, self._seconds = loader, seconds
        self.waited = self.stepped = 0.0
        self.rows = self.batches = 0
        self.step_seconds, self.step_rows = 0.0, 0
        self._replayed = 0
        self._last: deque[Any] = deque(maxlen=KEPT)
        self.stages: dict[str, float] = {}

    def over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of an epoch, then, once enough of them were measured, the last ones without end."""
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
        """Return what reading is, mostly: "store", "disk", "decoding" or "memory". processor: seconds, of the threads that read."""
        pack = self.loader.pack
        if processor < WAITS * stats.read_seconds:
            return "store" if "://" in pack.path else "disk"
        return "decoding" if any(f.codec is not None for f in pack.fields) else "memory"

    def _enough(self, batches: int, seconds: float) -> bool:
        return batches >= LEAST and seconds >= self._seconds

    def report(self) -> LoopReport:
        """Return what was measured, the work for a row of a DataLoader looked into now."""
        ours, total = isinstance(self.loader, PackedBatchDataset), self.waited + self.stepped
        return LoopReport(
            loader="PackedBatchDataset" if ours else "DataLoader",
            rate=self.rows / total,
            step_rate=self.step_rows / self.step_seconds,
            waiting=self.waited / total,
            stages=self.stages if ours else profile_rows(self.loader.dataset),
        )


def rows_of(batch: Any) -> int:
    """Return the rows of a batch: the length of the first array or list in it; 1 if there is none."""
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
    while isinstance(batch, list | tuple) and batch and hasattr(batch[0], "__len__"):
        batch = batch[0]
    try:
        return max(1, len(batch))
    except TypeError:
        return 1


def profile_rows(dataset: Any) -> dict[str, float]:
    """Take rows of a map-style dataset for a second. Returns the seconds a row of each stage.

    Nothing for a dataset that cannot be asked for rows by number.
    """
    try:
        size = len(dataset)
        dataset[0]  # what the first row alone pays for
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
    """Return the stage that a function in C belongs to, by its name; "Python" for any other."""
    name = function.lower()
    return next((stage for stage, words in _STAGES.items() if any(word in name for word in words)), "Python")


def _other_threads() -> float:
    """Return the seconds of processor time of all threads but this one."""
    return time.process_time() - time.thread_time()


def _synchronised() -> float:
    """Wait for the GPU, if it is in use. Returns the seconds."""
    began = time.perf_counter()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _measure(found: str, seconds: float, words: list[str]) -> None:
    """Run the script here, its loaders measured, and write the report of the first loop that lasted."""
    loops: dict[int, _Loop] = {}
    asked: list[_Loop] = []  # that get a batch now: a loader inside another one is the other's work

    def measured(plain: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        def iterate(loader: Any) -> Iterator[Any]:
            batches = iter(plain(loader))
            if asked:
                return batches
            of = (
                loader.dataset if isinstance(loader, DataLoader) else loader
            )  # some make a DataLoader for each epoch
            loop = loops.setdefault(id(of), _Loop(loader, seconds))
            return loop.over(_outermost(batches, asked, loop))

        return iterate

    for kind in (PackedBatchDataset, DataLoader):
        kind.__iter__ = measured(kind.__iter__)  # type: ignore[method-assign]
    sys.argv = words
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except _MeasuredError:
        asked.append(next(iter(loops.values())))  # nothing is measured any more
        loop = next(loop for loop in loops.values() if loop.step_seconds)
        text = json.dumps(asdict(loop.report()))
        with open(found + ".part", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(found + ".part", found)


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
    """Run in a process of its own, which is given the report's file, the seconds, and the script with its arguments."""
    _measure(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
