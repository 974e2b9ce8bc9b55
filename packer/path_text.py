"""Paths and words as text, whatever the locale: UTF-8, and lone surrogates for bytes that are not.

Python decodes file names and the command line by the locale, packs hold UTF-8. In a Latin-1 locale the two bytes of "ä" are the text
"Ã¤" to Python; taken into a pack, or written into a file, they would stay it.
"""

from __future__ import annotations

import os
import re


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


UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Control characters (C0, DEL, C1), marks that turn the direction of writing, separators of lines."""


def safe_name(text: str) -> str:
    r"""Return a name with ``_`` for what a terminal or a script would obey, and for backslashes, which separate folders on Windows.

    >>> safe_name("cat/..\\..\\a\x1b[2J.png")
    'cat/.._.._a_[2J.png'
    """
    return UNSEEN.sub("_", text).replace("\\", "_")
