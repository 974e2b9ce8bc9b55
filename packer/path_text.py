"""Paths and words as text, independent of the locale: UTF-8, with lone surrogates for undecodable bytes.

Python decodes file names and the command line by the locale, while packs hold UTF-8. In a Latin-1 locale
Python decodes the two bytes of "ä" as "Ã¤", which would then go into packs and files.
"""

from __future__ import annotations

import os
import re
import unicodedata


def as_text(name: str | bytes) -> str:
    """Decode a file name or a command-line word as UTF-8; a str is one that Python has decoded."""
    try:
        data = os.fsencode(name)
    except UnicodeEncodeError:
        data = on_disk(str(name))  # written in a program: no locale has decoded it
    return data.decode("utf-8", "surrogateescape")


def on_disk(path: str) -> bytes:
    """Encode a path for the system; path: as `as_text` returns it."""
    return path.encode("utf-8", "surrogateescape")


def compose(text: str) -> str:
    """Return a name in the form (NFC) by which names are compared: macOS decomposes those of files."""
    return unicodedata.normalize("NFC", text)


def simplify(text: str) -> str:
    """Return the same text for names that look nearly equal: in another case, with other spaces or letters.

    >>> simplify("Cat"), simplify("ﬁ sh") == simplify("FI\u00a0 sh")
    ('cat', True)
    """
    if text.isascii():  # the usual case, of which columns may hold millions
        return " ".join(text.lower().split())
    seen = (char for char in unicodedata.normalize("NFKC", text) if unicodedata.category(char) != "Cf")
    return " ".join("".join(seen).casefold().split())


def show_differences(text: str) -> str:
    r"""Return a name quoted, with escapes for all that makes another name look the same.

    These are combining characters, invisible ones, blanks but single spaces, and variants of other letters.

    >>> show_differences("cafe\u0301  x"), show_differences("café")
    ("'cafe\\u0301 \\x20x'", "'café'")
    """

    def shown(at: int) -> str:
        char = text[at]
        if char == " ":
            return char if 0 < at < len(text) - 1 and text[at - 1] != " " else "\\x20"
        plain = char.isprintable() and unicodedata.normalize("NFKC", char) == char
        return char if plain and not unicodedata.combining(char) else ascii(char)[1:-1]

    return "'" + "".join(map(shown, range(len(text)))) + "'"


_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Control characters (C0, DEL, C1), marks that change the writing direction, line separators."""
_UNWRITABLE = re.compile("[\ud800-\udfff]")


def visible(text: str, mark: str | None = None) -> str:
    r"""Return a text of unknown origin as it may be shown: on a terminal, in a log, on a page.

    Characters that control a terminal or change the writing direction, and undecodable bytes, become escapes,
    or `mark`, which keeps the length.

    >>> visible("red \x1b[31m")
    'red \\x1b[31m'
    """
    for characters in (_UNSEEN, _UNWRITABLE):
        text = characters.sub(mark or (lambda match: ascii(match[0])[1:-1]), text)
    return text


def safe_name(text: str) -> str:
    r"""Return a name with ``_`` for characters that control a terminal or script.

    Also for backslashes, which separate folders on Windows.

    >>> safe_name("cat/..\\..\\a\x1b[2J.png")
    'cat/.._.._a_[2J.png'
    """
    return _UNSEEN.sub("_", text).replace("\\", "_")
