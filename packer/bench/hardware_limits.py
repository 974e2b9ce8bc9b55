"""The machine: limits that no loader can beat, its page cache, and what figures were measured with.

The limits: memcpy for rows in memory, bare decoding for JPEG rows, large reads for rows on the disk.
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
from packer.format.pack import Pack
from packer.machine import cores, memory
from packer.orders.runs import Runs
from packer.read.array_store import PackStore
from packer.version import __version__

MAX_RESIDENT = 1 << 30  # bytes copied from: far above any cache, far below any memory
SLOTS = 3  # reused buffers a thread, as a loader that reads ahead has them
READ_BYTES = 8 << 20
PROBES = 64  # pages of a file that are looked at
CAN_DROP = hasattr(os, "posix_fadvise")
"""Whether this system can be asked to forget a file's pages; macOS cannot."""


def calls_per_second(work: Callable[[int, int], object], threads: int, seconds: float) -> float:
    """Return how often `work` is called by threads that never wait for each other, over about that many seconds.

    work: is given the number of its thread and of the call there.
    """

    def repeat(thread: int) -> int:
        count = 0
        while True:  # once at least: a busy machine may begin after the deadline
            work(thread, count)
            count += 1
            if time.perf_counter() - started >= seconds:
                return count

    with ThreadPoolExecutor(threads) as pool:
        started = time.perf_counter()
        return sum(list(pool.map(repeat, range(threads)))) / (time.perf_counter() - started)


class CopyLimit:
    """Batches copied out of a resident buffer into reused ones.

    batch_bytes: of one batch; pack_bytes: of all rows, which the resident buffer matches up to MAX_RESIDENT.
    """

    def __init__(self, batch_bytes: int, pack_bytes: int, threads: int) -> None:
        batches = max(1, min(pack_bytes, MAX_RESIDENT) // batch_bytes)
        # Ones, not empty: a page that was never written is the kernel's one page of zeros, which stays in the cache.
        self._source = np.ones((batches, batch_bytes), np.uint8)
        self._slots = np.ones((threads, SLOTS, batch_bytes), np.uint8)

    def rate(self, seconds: float) -> float:
        """Batches a second over about that many seconds."""
        threads = len(self._slots)

        def copy(thread: int, count: int) -> None:
            batch = (thread + count * threads) % len(self._source)
            np.copyto(self._slots[thread, count % SLOTS], self._source[batch])

        return calls_per_second(copy, threads, seconds)


class DecodeLimit:
    """JPEG rows in memory decoded whole, each thread's into a buffer that is used again.

    batch_size: rows of what `rate` counts. As many rows are held, spread over the pack, as take at most MAX_RESIDENT.
    Raises FormatError for a row that cannot be decoded.
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
        # Of whole pictures a fourth channel without meaning is faster, and packer asks for it.
        whole = field.own_size
        self._channels = (
            (field.loaded.shape or (0,))[-1] if whole is None else {3: 4}.get(whole.channels or 1, 1)
        )

    def rate(self, seconds: float) -> float:
        """Batches a second over about that many seconds."""
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
    """Bytes a second of reading files from their beginnings, for at most about that many seconds.

    Each thread takes the next piece of READ_BYTES into its own reused buffer: one thread alone does not
    keep a fast disk busy.
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
    """Have the kernel forget files' pages. Needs CAN_DROP. Dirty and mapped pages stay, so the files are flushed first."""
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_share(path: str) -> float | None:
    """About which share of a file's pages is in the page cache; None where the system does not say.

    mincore(2) tells the truth only to those who may write the file, and on Linux.
    """
    if platform.system() != "Linux" or not os.access(path, os.W_OK) or not (size := os.path.getsize(path)):
        return None
    offsets = [size * probe // PROBES // mmap.PAGESIZE * mmap.PAGESIZE for probe in range(PROBES)]
    pages = np.memmap(path, np.uint8, "r")
    return sum(resident(pages, [offset]) for offset in offsets) / PROBES


def machine() -> dict[str, object]:
    """Return processor, cores at hand, memory and system, as JSON values."""
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
    """Return the processes that wanted to run, on average over the last minute."""
    return round(os.getloadavg()[0], 2)
