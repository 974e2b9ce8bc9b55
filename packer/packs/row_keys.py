"""Index from keys to rows: a table of key hashes, in memory or, for many rows, in an unnamed file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from packer.errors import SpaceError, UsageError
from packer.format.file_io import reserve
from packer.orders.runs import pieces
from packer.starting import ForkSafeLock

_KEYS_AT_ONCE = 1 << 16  # keys read and hashed at once
_SORTED_BITS = 20  # about 2**20 rows are sorted at once
# limit for all tables of a pack; larger tables are files, whose pages the system may drop
_MEMORY_BYTES = 256 << 20
_ROW_BYTES = 40  # bytes per row in all tables during construction


class RowKeys:
    """Index from keys to rows: 24 bytes per row, built by the first lookup in 0.5 us per row.

    Pickled without the table.
    A 128-bit hash stands for a key: two of 10^9 keys have equal hashes with a chance below 10^-20.
    Entries are sorted by the first half of the hash and found by binary search. Thread-safe.
    """

    def __init__(self, path: str, count: int, read: Callable[[int, int], list[bytes]]) -> None:
        """path: of the pack, for messages; count: of rows; read: returns the keys of rows [start, stop)."""
        self._path, self._count, self._read = path, count, read
        self._table: tuple[NDArray[Any], ...] | None = None
        self._lock = ForkSafeLock()

    def __getstate__(self) -> dict[str, Any]:
        known = {"_path": self._path, "_count": self._count, "_read": self._read}
        return {**known, "_table": None, "_lock": self._lock}

    def _build(self) -> tuple[NDArray[Any], ...]:
        """Read and hash all keys; return both halves of the hashes and the rows. Raises FormatError.

        Entries are distributed into parts by the leading bits of their hash; each part is sorted in memory.
        """
        bits = max(0, self._count.bit_length() - _SORTED_BITS)
        given, counts = self._memory(np.dtype(("<u8", 2))), np.zeros(1 << bits, np.int64)
        for start, stop in pieces(self._count, _KEYS_AT_ONCE):
            given[start:stop] = found = _hashes(self._read(start, stop))
            counts += np.bincount(_leading(found[:, 0], bits), minlength=len(counts))
        table = tuple(self._memory(np.dtype(dtype)) for dtype in ("<u8", "<u8", "<i8"))
        ends = np.cumsum(counts)
        filled = ends - counts
        for start, stop in pieces(self._count, _KEYS_AT_ONCE):
            some = given[start:stop]
            parts = _leading(some[:, 0], bits)
            order = np.argsort(parts, kind="stable")
            begun, first, several = np.unique(parts[order], return_index=True, return_counts=True)
            places = np.arange(len(some)) + np.repeat(filled[begun] - first, several)
            for column, values in zip(table, (*some[order].T, start + order), strict=True):
                column[places] = values
            filled[begun] += several
        for begin, end in zip((ends - counts).tolist(), ends.tolist(), strict=True):
            order = np.argsort(table[0][begin:end], kind="stable")
            for column in table:
                column[begin:end] = column[begin:end][order]
        return table

    def rows(self, keys: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of each key, int64 [len(keys)].

        Raises UsageError for a key of no row or of several rows.
        """
        given, keys = keys, list(keys)
        if isinstance(given, str) or not all(isinstance(key, str) for key in keys):
            raise UsageError(
                f"{self._path}: the keys of rows are a list of str. Pass one such as ['cat/1.jpg']."
            )
        found = self.find(list(map(_bytes, keys)))
        if (missing := np.flatnonzero(found < 0)).size:
            more = f", and {missing.size - 1:,} more of these" if missing.size > 1 else ""
            raise UsageError(
                f"{self._path}: none of its {self._count:,} rows has the key {keys[missing[0]]!r}{more}."
                f" The first row has {_text(self._read(0, 1)[0])!r}."
            )
        return found

    def find(self, keys: Sequence[bytes], *, several: bool = False) -> NDArray[np.int64]:
        """Return the row of each key, int64 [len(keys)], -1 for an unknown key.

        several: return the first row of a key of several rows, instead of raising UsageError.
        """
        with self._lock:
            if self._table is None:
                self._table = self._build()
        high, low, rows = self._table
        wanted = _hashes(keys)
        at, ends = (np.searchsorted(high, wanted[:, 0], side) for side in ("left", "right"))
        found = np.full(len(keys), -1, np.int64)
        while len(left := np.flatnonzero(at < ends)):  # runs once unless several rows have a key
            same = left[low[at[left]] == wanted[left, 1]]
            if several:
                same = same[found[same] < 0]
            elif (twice := same[found[same] >= 0]).size:
                number = int(twice[0])
                raise UsageError(
                    f"{self._path}: several rows have the key {_text(keys[number])!r}, {found[number]:,} and"
                    f" {rows[at[number]]:,} for example. Keep one of these, or pass row numbers."
                )
            found[same] = rows[at[same]]
            at[left] += 1
        return found

    def _memory(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return memory for one entry per row. Raises SpaceError."""
        nbytes, shape = self._count * dtype.itemsize, (self._count, *dtype.shape)
        if self._count * _ROW_BYTES <= _MEMORY_BYTES:
            return np.empty(shape, dtype.base)
        try:
            with tempfile.TemporaryFile() as file:
                # without reserved space the first write to a page would kill the process
                reserve(file.fileno(), 0, nbytes)
                return np.memmap(file, dtype.base, "r+", shape=shape)
        except OSError as error:
            raise SpaceError(
                f"{self._path}: the table of its keys ({nbytes:,} bytes) cannot be written to"
                f" {tempfile.gettempdir()} ({error.strerror}). Make room there, or set TMPDIR."
            ) from None


def as_keys(given: Any, values: NDArray[Any]) -> list[str] | None:
    """Return `given` as a list of keys; None if it is something else.

    values: the same as an array. Its text cannot be used: NumPy drops trailing zeros.
    """
    if values.dtype.kind not in "UO" or not values.size:
        return None
    found = list(given) if isinstance(given, (list, tuple)) else np.atleast_1d(values).tolist()
    found = [given] if isinstance(given, str) else found
    return found if all(isinstance(value, str) for value in found) else None


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def _bytes(key: str) -> bytes:
    """Return the bytes of a key; for text that cannot be a key, bytes that no key has."""
    try:
        return key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b"\0" + key.encode("utf-8", "surrogatepass")


def _hashes(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return both halves of the hash of each key, uint64 [len(keys), 2]."""
    return np.frombuffer(b"".join(map(xxhash.xxh3_128_digest, keys)), "<u8").reshape(-1, 2)


def _leading(hashes: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    """Return the leading bits of hashes, in two shifts, because a shift by all 64 would be undefined."""
    return (hashes >> np.uint64(63 - bits) >> np.uint64(1)).astype(np.int64)
