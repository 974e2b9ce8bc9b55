"""Rows by their keys: a table of 64-bit hashes of the keys, in memory, or for many rows in a file without a name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import SpaceError, UsageError
from packer.format.file_io import reserve
from packer.starting import ForkSafeLock

_KEYS_AT_ONCE = 1 << 16  # that are read to be hashed
_COMPARED_AT_ONCE = 1 << 8  # neighbours of which the wanted ones are read together, to be compared
_BUCKET_BITS = 8  # of the number of rows of a bucket, about
_MEMORY_BYTES = 256 << 20  # of a table; a larger one is a file, whose pages the system may drop

_ENTRY = np.dtype([("hash", "<u8"), ("row", "<i8")])


class RowKeys:
    """Rows by key: 16 bytes a row, made when the first key is asked for, in 0.5 us a row. Pickled without them.
    Thread-safe.

    Entries of equal leading bits of the hash lie together, in a bucket. A row is found by its hash, and taken only if its key is the
    one asked for.
    """

    def __init__(self, path: str, count: int, read: Callable[[int, int], list[bytes]]) -> None:
        """path: of the pack, for messages; count: of rows; read: returns the keys of rows [start, stop)."""
        self._path, self._count, self._read = path, count, read
        self._ends: NDArray[np.int64] | None = None
        self._lock = ForkSafeLock()

    def __getstate__(self) -> dict[str, Any]:
        known = {"_path": self._path, "_count": self._count, "_read": self._read}
        return {**known, "_ends": None, "_lock": self._lock}

    def _build(self) -> NDArray[np.int64]:
        """Read and hash all keys. Returns where each bucket ends. Raises FormatError if they are damaged."""
        self._bits = max(0, self._count.bit_length() - _BUCKET_BITS)
        counts = np.zeros(1 << self._bits, np.int64)
        hashes = self._memory(np.dtype("<u8"))
        for start in range(0, self._count, _KEYS_AT_ONCE):
            found = _hashes(self._read(start, min(start + _KEYS_AT_ONCE, self._count)))
            hashes[start : start + len(found)] = found
            counts += np.bincount(self._buckets(found), minlength=len(counts))
        ends = np.cumsum(counts)
        self._table = self._memory(_ENTRY)
        filled = ends - counts
        for start in range(0, self._count, _KEYS_AT_ONCE):
            some = hashes[start : start + _KEYS_AT_ONCE]
            buckets = self._buckets(some)
            order = np.argsort(buckets, kind="stable")
            begun, first, several = np.unique(buckets[order], return_index=True, return_counts=True)
            places = np.arange(len(some)) + np.repeat(filled[begun] - first, several)
            self._table["hash"][places], self._table["row"][places] = some[order], start + order
            filled[begun] += several
        return ends

    def rows(self, keys: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of each key, int64 [len(keys)]. Raises UsageError for a key that no row has, or several have."""
        given, keys = keys, list(keys)
        if isinstance(given, str) or not all(isinstance(key, str) for key in keys):
            raise UsageError(
                f"{self._path}: rows are asked for by a list of keys. Pass one of text, such as ['cat/1.jpg']."
            )
        wanted = [_bytes(key) for key in keys]
        hashes = _hashes(wanted)
        found = np.full(len(wanted), -1, np.int64)
        for number, row in self._same(wanted, hashes):
            if found[number] >= 0:
                raise UsageError(
                    f"{self._path}: several rows have the key {keys[number]!r}, {found[number]:,} and {row:,} for example."
                    " Ask for them by number."
                )
            found[number] = row
        if (missing := np.flatnonzero(found < 0)).size:
            more = f", and {missing.size - 1:,} more of these" if missing.size > 1 else ""
            raise UsageError(
                f"{self._path}: none of its {self._count:,} rows has the key {keys[missing[0]]!r}{more}. The first row's is"
                f" {_text(self._read(0, 1)[0])!r}."
            )
        return found

    def _same(self, wanted: list[bytes], hashes: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
        """Yield (number of a wanted key, row that has it), for each row that has it."""
        with self._lock:
            if self._ends is None:
                self._ends = self._build()
        buckets = self._buckets(hashes)
        begins = np.concatenate([[0], self._ends])[buckets]
        numbers, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for number, (begin, end, hashed) in enumerate(zip(begins, self._ends[buckets], hashes, strict=True)):
            some = self._table[begin:end]
            rows.append(some["row"][some["hash"] == hashed])
            numbers.append(np.full(len(rows[-1]), number))
        found, number_of = np.concatenate(rows), np.concatenate(numbers)
        order = np.argsort(found, kind="stable")
        found, number_of = found[order], number_of[order]
        at = 0
        while at < len(found):
            first = int(found[at])
            stop = int(np.searchsorted(found, first + _COMPARED_AT_ONCE))
            keys = self._read(first, int(found[stop - 1]) + 1)
            for number, row in zip(number_of[at:stop].tolist(), found[at:stop].tolist(), strict=True):
                if keys[row - first] == wanted[number]:
                    yield number, row
            at = stop

    def _buckets(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the leading bits of hashes; a shift by all 64 would be undefined."""
        return (hashes >> np.uint64(63 - self._bits) >> np.uint64(1)).astype(np.int64)

    def _memory(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return memory for an entry a row. Raises SpaceError."""
        nbytes = self._count * dtype.itemsize
        if nbytes <= _MEMORY_BYTES:
            return np.empty(self._count, dtype)
        try:
            with tempfile.TemporaryFile() as file:
                reserve(file.fileno(), 0, nbytes)  # a page that is first written to would kill the process
                return np.memmap(file, dtype, "r+", shape=(self._count,))
        except OSError as error:
            raise SpaceError(
                f"{self._path}: {nbytes:,} bytes of a table of its keys cannot be written to {tempfile.gettempdir()}"
                f" ({error.strerror}). Make room there, or set TMPDIR."
            ) from None


def as_keys(given: Any, values: NDArray[Any]) -> list[str] | None:
    """Return keys, None if what was given is something else. values: the same as an array, where text loses zeros at its end."""
    if values.dtype.kind not in "UO" or not values.size:
        return None
    found = list(given) if isinstance(given, (list, tuple)) else np.atleast_1d(values).tolist()
    found = [given] if isinstance(given, str) else found
    return found if all(isinstance(value, str) for value in found) else None


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _bytes(key: str) -> bytes:
    """Return the bytes of a key; of text that can be no key, some that no key has."""
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b"\0" + key.encode("utf-8", "surrogatepass")


def _hashes(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    return np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, len(keys))
