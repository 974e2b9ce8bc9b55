"""Labels given as text: the rules for what they may be, and the CSV in which they stand beside the names of images.

    every cell of the column is       becomes
    a whole number from 0 up          int64, as it is
    a number, some not whole or < 0   float32 (regression)
    anything else                     int64, numbering the class names in sorted order

Whole numbers may stand among class names ("7" beside "seven"), other numbers may not: then one of the two is a mistake.
Empty cells and the words nan, inf and infinity are mistakes always.
"""

from __future__ import annotations

import csv
import os
import re
from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.inputs.textlines import read_lines, shorten

_WHOLE = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_BETWEEN_NAMES = re.compile(r"[|;]")
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INT64_MAX = int(np.iinfo(np.int64).max)
_AMBIGUOUS = -1
Lines = Sequence[int] | NDArray[np.int64]
"""Where rows stand in their file, counted from 1."""


def number_labels(
    subject: str,
    texts: Sequence[str],
    lines: Lines,
    *,
    column: str = "the label",
    regression: bool = True,
) -> tuple[NDArray[Any], list[str] | None]:
    """Turn labels as text into numbers.

    subject: the file they come from; texts: one label a sample; lines: where each of them stands.
    column: what to call them; regression: accept numbers other than whole ones from 0 up.
    Returns: int64 or float32 [N], and the class names that they number, or None where they were numbers already.
    Raises: SourceError for a label that is empty, not finite, or too large, and for names and fractions in one column.
    """
    name, fraction = None, None  # where the first ones are
    for row, text in enumerate(texts):
        if _WHOLE.fullmatch(text):
            continue
        if not text or _NOT_FINITE.fullmatch(text):
            raise _refused(subject, lines[row], column, text, regression)
        if _NUMBER.fullmatch(text):
            if not regression:
                raise _refused(subject, lines[row], column, text, regression)
            fraction = row if fraction is None else fraction
        else:
            name = row if name is None else name
        if name is not None and fraction is not None:
            first, second = sorted((name, fraction))
            raise SourceError(
                f"{subject} line {lines[second]}: {column} is {texts[second]}, and {texts[first]} in line {lines[first]}; "
                "numbers or class names are accepted, not both. Correct one."
            )
    if name is not None:
        classes = sorted(set(texts))
        numbers = {text: number for number, text in enumerate(classes)}
        return np.fromiter((numbers[text] for text in texts), np.int64, len(texts)), classes
    too_large = _beyond_int64 if fraction is None else _beyond_float32
    for row, text in enumerate(texts):
        if too_large(text):
            raise _refused(subject, lines[row], column, text, regression)
    if fraction is None:
        return np.fromiter(map(_whole, texts), np.int64, len(texts)), None
    return np.fromiter(map(float, texts), np.float32, len(texts)), None


def number_columns(
    subject: str, columns: Sequence[Sequence[str]], lines: Lines, names: Sequence[str]
) -> NDArray[Any]:
    """Turn several columns of numbers into one label each sample.

    columns: texts of each; names: of each, for messages; lines: where the samples stand.
    Returns: uint8 [N, C] if all are 0 or 1 (several labels, each there or not), else float32 [N, C].
    Raises: SourceError for anything but a finite number.
    """
    values = np.empty((len(lines), len(columns)), np.float32)
    for number, texts in enumerate(columns):
        values[:, number] = finite_numbers(subject, texts, lines, names[number])
    if ((values == 0) | (values == 1)).all():
        return values.astype(np.uint8)
    return values


def multi_hot(
    subject: str, texts: Sequence[str], lines: Lines, column: str
) -> tuple[NDArray[np.uint8], list[str]]:
    """Turn cells of several class names, parted by "|" or ";", into one entry a class.

    An empty cell has none of them. Names that are all whole numbers are sorted as such.
    Returns: uint8 [N, C], 1 where the cell holds the class, and the C class names.
    Raises: SourceError when there is no name at all.
    """
    names = {name for text in set(texts) for name in _names(text)}
    if not names:
        raise SourceError(
            f"{subject}: {column} is empty in all {len(lines):,} rows; class names are needed. Add some."
        )
    whole = all(_WHOLE.fullmatch(name) for name in names)
    classes = sorted(
        names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name) if whole else (0, name, name)
    )
    numbers = {name: number for number, name in enumerate(classes)}
    hot = np.zeros((len(texts), len(classes)), np.uint8)
    for row, text in enumerate(texts):
        for name in _names(text):
            hot[row, numbers[name]] = 1
    return hot, classes


