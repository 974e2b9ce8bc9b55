"""Names of files, and lines of small text files, as UTF-8, whatever the locale says, so that a pack does not depend on it.

Bytes that are not UTF-8 are lone surrogates in the text (Python's ``surrogateescape``), and come back as they were. Lists of images
and CSV files of labels may be anything: a pipe without a writer, an endless line, UTF-16. Each is one sentence here, in bounded memory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from packer.errors import SourceError

LONGEST = 16 << 20
"""Characters of a line; longer ones are taken for a file of another kind."""

_SHOWN = 120


def as_text(name: str | bytes) -> str:
    """Decode a file name, or a word of the command line, as UTF-8; a str is one that Python has decoded by the locale."""
    try:
        data = os.fsencode(name)
    except UnicodeEncodeError:
        data = on_disk(str(name))  # typed in a program: no locale has decoded it
    return data.decode("utf-8", "surrogateescape")


def on_disk(path: str) -> bytes:
    """Encode a path for the system; path: as `as_text` gives it."""
    return path.encode("utf-8", "surrogateescape")


def read_lines(path: str, needed: str, *, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file of UTF-8, each with its end; bytes that are not UTF-8 are escaped as by `os.fsdecode`.

    needed: what the file should be, for messages; newline: as `open` has it.
    Raises: SourceError for what is no regular file, cannot be read, is no text, or changes while it is read.
    """
    try:
        with open(
            path, encoding="utf-8-sig", errors="surrogateescape", newline=newline, opener=_open
        ) as file:
            before = os.fstat(file.fileno())
            if not stat.S_ISREG(before.st_mode):
                raise SourceError(f"{path}: is no regular file; {needed}. Copy it to one.")
            number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                if "\0" in line or (number == 1 and line.startswith(("\udcff\udcfe", "\udcfe\udcff"))):
                    raise SourceError(
                        f"{path} line {number}: has zero bytes, as no text of UTF-8 has; {needed}. "
                        "Check what it is; of UTF-16, convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW."
                    )
                if len(line) > LONGEST:
                    raise SourceError(
                        f"{path} line {number}: is longer than {LONGEST:,} characters; {needed}. Check what it is."
                    )
                yield line
            after = os.fstat(file.fileno())
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise changed(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}); {needed}. Check the path.") from None


def changed(path: str) -> SourceError:
    """Make the error for a file that was another one when reading it began."""
    return SourceError(f"{path}: was changed while it was read. Run the same command again when it is whole.")


def shorten(text: str) -> str:
    """Cut a text from a file, so that a message which quotes it stays one that can be read."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)"


def _open(path: str, flags: int) -> int:
    """Open without waiting for the writer of a pipe; reading files does not change by it."""
    return os.open(path, flags | os.O_NONBLOCK)
