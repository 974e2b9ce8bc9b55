"""What a conversion has done so far, a line a record, so that it can go on after any interruption.

A line is the XXH3-64 of its text in hexadecimal, a space, the text (JSON), a newline. The first says what is being made; each
of the others is added when its block's bytes and checksum have been written. Nothing is flushed to the disk here: after a
power cut lines may be there whose blocks are not, so whoever resumes compares each block with its recorded checksum.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import xxhash

from packer.format.json_text import read_json


class Journal:
    """Appends records to a file. For one thread."""

    def __init__(self, path: str) -> None:
        """Open, or begin, the journal at `path`."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        size = os.fstat(self._fd).st_size
        with open(path, "rb") as file:
            file.seek(max(0, size - 1))
            # The writer died, or the disk was full, in the middle of a line.
            self._torn = size > 0 and file.read(1) != b"\n"

    def add(self, record: Any) -> None:
        """Add one record, plain JSON values, by one write. Raises OSError, for a full disk too."""
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
    """Read the records of a journal, in order; lines that were not written whole, or by others, are left out. Empty if there is none."""
    records = []
    try:
        with open(path, "rb") as file:
            for line in file:
                digest, _, text = line.rstrip(b"\n").partition(b" ")
                if xxhash.xxh3_64_hexdigest(text).encode() == digest:
                    with contextlib.suppress(ValueError):
                        records.append(read_json(text))
    except FileNotFoundError:
        pass
    return records
