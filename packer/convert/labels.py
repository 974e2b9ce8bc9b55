"""Labels given as text: a CSV of files and labels, and the rules for what a label may be.

Labels are all whole numbers from 0 up, which are taken as they are, or all class names, which are numbered in
sorted order. The CSV has two columns, file and label; a first row whose first cell names no image is a
header.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError

_WHOLE = re.compile(r"0*[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_AMBIGUOUS = -1


def number_labels(
    subject: str, texts: list[str], lines: list[int]
) -> tuple[NDArray[np.int64], list[str] | None]:
    """Turn labels as text into numbers.

    subject: the file they come from; texts: one label a sample; lines: where each of them stands.
    Returns: int64 [N], and the class names they number, or None where they were numbers already.
    Raises: SourceError for an empty label, and for numbers that are not whole, negative, or beyond int64.
    """
    whole = all(_WHOLE.fullmatch(text) for text in texts)
    for text, line in zip(texts, lines, strict=True):
        wrong = int(text) > np.iinfo(np.int64).max if whole else not text or _is_other_number(text)
        if wrong:
            found = f"the label is {text}" if text else "the label is empty"
            raise SourceError(
                f"{subject} line {line}: {found}; whole numbers from 0 to 2**63 - 1, or class names, are "
                "accepted. Correct it."
            )
    if whole:
        return np.array([int(text) for text in texts], np.int64), None
    classes = sorted(set(texts))
    numbers = {name: number for number, name in enumerate(classes)}
    return np.array([numbers[text] for text in texts], np.int64), classes


def _is_other_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and _WHOLE.fullmatch(text) is None


def read_labels(path: str, keys: list[str]) -> tuple[NDArray[np.int64], list[str] | None]:
    """Read the label of each image from a CSV.

    path: the CSV, UTF-8 with or without a byte order mark; other bytes stand for themselves, as in file
    names.
    keys: paths of the images. A row names one by its path, or by its name without folder and extension where
    only one
        image has it.
    Returns: int64 [N] in the order of ``keys``, and the class names they number, or None.
    Raises: SourceError when a row cannot be understood or names no image, when two rows disagree, and when an
    image
        has no row.
    """
    names = _Names(path, keys)
    texts: list[str | None] = [None] * len(keys)
    lines = [0] * len(keys)
    for number, (line, row) in enumerate(_rows(path)):
        if len(row) != 2:
            raise SourceError(
                f"{path} line {line}: {len(row)} columns; two are read, file and label. Remove the others."
            )
        file, text = row[0].strip(), row[1].strip()
        if number == 0 and names.find(file) is None:
            continue
        index = names.get(file, line)
        if texts[index] is not None and texts[index] != text:
            raise SourceError(
                f"{path} line {line}: {keys[index]} has the label {text}, and {texts[index]} in line "
                f"{lines[index]}; each image has one. Remove one of the rows."
            )
        texts[index], lines[index] = text, line
    missing = [key for key, text in zip(keys, texts, strict=True) if text is None]
    if missing:
        others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise SourceError(f"{path}: no label for {missing[0]}{others}; every image needs one. Add the rows.")
    return number_labels(path, [text for text in texts if text is not None], lines)


def _rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of the rows that are not blank."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            rows = csv.reader(file, strict=True)
            for row in rows:
                if row:
                    yield rows.line_num, row
    except OSError as error:
        reason = f"cannot be read ({error.strerror}); a CSV of files and labels is needed."
        raise SourceError(f"{path}: {reason} Check the path.") from None
    except csv.Error as error:
        raise SourceError(f"{path} line {rows.line_num}: not CSV ({error}). Correct it.") from None


class _Names:
    """Finds images by what a CSV calls them."""

    def __init__(self, subject: str, keys: list[str]) -> None:
        self._subject = subject
        self._keys = keys
        self._paths = {key: index for index, key in enumerate(keys)}
        self._stems: dict[str, int] = {}
        for index, key in enumerate(keys):
            stem = _stem(key)
            self._stems[stem] = _AMBIGUOUS if stem in self._stems else index

    def find(self, name: str) -> int | None:
        """Give the image's index, None if there is none, _AMBIGUOUS if there are several of that stem."""
        index = self._paths.get(name)
        if index is None:
            index = self._paths.get(os.path.normpath(name))
        return self._stems.get(name) if index is None else index

    def get(self, name: str, line: int) -> int:
        """Give the index of the image. Raises: SourceError unless there is exactly one."""
        index = self.find(name)
        where = f"{self._subject} line {line}"
        if index is None:
            raise SourceError(
                f"{where}: no image is called {name}; paths below the images' folder are read, or unique "
                "names without extension. Correct or remove the row."
            )
        if index == _AMBIGUOUS:
            first, second = [key for key in self._keys if _stem(key) == name][:2]
            raise SourceError(
                f"{where}: {name} could be {first} or {second}; a name without extension must be unique. "
                "Write the whole path."
            )
        return index


def _stem(key: str) -> str:
    name = key.rpartition("/")[2]
    return name.rpartition(".")[0] or name
