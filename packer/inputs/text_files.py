"""Text files in bounded memory: UTF-8 or UTF-16, also compressed by gzip.

A pipe without a writer, an endless line and a file that is no text are reported as errors.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from packer.errors import SourceError
from packer.inputs.file_names import changed

LONGEST = 16 << 20
"""Longest line in characters; a longer line means that the file is not text."""

_GZIP = b"\x1f\x8b"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_lines(path: str, needed: str, *, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file with their line ends; escape invalid bytes as `os.fsdecode` does.

    needed: the expected content, for messages. newline: see `open`. Text is UTF-16 if its byte order mark
    says so, else UTF-8.
    Raises: SourceError if the file is unreadable, not regular, not text, or changes while it is read.
    """
    with open_bytes(path, needed) as (file, data):
        before = os.fstat(file.fileno())
        wide = data.peek(2)[:2] in _UTF_16
        encoding, errors = ("utf-16", "strict") if wide else ("utf-8-sig", "surrogateescape")
        text = io.TextIOWrapper(data, encoding, errors, newline)
        number = 0
        try:
            while line := text.readline(LONGEST + 1):
                number += 1
                if "\0" in line:
                    raise SourceError(
                        f"{path} line {number}: has zero bytes, which UTF-8 text has not; {needed}. "
                        "Check the file; convert UTF-16 with: iconv -f UTF-16 -t UTF-8 OLD > NEW."
                    )
                if len(line) > LONGEST:
                    raise SourceError(
                        f"{path} line {number}: is longer than {LONGEST:,} characters; {needed}. Check the "
                        "file."
                    )
                yield line
        except UnicodeDecodeError:
            raise SourceError(
                f"{path} line {number + 1}: begins like UTF-16, but is not; {needed}. Save it as UTF-8."
            ) from None
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise changed(path)


def read_bytes(path: str, needed: str, *, most: int | None = None) -> bytes:
    """Return all bytes of a file, decompressed if it is gzip, at most `most`.

    Raises: SourceError if it is larger, not a regular file, or cannot be read.
    """
    with open_bytes(path, needed) as (_, data):
        found = data.read(-1 if most is None else most + 1)
    if most is not None and len(found) > most:
        raise SourceError(f"{path}: is larger than {most:,} bytes; {needed}. Check the file.")
    return found


def first_bytes(path: str, needed: str, size: int) -> bytes:
    """Return the first bytes of a file, decompressed if it is gzip. Raises: SourceError."""
    with open_bytes(path, needed) as (_, data):
        return data.read(size)


@contextmanager
def open_bytes(path: str, needed: str) -> Iterator[tuple[IO[bytes], io.BufferedReader]]:
    """Open a file with O_NONBLOCK: a pipe without a writer does not block, regular files are unaffected.

    Yields: the file; its bytes, decompressed if it is gzip. Raises: SourceError.
    """
    try:
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SourceError(f"{path}: is not a regular file; {needed}. Copy it to a regular file.")
            if file.peek(2)[:2] == _GZIP:
                yield file, io.BufferedReader(gzip.GzipFile(fileobj=file))
            else:
                yield file, file
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise SourceError(f"{path}: damaged or truncated gzip; {needed}. Get it again.") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); {needed}. Check the path.") from None
