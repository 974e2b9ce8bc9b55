"""The journal of unfinished work: records appended to a file, from which the next run resumes."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from typing import Any

import xxhash

from packer.format.file_io import PRIVATE, open_own
from packer.format.header import read_json


class Journal:
    """A file to which records are appended, one per line. For one thread.

    A line is the hexadecimal XXH3-64 of its text, a space, the text (JSON), a newline. The first line is the
    plan. Each further line is appended after its block's bytes and checksum have been written. Nothing is
    flushed to disk here: after a power cut there may be lines whose blocks are missing, so a resuming run
    compares each block with its recorded checksum.
    """

    def __init__(self, path: str) -> None:
        """Open or create the journal at `path`."""
        self._fd = open_own(path, mode=PRIVATE, flags=os.O_WRONLY | os.O_APPEND)
        size = os.fstat(self._fd).st_size
        with open(path, "rb") as file:
            file.seek(max(0, size - 1))
            # The writer died, or the disk became full, in the middle of a line.
            self._torn = size > 0 and file.read(1) != b"\n"

    def add(self, record: Any) -> None:
        """Append a record (plain JSON values) by one write. Raises OSError, also for a full disk."""
        text = json.dumps(record, separators=(",", ":"))
        if self._torn:
            os.write(self._fd, b"\n")
        self._torn = True
        line = f"{xxhash.xxh3_64_hexdigest(text.encode('ascii'))} {text}\n".encode("ascii")
        written = os.write(self._fd, line)
        while written < len(line):
            written += os.write(self._fd, line[written:])
        self._torn = False

    def close(self) -> None:
        """Close the file; closing again does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def read_journal(path: str) -> list[Any]:
    """Return the records of a journal in order, [] if there is none. Skips incomplete and foreign lines."""
    records = []
    try:
        with open(path, "rb") as file:
            for line in file:
                digest, _, text = line.rstrip(b"\n").partition(b" ")
                if xxhash.xxh3_64_hexdigest(text).encode() == digest:
                    with suppress(ValueError):
                        records.append(read_json(text))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise
    return records
