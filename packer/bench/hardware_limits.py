"""Rates that no loader can exceed on this machine, its page cache, and the conditions of a measurement.

The limits: memcpy for rows in memory, decoding alone for JPEG rows, large reads for rows on the disk.
"""

from __future__ import annotations

import mmap
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata

import numpy as np

from packer.codecs import jpeg
from packer.errors import damaged_rows
from packer.format.file_io import pread_into, resident
from packer.machine import cores, memory
from packer.orders.runs import Runs
from packer.packs.pack import Pack
from packer.read.array_store import PackStore
from packer.version import __version__

MAX_RESIDENT = 1 << 30  # bytes of the copied buffer: far above any cache, far below any memory
SLOTS = 3  # reused buffers a thread, as many as in a loader that reads ahead
READ_BYTES = 8 << 20
PROBES = 64  # pages of a file that resident_share samples
CAN_DROP = hasattr(os, "posix_fadvise")
"""True where a file can be dropped from the page cache; macOS has no call for it."""


def calls_per_second(work: Callable[[int, int], object], threads: int, seconds: float) -> float:
    """Return the calls of `work` per second by threads that never wait for each other.

    work: called with the thread's number and the number of the call in it.
    seconds: duration; each thread makes at least one call.
    """

    def repeat(thread: int) -> int:
        count = 0
        while True:  # at least one call: on a busy machine the thread may start after the deadline
            work(thread, count)
            count += 1
            if time.perf_counter() - started >= seconds:
                return count

    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        return sum(list(pool.map(repeat, range(threads)))) / (time.perf_counter() - started)


class CopyLimit:
    """Batches copied from a resident buffer into reused buffers.

    batch_bytes: bytes of a batch.
    pack_bytes: bytes of all rows; the resident buffer has as many, up to MAX_RESIDENT.
    """

    def __init__(self, batch_bytes: int, pack_bytes: int, threads: int) -> None:
        batches = max(1, min(pack_bytes, MAX_RESIDENT) // batch_bytes)
        # Not np.empty: unwritten pages all map to the kernel's zero page, which stays in the CPU's cache.
        self._source = np.ones((batches, batch_bytes), np.uint8)
        self._slots = np.ones((threads, SLOTS, batch_bytes), np.uint8)

    def rate(self, seconds: float) -> float:
        """Return batches per second, measured for about `seconds`."""
        threads = len(self._slots)

        def copy(thread: int, count: int) -> None:
            batch = (thread + count * threads) % len(self._source)
            np.copyto(self._slots[thread, count % SLOTS], self._source[batch])

        return calls_per_second(copy, threads, seconds)


class DecodeLimit:
    """JPEG rows in memory, decoded completely into one reused buffer a thread.

    batch_size: rows that count as a batch in `rate`. The sample is spread over the pack and takes at most
    MAX_RESIDENT. Raises FormatError for a row that cannot be decoded.
    """

    def __init__(self, pack: Pack, batch_size: int, threads: int) -> None:
        field = pack.header.field("image")
        self._pack, self._batch_size, self._threads = pack, batch_size, threads
        row_bytes = sum(extent.nbytes for extent in pack.header.extents["image"]) / pack.rows
        count = max(1, min(pack.rows, int(MAX_RESIDENT / max(row_bytes, 1))))
        self._numbers = np.linspace(0, pack.rows - 1, count).astype(np.int64)
        runs = Runs(self._numbers, np.ones(count, np.int64))
        self._rows = PackStore(pack, [field]).ragged("image", runs)
        self._buffers = [np.empty(0, np.uint8) for _ in range(threads)]
        # For images that keep their size packer decodes a fourth, unused channel, which is faster.
        own_size = field.own_size
        self._channels = (
            (field.loaded.shape or (0,))[-1] if own_size is None else {3: 4}.get(own_size.channels or 1, 1)
        )

    def rate(self, seconds: float) -> float:
        """Return batches per second, measured for about `seconds`."""
        return calls_per_second(self._decode, self._threads, seconds) / self._batch_size

    def _decode(self, thread: int, count: int) -> None:
        row = (thread + count * self._threads) % len(self._rows)
        try:
            height, width, _ = jpeg.size(self._rows[row])
            needed = height * width * self._channels
            if len(self._buffers[thread]) < needed:
                self._buffers[thread] = np.empty(needed, np.uint8)
            pixels = self._buffers[thread][:needed].reshape(height, width, self._channels)
            jpeg.decode_upright_into(self._rows[row], pixels)
        except ValueError as error:
            raise damaged_rows(self._pack.path, "image", error, self._numbers[row]) from None


def read_rate(paths: Sequence[str], threads: int, seconds: float) -> float:
    """Return bytes per second of reading files from their beginnings, for at most about `seconds`.

    Each thread reads the next READ_BYTES into its reused buffer: one thread does not keep a fast disk busy.
    """
    pieces = ((path, offset) for path in paths for offset in range(0, os.path.getsize(path), READ_BYTES))
    taking = threading.Lock()
    started = time.perf_counter()

    def read(_: int) -> int:
        buffer = memoryview(bytearray(READ_BYTES))
        total = 0
        while True:
            with taking:
                piece = next(pieces, None)
            if piece is None:
                return total
            with open(piece[0], "rb", buffering=0) as file:
                total += pread_into(file.fileno(), buffer, piece[1])
            if time.perf_counter() - started >= seconds:
                return total

    with ThreadPoolExecutor(threads) as pool:
        return sum(list(pool.map(read, range(threads)))) / (time.perf_counter() - started)


def drop(paths: Sequence[str]) -> None:
    """Drop files from the page cache, after a flush: dirty and mapped pages would stay. Needs CAN_DROP."""
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_share(path: str) -> float | None:
    """Return the approximate share of a file's pages in the page cache; None where the system does not tell.

    mincore(2) is reliable only on Linux, and only for users who may write the file.
    """
    if platform.system() != "Linux" or not os.access(path, os.W_OK) or not (size := os.path.getsize(path)):
        return None
    offsets = [size * probe // PROBES // mmap.PAGESIZE * mmap.PAGESIZE for probe in range(PROBES)]
    pages = np.memmap(path, np.uint8, "r")
    return sum(resident(pages, [offset]) for offset in offsets) / PROBES


def machine() -> dict[str, object]:
    """Return processor, available cores, memory and system, as JSON values."""
    cpu = platform.processor() or platform.machine()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": cores(),
        "machine_cores": os.cpu_count() or 1,
        "memory_bytes": memory(),
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Return the versions of packer, Python, torch and NumPy."""
    python = {"packer": __version__, "python": platform.python_version()}
    return python | {name: metadata.version(name) for name in ("torch", "numpy")}


def load() -> float:
    """Return the number of runnable processes, averaged over the last minute."""
    return round(os.getloadavg()[0], 2)
