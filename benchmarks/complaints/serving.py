"""A process for each lane: compares every row with the data, then measures epochs round by round."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from lanes.process import cpu_seconds

from complaints.complaint import Complaint, Epochs

PAUSE = 0.3  # seconds before a measurement, until the previous lane's processes are idle


class LaneError(Exception):
    """A lane could not be opened, or yielded wrong rows."""


def check(epochs: Epochs, complaint: Complaint, work: Path) -> int:
    """Compare a complete epoch. Returns its samples. Raises ValueError."""
    compared, seen = complaint.compare(work), []
    for values, numbers in epochs.begin(None):
        compared(values, numbers)
        seen.append(numbers)
    found = np.sort(np.concatenate(seen))
    if not np.array_equal(found, np.sort(epochs.numbers)):
        raise ValueError(
            f"{len(np.unique(found))} of {len(epochs.numbers)} samples came, {len(found)} in all"
        )
    return len(found)


def run(epochs: Epochs, limit: int) -> dict[str, float]:
    """Measure an epoch; the consumer only takes the batches."""
    used, began = cpu_seconds(), time.perf_counter()
    samples = sum(len(numbers) for _, numbers in epochs.begin(limit))
    return {"samples": samples, "seconds": time.perf_counter() - began, "cpu": cpu_seconds() - used}


def serve(answers: Connection, module: str, name: str, work: Path, workers: int) -> None:
    """Answer a lane's commands until the other end is closed."""
    complaint: Complaint = importlib.import_module(f"complaints.{module.replace('-', '_')}").COMPLAINT
    lane = complaint.lanes[name]
    try:
        epochs = lane.open(work / lane.store, workers)
        answers.send(None)
        while (command := answers.recv()) is not None:
            answers.send(check(epochs, complaint, work) if command == "check" else run(epochs, command))
    except EOFError:
        pass
    except Exception as error:
        traceback.print_exc()
        answers.send(LaneError(f"{type(error).__name__}: {error}"))


class Running:
    """A lane in a separate, spawned process (Lance is not fork-safe). A context manager."""

    def __init__(self, module: str, name: str, work: Path, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._asked, given = context.Pipe()
        self.workers = workers
        # Not a daemon: it starts processes.
        self._process = context.Process(target=serve, args=(given, module, name, work, workers))
        self._process.start()
        given.close()
        self._answer()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: object) -> None:
        with ExitStack() as stack:
            stack.callback(self._asked.close)
            if self._process.is_alive():
                self._asked.send(None)
            self._process.join(20)
            if self._process.is_alive():
                self._process.kill()

    def ask(self, command: str | int) -> Any:
        """Return the answer to "check", or to a number of samples to measure. Raises LaneError."""
        self._asked.send(command)
        return self._answer()

    def _answer(self) -> Any:
        try:
            answer = self._asked.recv()
        except EOFError:
            raise LaneError("its process ended") from None
        if isinstance(answer, LaneError):
            raise answer
        return answer


def opened(module: str, complaint: Complaint, name: str, work: Path, stack: ExitStack) -> tuple[Running, int]:
    """Start a lane with its fastest process count, and compare its rows. Returns lane, samples compared."""
    rates: dict[int, float] = {}
    tried = complaint.lanes[name].workers
    for workers in tried if len(tried) > 1 else ():
        with Running(module, name, work, workers) as running:
            running.ask(complaint.samples)
            answer = running.ask(complaint.samples)
            rates[workers] = answer["samples"] / answer["seconds"]
    best = max(rates, key=lambda workers: rates[workers]) if rates else tried[0]
    running = stack.enter_context(Running(module, name, work, best))
    return running, running.ask("check")


def rounds(lanes: Mapping[str, Running], count: int, samples: int) -> dict[str, list[dict[str, float]]]:
    """Measure the lanes in turn; each round starts with the next lane."""
    names: Sequence[str] = list(lanes)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for name in names:
        lanes[name].ask(samples)  # warm
    for number in range(count):
        turn = number * len(names) // count
        for name in (*names[turn:], *names[:turn]):
            time.sleep(PAUSE)
            runs[name].append(lanes[name].ask(samples))
    return runs


def size_of(store: Path) -> int:
    """Return the bytes of a file or folder."""
    files = [store] if store.is_file() else [path for path in store.rglob("*") if path.is_file()]
    return sum(map(os.path.getsize, files))
