"""Processor time and memory of a process and its descendants, from /proc; elsewhere of the process alone."""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

SAMPLE_SECONDS = 0.1  # a sample takes up to 0.03 s if a GB is mapped, and delays the process


def below(pid: int) -> list[int]:
    """Return the descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *below(child)]
    return found


def cpu_seconds() -> float:
    """Return processor seconds used by this process, its waited-for children, and its running descendants.

    The descendants' time has a resolution of 0.01 s.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    for pid in below(os.getpid()):
        with suppress(OSError):
            # utime, stime, cutime and cstime, the 14th to 17th field; the second may hold spaces.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return time.process_time() + ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


class Memory(NamedTuple):
    """MB of a process and its descendants; shared pages are divided among the processes that map them.

    own: anonymous and shared memory, including the interpreter's and the libraries'.
    all: also mapped files, which the page cache holds anyway.
    """

    own: float
    all: float


def memory(pid: int) -> Memory:
    """Return the current memory of a process and its descendants."""
    own = everything = 0
    for each in (pid, *below(pid)):
        with suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                name, _, value = line.partition(":")
                if name == "Pss":
                    everything += int(value.split()[0])
                elif name in ("Pss_Anon", "Pss_Shmem"):
                    own += int(value.split()[0])
    return Memory(own / 1024, everything / 1024)


class Peak:
    """Samples a process's memory while a block runs. `highest`: the peak of each figure."""

    def __init__(self, pid: int) -> None:
        self.highest = memory(pid)
        self._pid, self._stop = pid, threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            now = memory(self._pid)
            self.highest = Memory(max(self.highest.own, now.own), max(self.highest.all, now.all))
