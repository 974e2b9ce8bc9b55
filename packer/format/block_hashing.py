"""The checksums of a pack's blocks computed anew, as fast as the files can be read.

Blocks are read and hashed in pieces that stay in a core's cache, by threads that hold the GIL only between the pieces.
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
from packer.format.header import OFFSETS, Header
from packer.format.pack import Pack, PackFiles

# Read at once, then hashed while it is in the cache: 13.5 GB/s with 1 MiB, 11.9 with 8 MiB (2 threads, files in the page
# cache; reading alone: 16).
_PIECE = 1 << 20
_JOB_BYTES = 2 << 20


@dataclass(frozen=True)
class BlockHashes:
    """The checksums of all blocks.

    table: uint64 [blocks, columns], like the stored one; unread: (block, column) -> why there is no checksum: a reason, or ""
    for a block that cannot be found because the offsets that lead to it are impossible; nbytes: how many were hashed.
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

    threads: that read; progress: called on this thread with the bytes hashed so far; checks: array -> what sees its elements
    on the way (of those that are not compressed). Raises FormatError if a file cannot be opened, or was replaced since the
    pack was opened; what cannot be read later is in the result.
    """
    with pack.open_files() as files:
        pack.check_same()  # after opening: what is open now stays the same file
        hasher = _Hasher(files, checks)
        blocks = pack.header.blocks
        table = np.zeros((blocks, len(pack.header.columns)), "<u8")
        unread: dict[tuple[int, int], str] = {}
        jobs: list[tuple[int, BlockSpans, range]] = []
        for c, array in enumerate(pack.header.columns):
            column = BlockSpans(pack.header, array, hasher.read)
            nbytes = sum(extent.nbytes for extent in column.extents)
            step = max(1, _JOB_BYTES * blocks // max(1, nbytes))  # small ones together
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
        """Return the checksum of each block, or why there is none, as BlockHashes has them; and the bytes that were hashed.

        Told beforehand what is read next, the system keeps the disk busy: 1.37 GB/s against 0.73 from a cold file with 2 threads,
        whose turns at one file its own reading ahead does not follow; from the page cache it makes no difference.
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
        """Read bytes into this thread's buffer, where they stay until its next read; fewer only at the end. Raises OSError."""
        if not hasattr(self._local, "buffer"):
            # page by page: a tenth faster than a bytearray
            self._local.buffer = memoryview(mmap.mmap(-1, _PIECE))
        view: memoryview = self._local.buffer[:nbytes]
        return view[: self._files.read_into(file, view, offset)]


class ValueCheck(Protocol):
    """A check of an array's elements, made while they are in the cache."""

    def look(self, first: int, data: memoryview) -> None:
        """Look at bytes of whole elements, at least one, from element `first` on; called by several threads, in any order."""

    def wrong(self) -> list[tuple[int, int, str]]:
        """Return rows [first, last + 1), of which the outer ones are wrong, and what is."""


def value_checks(header: Header) -> dict[str, ValueCheck]:
    """Return the checks of arrays that promise something, by name: offsets of ragged fields, labels where there are classes."""
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
    """Entries of a ragged field's offsets run from 0 to the blob's length and never fall."""

    def __init__(self, entries: int, length: int) -> None:
        self._entries, self._length = entries, length
        self._pieces: list[tuple[int, int, int, int]] = []  # first: index, value; last value; entries
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
    """Labels are numbers of classes, 0 to classes - 1; so are categories, column by column. least: instead of 0."""

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