def finite_numbers(
    subject: str, texts: Sequence[str], lines: Lines, column: str, *, missing: bool = False
) -> NDArray[np.float64]:
    """Read one column of numbers.

    missing: take empty cells for NaN. Returns: float64 [N], each within float32's range.
    Raises: SourceError for anything but a finite number.
    """
    values = np.empty(len(texts))
    for row, text in enumerate(texts):
        if missing and not text:
            values[row] = np.nan
        elif _NUMBER.fullmatch(text) and not _beyond_float32(text):
            values[row] = float(text)
        else:
            raise SourceError(
                f"{subject} line {lines[row]}: {column} is {text or 'empty'}; finite numbers are accepted. Correct it."
            )
    return values


def _names(text: str) -> list[str]:
    return [name for part in _BETWEEN_NAMES.split(text) if (name := part.strip())]


def _whole(text: str) -> int:
    return int(text.lstrip("0") or "0")  # without zeros, of which Python's int takes 4,300 at most


def _beyond_int64(text: str) -> bool:
    return len(text.lstrip("0")) > len(str(_INT64_MAX)) or _whole(text) > _INT64_MAX


def _beyond_float32(text: str) -> bool:
    return abs(float(text)) > _FLOAT32_MAX


def _refused(subject: str, line: int, column: str, text: str, regression: bool) -> SourceError:
    others = "other finite numbers, " if regression else ""
    return SourceError(
        f"{subject} line {line}: {column} is {shorten(text) or 'empty'}; whole numbers from 0 to 2**63 - 1, {others}or class names, "
        "are accepted. Correct it."
    )


class Column(Sequence[str]):
    """The cells of a column as bytes one after the other: ten million numbers take 150 MB, as a list of texts 600."""

    def __init__(self) -> None:
        """Start without cells."""
        self._text = bytearray()
        self._ends = array("q", [0])

    def append(self, text: str) -> None:
        """Add a cell."""
        self._text += text.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        """Count the cells."""
        return len(self._ends) - 1

    def __getitem__(self, row: Any) -> Any:
        """Give the text of one cell."""
        if row >= len(self):
            raise IndexError(row)
        return self._text[self._ends[row] : self._ends[row + 1]].decode("utf-8", "surrogateescape")

    def only(self, rows: NDArray[np.int64]) -> Sequence[str]:
        """Give the cells of these rows, distinct and rising."""
        return self if len(rows) == len(self) else [self[row] for row in rows.tolist()]

    def filled(self) -> NDArray[np.bool_]:
        """Say which cells are not empty, bool [rows]."""
        return np.diff(np.array(self._ends)) > 0


