"""The limits that no loader can beat: memcpy for rows in memory, bare decoding for JPEG rows, large reads for rows on the disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from packer.codecs import jpeg
from packer.errors import FormatError
from packer.format.file_io import pread_into
from packer.format.pack import Pack
from packer.orders.runs import Runs
from packer.read.row_reader import RowReader

MAX_RESIDENT = 1 << 30  # bytes copied from: far above any cache, far below any memory
SLOTS = 3  # reused buffers a thread, as a loader that reads ahead has them
READ_BYTES = 8 << 20


class CopyLimit:
    """Batches copied out of a resident buffer into reused ones, by threads that never wait for each other.

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
        with ThreadPoolExecutor(threads) as pool:
            started = time.perf_counter()
            counts = list(pool.map(lambda thread: self._copy(thread, started + seconds), range(threads)))
        return sum(counts) / (time.perf_counter() - started)

    def _copy(self, thread: int, deadline: float) -> int:
        count = 0
        batch = thread
        while True:  # once at least: a busy machine may begin after the deadline
            np.copyto(self._slots[thread, count % SLOTS], self._source[batch % len(self._source)])
            batch += len(self._slots)
            count += 1
            if time.perf_counter() >= deadline:
                return count


class DecodeLimit:
    """JPEG rows in memory decoded whole, each thread's into a buffer that is used again, by threads that never wait for each other.

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
        self._rows = RowReader(pack, [field]).read_ragged("image", runs)
        # Of whole pictures a fourth channel without meaning is faster, and packer asks for it.
        whole = field.own_size
        self._channels = (
            (field.loaded.shape or (0,))[-1] if whole is None else {3: 4}.get(whole.channels or 1, 1)
        )

    def rate(self, seconds: float) -> float:
        """Batches a second over about that many seconds."""
        with ThreadPoolExecutor(self._threads) as pool:
            started = time.perf_counter()
            counts = list(
                pool.map(lambda thread: self._decode(thread, started + seconds), range(self._threads))
            )
        return sum(counts) / (time.perf_counter() - started) / self._batch_size

    def _decode(self, thread: int, deadline: float) -> int:
        memory = np.empty(0, np.uint8)
        count = 0
        while True:
            row = (thread + count * self._threads) % len(self._rows)
            try:
                height, width, _ = jpeg.size(self._rows[row])
                needed = height * width * self._channels
                if len(memory) < needed:
                    memory = np.empty(needed, np.uint8)
                jpeg.decode_upright_into(
                    self._rows[row], memory[:needed].reshape(height, width, self._channels)
                )
            except ValueError as error:
                raise FormatError(
                    f"{self._pack.path}: row {self._numbers[row]} of 'image' is damaged ({error})."
                    " Run packer verify, or convert the images again."
                ) from None
            count += 1
            if time.perf_counter() >= deadline:
                return count


def read_rate(paths: Sequence[str], threads: int, seconds: float) -> float:
    """Bytes a second of reading files from their beginnings, for at most about that many seconds.

    Each thread takes the next piece of READ_BYTES into its own reused buffer: one thread alone does not
    keep a fast disk busy.
    """
    pieces = ((path, offset) for path in paths for offset in range(0, os.path.getsize(path), READ_BYTES))
    taking = threading.Lock()
    started = time.perf_counter()

    def read() -> int:
        buffer = memoryview(bytearray(READ_BYTES))
        total = 0
        while True:
            with taking:
                piece = next(pieces, None)
            if piece is None:
                return total
            total += _read_piece(*piece, buffer)
            if time.perf_counter() - started >= seconds:
                return total

    with ThreadPoolExecutor(threads) as pool:
        total = sum(reading.result() for reading in [pool.submit(read) for _ in range(threads)])
    return total / (time.perf_counter() - started)


def _read_piece(path: str, offset: int, buffer: memoryview) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return pread_into(fd, buffer, offset)
    finally:
        os.close(fd)
