"""Paths and words as text, whatever the locale: UTF-8, and lone surrogates for bytes that are not.

Python decodes file names and the command line by the locale, packs hold UTF-8. In a Latin-1 locale the two bytes of "ä" are the text
"Ã¤" to Python; taken into a pack, or written into a file, they would stay it.
"""

from __future__ import annotations

import os


def as_text(name: str | bytes) -> str:
    """Decode a file name, or a word of the command line, as UTF-8; a str is one that Python has decoded."""
    try:
        data = os.fsencode(name)
    except UnicodeEncodeError:
        data = on_disk(str(name))  # typed in a program: no locale has decoded it
    return data.decode("utf-8", "surrogateescape")


def on_disk(path: str) -> bytes:
    """Encode a path for the system; path: as `as_text` gives it."""
    return path.encode("utf-8", "surrogateescape")
