"""Frontier: how many rows of an unfinished pack can be read, in a file that its readers map.

Files of a pack that is read while it is made (packer/filling), in its working folder:

    frontier    int64 numbers (below), then JSON text: the job; the header and the files of the pack, or the
                error that ended the conversion. The process that converts has locked it
    readers     locked, shared, by every process that reads
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import weakref
from typing import Any

import numpy as np

from packer.format.checksums import block_checksum
from packer.format.file_io import PRIVATE, open_own, pwrite_all, reserve

FILES = frozenset(("frontier", "readers"))
PLANNING, READABLE, COMPLETE, FAILED = range(4)
_ROWS, _STATE, _DIGEST, _LENGTH, _DONE, _TOTAL = range(6)
_NUMBERS, _TEXT_AT, _BYTES = 48, 4096, 1 << 16


class Frontier:
    """The mapped frontier in a folder: one process writes it, any number read it.

    A run that resumes sets it back to 0 rows, compares the rows that are there with their checksums, and
    raises it again: a power cut cannot leave lost rows below it.
    """

    def __init__(self, folder: str) -> None:
        """Map the file in a folder, creating it. Raises OSError."""
        self._fd, self._readers = (
            open_own(os.path.join(folder, name), mode=PRIVATE) for name in ("frontier", "readers")
        )
        for fd in (self._fd, self._readers):
            weakref.finalize(self, os.close, fd).atexit = False
        reserve(self._fd, 0, _BYTES)  # on a full disk a write to the map would kill the process
        if os.fstat(self._fd).st_size < _BYTES:
            os.truncate(self._fd, _BYTES)
        self._numbers = np.frombuffer(mmap.mmap(self._fd, _NUMBERS), "<i8")

    @property
    def rows(self) -> int:
        """Rows [0, rows) can be read, if afterwards `plan` is still the reader's."""
        return int(self._numbers[_ROWS])

    @property
    def state(self) -> int:
        """PLANNING (nothing can be read), READABLE, COMPLETE (the pack has its name) or FAILED."""
        return int(self._numbers[_STATE])

    @property
    def plan(self) -> int:
        """Number that identifies the readable pack and its files; 0 while there is none."""
        digest = int(self._numbers[_DIGEST])  # in this order: the writer changes the state first
        return digest if self.state == READABLE else 0

    @property
    def progress(self) -> tuple[int, int]:
        """Items done, and their total, 0 if unknown."""
        return int(self._numbers[_DONE]), int(self._numbers[_TOTAL])

    @property
    def described(self) -> dict[str, Any]:
        """Values that describe the state; {} while they are written."""
        data = os.pread(self._fd, int(self._numbers[_LENGTH]), _TEXT_AT)
        return dict(json.loads(data)) if data and _digest(data) == self._numbers[_DIGEST] else {}

    def begin(self, state: int, **described: Any) -> None:
        """Begin a state, described by JSON values; no row can be read yet. Raises OSError."""
        data = json.dumps(described, sort_keys=True).encode()
        self._numbers[_STATE], self._numbers[_ROWS] = PLANNING, 0
        self._numbers[_DIGEST], self._numbers[_LENGTH] = _digest(data), len(data)
        pwrite_all(self._fd, data, _TEXT_AT)
        self._numbers[_STATE] = state

    def rise(self, rows: int) -> None:
        """Say that rows [0, rows) can be read."""
        self._numbers[_ROWS] = rows

    def move(self, done: int, total: int) -> None:
        """Report progress."""
        self._numbers[_DONE], self._numbers[_TOTAL] = done, total

    def lock(self) -> bool:
        """Lock it until this process and its children end; return False if another process has."""
        return _lock(self._fd, fcntl.LOCK_EX)

    @property
    def alive(self) -> bool:
        """True while the process that has locked it lives, even if the file was removed."""
        return not _free(self._fd, fcntl.LOCK_SH)

    def join(self) -> None:
        """Count as a reader until this object is gone, in this process and its children."""
        _lock(self._readers, fcntl.LOCK_SH)

    @property
    def has_readers(self) -> bool:
        """True while any process reads; for the process that writes."""
        return not _free(self._readers, fcntl.LOCK_EX)


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(fd: int, kind: int) -> bool:
    """Return True if nobody holds a lock that excludes this kind."""
    free = _lock(fd, kind)
    if free:
        fcntl.flock(fd, fcntl.LOCK_UN)
    return free


def _digest(data: bytes) -> int:
    """Return the digest of a text, never 0."""
    return block_checksum(np.frombuffer(data, np.uint8)) >> 1 or 1