class LabelTable:
    """The rows of a CSV: which image each is about, and the cells of the chosen columns."""

    def __init__(self, path: str, keys: list[str], chosen: tuple[str, ...]) -> None:
        """Read it; ``chosen`` names columns, none: there are two, and the second is read."""
        self.path = path
        self._keys = keys
        self.columns = {name: Column() for name in chosen or ("",)}
        with closing(_rows(path)) as rows:
            images, lines = self._read(rows, chosen)
        self.images, self.lines = np.asarray(images, np.int64), np.asarray(lines, np.int64)
        """int64 [rows]: index of the image, line in the file."""

    def _read(
        self, rows: Iterator[tuple[int, list[str]]], chosen: tuple[str, ...]
    ) -> tuple[array[int], array[int]]:
        """Fill the columns. Returns: the rows' images and lines."""
        names = _Names(self.path, self._keys)
        images, lines = array("q"), array("q")
        file, places, width = 0, [1], 2
        if chosen:
            line, header = next(rows, (1, [""]))
            header = [name.strip() for name in header]
            file, places = self._find(header, line, chosen)
            width = len(header)
        for number, (line, row) in enumerate(rows):
            if len(row) != width:
                allowed = (
                    f"the header has {width}. Correct it."
                    if chosen
                    else "two are read, file and label. Remove the others, or name the label's with --label."
                )
                raise SourceError(f"{self.path} line {line}: {len(row)} columns; {allowed}")
            name = row[file].strip()
            if not chosen and number == 0 and not names.known(name):
                continue
            images.append(names.get(name, line))
            lines.append(line)
            for column, place in zip(self.columns.values(), places, strict=True):
                column.append(row[place].strip())
        return images, lines

    def _find(self, header: list[str], line: int, chosen: tuple[str, ...]) -> tuple[int, list[int]]:
        """Which column names the file, and which are the chosen ones."""
        where = f"{self.path} line {line}"
        for name in chosen:
            if header.count(name) != 1:
                found = (
                    f"{header.count(name)} columns are called {name}"
                    if name in header
                    else f"no column {name}"
                )
                raise SourceError(
                    f"{where}: {found}; the first row names the columns, here {shorten(', '.join(header))}. Correct it, or pass others."
                )
        file = next(place for place, name in enumerate(header) if name)
        if header[file] in chosen:
            raise SourceError(
                f"{where}: {header[file]} is the first column; that one names the files. Put another one first, or pass others."
            )
        return file, [header.index(name) for name in chosen]

    def one_an_image(self, columns: Sequence[Column], what: str) -> NDArray[np.int64]:
        """The first row of each image, int64 [N]. Raises: SourceError if others disagree, or an image has none."""
        first = np.full(len(self._keys), -1, np.int64)
        owners, rows = np.unique(self.images, return_index=True)
        first[owners] = rows
        for row in np.flatnonzero(first[self.images] != np.arange(len(self.images))).tolist():
            earlier = int(first[self.images[row]])
            now, then = (",".join(column[r] for column in columns) for r in (row, earlier))
            if now != then:
                raise SourceError(
                    f"{self.path} line {self.lines[row]}: {self._keys[self.images[row]]} has the {what} {now}, and {then} in line "
                    f"{self.lines[earlier]}; each image has one. Remove one of the rows."
                )
        missing = np.flatnonzero(first < 0)
        if len(missing):
            others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise SourceError(
                f"{self.path}: no {what} for {self._keys[missing[0]]}{others}; every image needs one. Add the rows."
            )
        return first


def _rows(path: str) -> Generator[tuple[int, list[str]], None, None]:
    """Yield (line number, cells) of the rows that are not blank."""
    rows = csv.reader(read_lines(path, "a CSV of files and labels is needed", newline=""), strict=True)
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise SourceError(f"{path} line {rows.line_num}: not CSV ({error}). Correct it.") from None


class _Names:
    """Finds images by what a CSV calls them."""

    def __init__(self, subject: str, keys: list[str]) -> None:
        self._subject = subject
        self._keys = keys
        self._paths = {key: index for index, key in enumerate(keys)}
        self._stems: dict[str, int] = {}

    def known(self, name: str) -> bool:
        """Say whether any image is called so."""
        return self._by_path(name) is not None or any(_stem(key) == name for key in self._keys)

    def get(self, name: str, line: int) -> int:
        """Give the index of the image. Raises: SourceError unless there is exactly one."""
        index = self._by_path(name)
        if index is None:
            index = self._by_stem(name)
        where = f"{self._subject} line {line}"
        if index is None:
            raise SourceError(
                f"{where}: no image is called {shorten(name)}; paths below the images' folder are read, or unique "
                "names without extension. Correct or remove the row."
            )
        if index == _AMBIGUOUS:
            first, second = [key for key in self._keys if _stem(key) == name][:2]
            raise SourceError(
                f"{where}: {name} could be {first} or {second}; a name without extension must be unique. "
                "Write the whole path."
            )
        return index

    def _by_path(self, name: str) -> int | None:
        index = self._paths.get(name)
        return self._paths.get(os.path.normpath(name)) if index is None else index

    def _by_stem(self, name: str) -> int | None:
        if not self._stems:  # made when it is needed first: for ten million images it takes two gigabytes
            for index, key in enumerate(self._keys):
                stem = _stem(key)
                self._stems[stem] = _AMBIGUOUS if stem in self._stems else index
        return self._stems.get(name)


def _stem(key: str) -> str:
    name = key.rpartition("/")[2]
    return name.rpartition(".")[0] or name
