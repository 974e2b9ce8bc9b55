"""Values, options and calls as messages show them: short, on one line, arrays by their shape.

`shown` replaces repr() in messages; `brief` is the limit of every message (PackerError). Options and calls
are worded as in Python; the command line words them differently (cli/option_words.py).
"""

from __future__ import annotations

import re
import reprlib
from typing import Any

LONGEST = 400
"""Maximum number of characters of a given value in a message."""
_WHOLE = 1000  # characters of a message that is shown in full
_WORD = re.compile(rf"\S{{{LONGEST + 1},}}")
_ADDRESS = re.compile(r"(?<=\S) at 0x[0-9a-fA-F]+(?=>)")
_BUILT_IN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, type(None))


class _Short(reprlib.Repr):
    """repr() of limited length and depth. Arrays, tensors, frames: type, dtype and shape."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, 200, 100, 40
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 12

    def repr1(self, x: Any, level: int) -> str:
        """Return the text of a value, nested `level` levels above the deepest that is shown."""
        if type(x) in _BUILT_IN:
            return super().repr1(x, level)
        kind = type(x).__name__
        shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
        if isinstance(shape, tuple) and hasattr(x, "__setitem__"):  # NumPy's scalars have none
            of = "" if dtype is None else f" {str(dtype).removeprefix('torch.')}"
            return f"<{kind}{of} {list(shape)}>"
        text = _ADDRESS.sub("", repr(x))
        return text if len(text) <= self.maxother and "\n" not in text else f"<{kind}>"


def shown(value: object) -> str:
    """Return a given value as a message shows it.

    >>> shown("train"), shown({"a": list(range(1000))})
    ("'train'", "{'a': [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]}")
    """
    try:
        text = _Short().repr(value)
    except Exception:  # anything may be given, and its methods may do anything
        return f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


def brief(text: str, most: int = _WHOLE) -> str:
    """Return a message without the middle of what is too long to be read: of a word, of the message.

    >>> len(brief("x" * 10_000 + ": no such file.")), brief("short")
    (413, 'short')
    """
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2 - 3
    text = _WORD.sub(lambda word: f"{word[0][:half]} ... {word[0][-half:]}", text)
    return text if len(text) <= most else f"{text[: most // 2 - 105]} ... {text[-most // 2 + 105 :]}"


def option_text(name: str, value: object = None) -> str:
    """Return an argument of a public function with its value; None for the name alone.

    name: the keyword, or "Labels.column" for a member of the value of `labels`.

    >>> option_text("on_error", "skip"), option_text("Csv.delimiter", ";"), option_text("size")
    ("on_error='skip'", "csv=Csv(delimiter=';')", 'size=')
    """
    owner, _, keyword = name.rpartition(".")
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
    whole = all(isinstance(part, str) for part in parts)  # to be copied from the message
    text = "" if value is None else repr(value) if whole else shown(value)
    return f"{owner.lower()}={owner}({keyword}={text})" if owner else f"{keyword}={text}"


def call_text(function: str, *arguments: str, **options: object) -> str:
    """Return a call of a public function.

    >>> call_text("repack", "a.h5", "b", shards="2GB")
    "repack('a.h5', 'b', shards='2GB')"
    """
    return (
        f"{function}({', '.join([*map(repr, arguments), *(option_text(*item) for item in options.items())])})"
    )
