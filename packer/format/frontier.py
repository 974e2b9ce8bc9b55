"""The frontier: the number of rows of an unfinished pack that can be read, in a file that all processes map.

Files in the working folder of a pack that is read while it is made (docs/guides/while-packing.md):

    frontier    int64 words (below), then a text; locked by the process that converts
    readers     locked, shared, by every process that reads
    job         source and options, JSON
    described   the pack's header without statistics, and a digest of the plan
    known/      arrays that are known before the rows are made: keys, labels
    part        the header of the rows that this folder holds, also in the folder of each shard
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import stat
import weakref
from typing import Any

import numpy as np

from packer.errors import PackerError
from packer.format.file_io import PRIVATE, create_anew, open_own, reserve
from packer.service import failure

FRONTIER, READERS, JOB, DESCRIBED, KNOWN, PART = "frontier", "readers", "job", "described", "known", "part"
FILES = frozenset((FRONTIER, READERS, JOB, DESCRIBED, KNOWN, PART))

UNDER_WAY, SEALED, FAILED = 0, 1, 2
_ROWS, _PLAN, _OUTCOME, _DONE, _TOTAL, _TEXT, _INODE = range(7)
_TEXT_AT, _BYTES = 64, 1 << 16


class Frontier:
    """A mapped frontier file: one process writes, any number read. A store of one word is seen at once.

    A run that resumes begins with no plan and 0 rows, compares the rows that are there with their checksums,
    and raises the frontier again. So a power cut cannot leave rows below it that were lost.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        """Map a file. create: for writing, creating it. Raises OSError; PackerError if it is not ours."""
        self._fd = open_own(path, mode=PRIVATE) if create else open_own(path, flags=os.O_RDONLY)
        weakref.finalize(self, os.close, self._fd).atexit = False
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise PackerError(
                f"{path}: is not a file of this user alone. Remove {os.path.dirname(path)}, or pass another"
                " name."
            )
        if create:
            reserve(self._fd, 0, _BYTES)  # on a full disk the first write to a page would kill the process
            os.truncate(self._fd, _BYTES)
        elif found.st_size < _BYTES:  # it is just being created
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        access = mmap.ACCESS_WRITE if create else mmap.ACCESS_READ
        self._bytes = mmap.mmap(self._fd, _BYTES, access=access)
        self._words = np.frombuffer(self._bytes, "<i8")

    @property
    def rows(self) -> int:
        """Rows [0, rows) can be read."""
        return int(self._words[_ROWS])

    @property
    def plan(self) -> int:
        """Digest of the description of the pack that is being made; 0 until it is known."""
        return int(self._words[_PLAN])

    @property
    def outcome(self) -> int:
        """UNDER_WAY, SEALED or FAILED."""
        return int(self._words[_OUTCOME])

    @property
    def state(self) -> tuple[int, int, int]:
        """Rows, plan and outcome."""
        return self.rows, self.plan, self.outcome

    @property
    def progress(self) -> tuple[int, int]:
        """Items done before rows can be read, and their total, 0 if unknown."""
        return int(self._words[_DONE]), int(self._words[_TOTAL])

    @property
    def inode(self) -> int:
        """Inode of the file or folder that becomes the pack, 0 before it is created."""
        return int(self._words[_INODE])

    @property
    def text(self) -> Any:
        """Why earlier work was discarded, None if none was; the error of a run that failed."""
        nbytes = int(self._words[_TEXT])
        return json.loads(self._bytes[_TEXT_AT : _TEXT_AT + nbytes]) if nbytes else None

    def begin(self) -> None:
        """Begin a run: nothing can be read."""
        for word in (_ROWS, _PLAN, _OUTCOME, _DONE, _TOTAL, _TEXT, _INODE):
            self._words[word] = 0

    def describe(self, plan: int) -> None:
        """Say what is being made."""
        self._words[_PLAN] = plan

    def place(self, inode: int) -> None:
        """Say which file or folder becomes the pack."""
        self._words[_INODE] = inode

    def rise(self, rows: int) -> None:
        """Say that rows [0, rows) can be read."""
        self._words[_ROWS] = max(rows, self.rows)

    def move(self, done: int, total: int = 0) -> None:
        """Report progress."""
        self._words[_DONE], self._words[_TOTAL] = done, total or self._words[_TOTAL]

    def say(self, text: Any) -> None:
        """Set the text, JSON values; a very long one is cut."""
        data = json.dumps(text).encode()
        if len(data) > _BYTES - _TEXT_AT:
            data = json.dumps([part[: _BYTES // 16] for part in text]).encode()
        self._bytes[_TEXT_AT : _TEXT_AT + len(data)] = data
        self._words[_TEXT] = len(data)

    def end(self, error: PackerError | None = None) -> None:
        """End a run: the pack has its name, or cannot be made."""
        if error is not None:
            self.say(failure(error)[1])
        self._words[_OUTCOME] = SEALED if error is None else FAILED

    def lock(self) -> bool:
        """Lock it until this process and its children end; return False if another process has."""
        return try_lock(self._fd, fcntl.LOCK_EX)

    @property
    def alive(self) -> bool:
        """True while the process that writes it lives, even if the file was removed."""
        if not try_lock(self._fd, fcntl.LOCK_SH):
            return True
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return False


def try_lock(fd: int, kind: int) -> bool:
    """Lock an open file if that needs no waiting. Raises OSError on a file system without locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_private(path: str, data: bytes) -> None:
    """Write a small file that only this user reads, replacing an old one or a link. Raises OSError."""
    with open(create_anew(path), "wb") as file:
        file.write(data)


class Readers:
    """A shared lock that tells the converting process that somebody reads; ends with this object."""

    def __init__(self, path: str) -> None:
        """Open the file, creating it. Raises OSError."""
        self._fd = open_own(path, mode=PRIVATE)
        self._close = weakref.finalize(self, os.close, self._fd)
        self._close.atexit = False

    def join(self) -> bool:
        """Be one of the readers; return False if the converting process is ending."""
        return try_lock(self._fd, fcntl.LOCK_SH)

    def leave(self) -> bool:
        """Be none of the readers; return True if no process is."""
        alone = try_lock(self._fd, fcntl.LOCK_EX)
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return alone

    def close(self) -> None:
        """Close the file."""
        self._close()
