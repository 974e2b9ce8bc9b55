"""Checksums of a pack's blocks, recomputed as fast as the files can be read.

Threads read and hash the blocks in pieces that fit a core's cache. They hold the GIL only between pieces.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from packer.format.block_spans import BlockSpans, Span
from packer.format.checksums import BlockChecksum
from packer.format.fields import OFFSETS
from packer.format.header import Header
from packer.packs.pack import Pack, PackFiles

# Size of one read, hashed while it is in the core's cache: 13.5 GB/s with 1 MiB, 11.9 with 8 MiB
# (2 threads, files in the page cache; reading alone: 16).
_PIECE = 1 << 20
_JOB_BYTES = 2 << 20


@dataclass(frozen=True)
class BlockHashes:
    """The checksums of all blocks.

    table: uint64 [blocks, columns], like the stored table;
    unread: (block, column) -> why the block has no checksum; "" if damaged offsets do not lead to it;
    nbytes: bytes hashed.
    """

    table: NDArray[np.uint64]
    unread: dict[tuple[int, int], str]
    nbytes: int


def hash_blocks(
    pack: Pack,
    *,
    threads: int,
    progress: Callable[[int], None],
    checks: Mapping[str, ValueCheck],
) -> BlockHashes:
    """Compute the checksum of every block of every array from the files.

    threads: number of reading threads;
    progress: called on the calling thread with the bytes hashed so far;
    checks: array -> check of its elements while they are hashed (uncompressed arrays only).
    Raises FormatError if a file cannot be opened or was replaced since the pack was opened. Later read errors
    are in the result.
    """
    with pack.open_files() as files:
        pack.check_same()  # after opening: an open file cannot be replaced
        hasher = _Hasher(files, checks)
        blocks = pack.header.blocks
        table = np.zeros((blocks, len(pack.header.columns)), "<u8")
        unread: dict[tuple[int, int], str] = {}
        jobs: list[tuple[int, BlockSpans, range]] = []
        for c, array in enumerate(pack.header.columns):
            column = BlockSpans(pack.header, array, hasher.read)
            nbytes = sum(extent.nbytes for extent in column.extents)
            step = max(1, _JOB_BYTES * blocks // max(1, nbytes))  # small blocks share a job
            jobs += ((c, column, range(first, min(first + step, blocks))) for first in range(0, blocks, step))
        done = 0
        with ThreadPoolExecutor(threads) as pool:
            try:
                results = pool.map(lambda job: hasher.hash(*job[1:]), jobs)
                for (c, _, some), (checksums, nbytes) in zip(jobs, results, strict=True):
                    for block, checksum in zip(some, checksums, strict=True):
                        if isinstance(checksum, str):
                            unread[block, c] = checksum
                        else:
                            table[block, c] = checksum
                    done += nbytes
                    progress(done)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return BlockHashes(table, unread, done)


class _Hasher:
    """Reads and hashes blocks. Thread-safe."""

    def __init__(self, files: PackFiles, checks: Mapping[str, ValueCheck]) -> None:
        self._files, self._checks = files, checks
        self._local = threading.local()

    def hash(self, column: BlockSpans, blocks: range) -> tuple[list[int | str], int]:
        """Return each block's checksum or the reason for having none (see BlockHashes), and the bytes hashed.

        The system gets the next reads as hints: 1.37 GB/s instead of 0.73 from a cold file with 2 threads,
        whose turns at one file defeat the kernel's read-ahead. Reads from the page cache are equally fast
        without hints.
        """
        spans = [column.spans(block) for block in blocks]
        for span in (span for own in spans for span in own or ()):
            self._files.willneed(*span)
        found: list[int | str] = []
        for block, own in zip(blocks, spans, strict=True):
            try:
                found.append("" if own is None else self._hash(column, block, own))
            except (OSError, EOFError) as error:
                found.append(str(getattr(error, "strerror", None) or "the file ends before it"))
        return found, sum(span.nbytes for own in spans for span in own or ())

    def _hash(self, column: BlockSpans, block: int, spans: Sequence[Span]) -> int:
        checksum, check = BlockChecksum(), None if column.compressed else self._checks.get(column.array)
        row_bytes = 1 if check is None else column.extents[0].row_bytes
        at, piece = column.first(block), _PIECE - _PIECE % row_bytes
        for file, offset, nbytes in spans:
            for start in range(offset, offset + nbytes, piece):
                data = self.read(file, start, min(piece, offset + nbytes - start))
                if len(data) < min(piece, offset + nbytes - start):
                    raise EOFError
                checksum.update(data)
                if check is not None:
                    check.look(at, data)
                    at += len(data) // row_bytes
        return int(checksum.intdigest())

    def read(self, file: str, offset: int, nbytes: int) -> memoryview:
        """Read bytes into this thread's buffer, valid until its next read; fewer only at the file's end.

        Raises OSError.
        """
        if not hasattr(self._local, "buffer"):
            # an anonymous mapping is a tenth faster than a bytearray
            self._local.buffer = memoryview(mmap.mmap(-1, _PIECE))
        view: memoryview = self._local.buffer[:nbytes]
        return view[: self._files.read_into(file, view, offset)]


class ValueCheck(Protocol):
    """A check of an array's elements that runs while they are in the core's cache."""

    def look(self, first: int, data: memoryview) -> None:
        """Check the bytes of one or more elements from element `first` on; from any thread, in any order."""

    def wrong(self) -> list[tuple[int, int, str]]:
        """Return (first row, last row + 1, defect) for each run of rows whose outer rows are wrong."""


def value_checks(header: Header) -> dict[str, ValueCheck]:
    """Return array -> check, for offsets of ragged fields, labels with class names, and table categories."""
    found: dict[str, ValueCheck] = {}
    for f in header.fields:
        if f.ragged:
            blob = sum(e.rows for e in header.extents[f.name])
            found[f.name + OFFSETS] = _Offsets(header.rows + 1, blob)
        elif (f.name, f.shape, f.dtype[1] in "iu") == ("label", (), True) and header.classes:
            found[f.name] = _ClassNumbers(f.dtype, [len(header.classes)], -1 if "unlabeled" in f.about else 0)
        elif f.name == "categories" and header.table is not None:
            names = {column["name"]: column["categories"] or () for column in header.table["columns"]}
            found[f.name] = _ClassNumbers(
                f.dtype, [1 + len(names[name]) for name in header.table["categories"]]
            )
    return found


class _Offsets:
    """Check that a ragged field's offsets run from 0 to the blob's length and never decrease."""

    def __init__(self, entries: int, length: int) -> None:
        self._entries, self._length = entries, length
        # index and value of the first entry, value of the last, number of entries
        self._pieces: list[tuple[int, int, int, int]] = []
        self._falls: list[tuple[int, int]] = []

    def look(self, first: int, data: memoryview) -> None:
        entries = np.frombuffer(data, "<i8")
        self._pieces.append((first, int(entries[0]), int(entries[-1]), len(entries)))
        falls = np.flatnonzero(entries[1:] < entries[:-1])
        if len(falls):
            self._falls.append((first + int(falls[0]), first + int(falls[-1]) + 1))

    def wrong(self) -> list[tuple[int, int, str]]:
        found = [(first, stop, "fall") for first, stop in self._falls]
        end, before = 0, 0
        for first, value, last, count in sorted(self._pieces):
            if first == 0 and value != 0:
                found.append((0, 1, f"begin at {value}, not at 0"))
            elif first == end and value < before:
                found.append((first - 1, first, "fall"))
            end, before = first + count, last
        if end == self._entries and before != self._length:
            found.append((end - 2, end - 1, f"end at {before}, their bytes at {self._length}"))
        return found


class _ClassNumbers:
    """Check that labels, or the categories of each column, lie in [least, count)."""

    def __init__(self, dtype: str, counts: Sequence[int], least: int = 0) -> None:
        self._dtype, self._counts, self._least = dtype, np.array(counts), least
        self._wrong: list[tuple[int, int]] = []

    def look(self, first: int, data: memoryview) -> None:
        codes = np.frombuffer(data, self._dtype).reshape(-1, len(self._counts))
        wrong = (codes < self._least) | (codes >= self._counts)
        if wrong.any():
            at = np.flatnonzero(wrong.any(axis=1))
            self._wrong.append((first + int(at[0]), first + int(at[-1]) + 1))

    def wrong(self) -> list[tuple[int, int, str]]:
        most = ", ".join(str(count - 1) for count in self._counts[:8].tolist())
        return [(a, b, f"are not all within {self._least} to {most}") for a, b in self._wrong]
