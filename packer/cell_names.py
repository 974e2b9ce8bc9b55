"""Several class names in a cell of a table."""

from __future__ import annotations

from ast import literal_eval
from contextlib import suppress

SEPARATORS = {"space": " ", "tab": "\t", "comma": ",", "semicolon": ";", "bar": "|"}
"""Word for a separator -> the separator."""
_BRACKETS = {"[": "]", "(": ")", "{": "}"}


def split_names(text: str, separator: str) -> list[str]:
    """Split a cell into names, stripped of blanks. separator: " " matches any run of blanks.

    >>> split_names("fog; rain", ";"), split_names("['fog', 'rain']", ","), split_names("[3 17]", " ")
    (['fog', 'rain'], ['fog', 'rain'], ['3', '17'])
    """
    listed = _BRACKETS.get(text[:1], "") == text[-1:] != ""
    if listed and separator == ",":  # a list, tuple or set of Python, or a list of JSON
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            values = literal_eval(text)
            if isinstance(values, list | tuple | set):
                return [name for value in values if (name := str(value).strip())]
    listed = listed and text[0] == "["
    parts = (text[1:-1] if listed else text).split(None if separator == " " else separator)
    return [name for part in parts if (name := part.strip(" \"'" if listed else None))]
