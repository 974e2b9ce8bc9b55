"""File names are bytes: as text they are UTF-8 here, whatever the locale says, so that a pack does not depend on it.

Bytes that are not UTF-8 are lone surrogates in the text (Python's ``surrogateescape``), and come back as they were.
"""

from __future__ import annotations

import os


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
