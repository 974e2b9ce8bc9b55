"""Labels given as text: the rules for what they may be, and the CSV in which they stand beside the names of images.

    every cell of the column is       becomes (label_as="auto")
    a whole number                    int64: 7, 07, -1, +2, 3.0 and 1e0 are whole numbers
    a number, some not whole          float32 (regression)
    anything else                     int64, numbering the class names in sorted order

label_as="classes" takes numbers for class names, too, and "float" (or "number") makes float32 of them, whole or not.
Whole numbers may stand among class names ("7" beside "seven"), other numbers may not: then one of the two is a mistake.
Empty cells and the words nan, inf and infinity are mistakes always.
"""

from __future__ import annotations

import csv
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.inputs.layout import is_image
from packer.inputs.textlines import read_lines, shorten
from packer.sentence import Option, Sentence

LABEL_AS = ("auto", "classes", "float", "number")
"""How labels may be taken; "number" is another word for "float"."""
BARS = "|;"
"""The separator that stands for either one."""

_WHOLE = re.compile(r"[0-9]+")
_SIGNED = re.compile(r"[+-]?([0-9]+)(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_BETWEEN_NAMES = re.compile(r"[|;]")
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INT64 = np.iinfo(np.int64)
_DIGITS = 25  # more than an int64 has, few enough to be made an int of
_AMBIGUOUS = -1
_SHOWN = 3
_SNIFFED_ROWS = 20
Lines = Sequence[int] | NDArray[np.int64]
"""Where rows stand in their file, counted from 1."""
Bad = dict[int, str]
"""Position of a label that is refused -> the reason, in words that follow the image's name."""


def number_labels(
    subject: str,
    texts: Sequence[str],
    lines: Lines,
    *,
    column: str = "the label",
    regression: bool = True,
    label_as: str = "auto",
    bad: Bad | None = None,
) -> tuple[NDArray[Any], list[str] | None]:
    """Turn labels as text into numbers.

    subject: the file they come from; texts: one label a sample; lines: where each of them stands.
    column: what to call them; regression: accept numbers that are not whole; label_as: as the module's table tells.
    bad: takes labels that are empty, not finite or too large, whose number is then 0; None: the first of them is an error.
    Returns: int64 or float32 [N], and the class names that they number, or None where they were numbers already.
    Raises: SourceError for a label that is refused, and for names and numbers that are not written plainly in one column.
    """
    check_label_as(label_as)
    floats = label_as in ("float", "number")
    name, number, fraction = None, None, None  # where the first ones are
    for row, text in enumerate(texts):
        if _WHOLE.fullmatch(text):
            continue
        if not text or _NOT_FINITE.fullmatch(text):
            _refuse(subject, row, lines, column, text, regression, bad)
        elif label_as == "classes":
            name = row if name is None else name
        elif _NUMBER.fullmatch(text):
            number = row if number is None else number
            if _whole(text) is None:
                if not regression:
                    _refuse(subject, row, lines, column, text, regression, bad)
                else:
                    fraction = row if fraction is None else fraction
        else:
            name = row if name is None else name
        if name is not None and floats:
            raise SourceError(
                f"{subject} line {lines[name]}: {column} is {texts[name]}; with label_as {label_as} numbers are accepted. "
                "Correct it, or leave that out."
            )
        if name is not None and number is not None:
            first, second = sorted((name, number))
            raise SourceError(
                f"{subject} line {lines[second]}: {column} is {texts[second]}, and {texts[first]} in line {lines[first]}; "
                "numbers or class names are accepted, not both. Correct one, or pass ",
                Option("label_as", "classes"),
                ".",
            )
    refused = bad or {}
    if name is not None or label_as == "classes":
        return _number_names([None if row in refused else text for row, text in enumerate(texts)])
    whole = fraction is None and not floats
    too_large = _beyond_int64 if whole else _beyond_float32
    for row, text in enumerate(texts):
        if row not in refused and too_large(text):
            _refuse(subject, row, lines, column, text, regression, bad)
    refused = bad or {}
    kept = texts if not refused else ["0" if row in refused else text for row, text in enumerate(texts)]
    if whole:
        return np.fromiter(map(_int, kept), np.int64, len(texts)), None
    return np.fromiter(map(float, kept), np.float32, len(texts)), None


def check_label_as(label_as: str) -> None:
    """Raise UsageError unless it is one of LABEL_AS."""
    if label_as not in LABEL_AS:
        raise UsageError(f"label_as {label_as!r}: is not one of {', '.join(LABEL_AS)}. Pass one of them.")


def _number_names(texts: Sequence[str | None]) -> tuple[NDArray[np.int64], list[str]]:
    """Number names in sorted order, whole numbers by their value; None, no name, gets 0."""
    known = {text for text in texts if text is not None}
    values = {text: _whole(text) for text in known if _NUMBER.fullmatch(text)}
    if len(values) == len(known) and None not in values.values():
        called = {text: str(value) for text, value in values.items()}
        classes = sorted(set(called.values()), key=int)
    else:
        called = {text: text for text in known}
        classes = sorted(known)
    numbers = {name: number for number, name in enumerate(classes)}
    found = (0 if text is None else numbers[called[text]] for text in texts)
    return np.fromiter(found, np.int64, len(texts)), classes


def describe_labels(
    labels: NDArray[Any], classes: Sequence[str] | None, kept: NDArray[np.bool_]
) -> str | None:
    """Say how labels that are numbers are taken, a sentence; None for class names that do not look like several in one cell.

    labels: [N], kept: bool [N], of images that are packed.
    """
    if classes is not None:
        return combined_names(classes)
    found = np.unique(labels[kept])
    if not len(found):
        return None
    if labels.dtype != np.int64:
        return (
            "Labels are numbers, stored as float32; "
            + Option("label_as", "classes")
            + " takes them for classes."
        )
    if len(found) == 1:
        return f"Labels are all {found[0]}, stored as int64."
    return (
        f"Labels are {len(found):,} different whole numbers from {found[0]} to {found[-1]}, stored as int64; "
        + Option("label_as", "float")
        + " stores float32, "
        + Option("label_as", "classes")
        + " numbers them from 0."
    )


def combined_names(classes: Sequence[str]) -> str | None:
    """Say that classes look like several names in one cell, such as "cat|dog" beside "cat" and "dog"; None if they do not."""
    known = set(classes)
    for separator, called in (("|", '"|"'), (";", '";"'), (",", '","'), (" ", "a space")):
        split = {name: split_names(name, separator) for name in classes if separator in name}
        several = {name: parts for name, parts in split.items() if len(set(parts)) > 1}
        if not several:
            continue
        uses = Counter(part for parts in several.values() for part in set(parts))
        made = [name for name, parts in several.items() if known.issuperset(parts)]
        # Without names that stand alone, parts that come again and again tell: 10 words in 40 combinations.
        words = set(uses) | (known - set(several))
        again = len(known) >= 8 and 2 * len(words) <= len(known)
        if made or again or (separator in BARS and max(uses.values()) > 1):
            example = min(made or several)
            return (
                f"{len(made) or len(several):,} of the {len(classes):,} classes look like several names parted by {called}, such as "
                f"{example!r}; each is one class. Pass "
                + Option("multi_label", True)
                + " if cells hold several."
            )
    return None


def number_columns(
    subject: str,
    columns: Sequence[Sequence[str]],
    lines: Lines,
    names: Sequence[str],
    *,
    label_as: str = "auto",
    bad: Bad | None = None,
) -> NDArray[Any]:
    """Turn several columns of numbers into one label each sample.

    columns: texts of each; names: of each, for messages; lines: where the samples stand; bad: as in `number_labels`.
    Returns: uint8 [N, C] if all are 0 or 1 (several labels, each there or not), else float32 [N, C]; label_as "float": always.
    Raises: SourceError for anything but a finite number; UsageError for label_as "classes".
    """
    check_label_as(label_as)
    if label_as == "classes":
        raise UsageError(
            f"label_as classes: goes with one label column, and {len(columns)} are chosen. Choose one, or leave it out."
        )
    values = np.empty((len(lines), len(columns)), np.float32)
    for number, texts in enumerate(columns):
        values[:, number] = finite_numbers(subject, texts, lines, names[number], bad=bad)
    if label_as == "auto" and ((values == 0) | (values == 1)).all():
        return values.astype(np.uint8)
    return values


def multi_hot(
    subject: str, texts: Sequence[str], lines: Lines, column: str, separator: str = BARS
) -> tuple[NDArray[np.uint8], list[str]]:
    """Turn cells of several class names into one entry a class.

    separator: what stands between names, as `split_names` has it. An empty cell has none of them. Names that are all whole numbers
    are sorted as such.
    Returns: uint8 [N, C], 1 where the cell holds the class, and the C class names.
    Raises: SourceError when there is no name at all.
    """
    names = {name for text in set(texts) for name in split_names(text, separator)}
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
        for name in split_names(text, separator):
            hot[row, numbers[name]] = 1
    return hot, classes


def find_separator(texts: Iterable[str]) -> str:
    """Find out what stands between the names of cells: bars or semicolons if there are any, else commas, else spaces."""
    found = {letter for text in texts for letter in "|;, " if letter in text}
    if not found.isdisjoint(BARS):
        return BARS
    return "," if "," in found else " " if " " in found else BARS


def split_names(text: str, separator: str) -> list[str]:
    """Split a cell into names, without blanks around them; separator: BARS stands for "|" and ";", " " for any run of blanks."""
    parts = (
        text.split()
        if separator == " "
        else _BETWEEN_NAMES.split(text)
        if separator == BARS
        else text.split(separator)
    )
    return [name for part in parts if (name := part.strip())]


def finite_numbers(
    subject: str,
    texts: Sequence[str],
    lines: Lines,
    column: str,
    *,
    missing: bool = False,
    bad: Bad | None = None,
) -> NDArray[np.float64]:
    """Read one column of numbers.

    missing: take empty cells for NaN; bad: takes the cells that are refused, which are then 0.
    Returns: float64 [N], each within float32's range. Raises: SourceError for anything but a finite number.
    """
    values = np.zeros(len(texts))
    for row, text in enumerate(texts):
        if missing and not text:
            values[row] = np.nan
        elif _NUMBER.fullmatch(text) and not _beyond_float32(text):
            values[row] = float(text)
        elif bad is not None:
            bad.setdefault(row, _reason(subject, lines[row], column, text))
        else:
            raise SourceError(
                f"{subject} line {lines[row]}: {column} is {text or 'empty'}; finite numbers are accepted. Correct it."
            )
    return values


def _whole(text: str) -> int | None:
    """The value of a number, if it is whole; of one that no int64 can hold, any such one."""
    plain = _SIGNED.fullmatch(text)
    if plain:
        digits = plain[1].lstrip("0") or "0"
        return int(digits[:_DIGITS]) * (-1 if text[0] == "-" else 1)
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None  # its exponent has too many digits
    if not value:
        return 0
    if value.adjusted() >= _DIGITS or value.adjusted() < 0 or value != value.to_integral_value():
        return None
    return int(value)


def _int(text: str) -> int:
    return _whole(text) or 0


def _beyond_int64(text: str) -> bool:
    return not _INT64.min <= _int(text) <= _INT64.max


def _beyond_float32(text: str) -> bool:
    return abs(float(text)) > _FLOAT32_MAX


def _refuse(
    subject: str, row: int, lines: Lines, column: str, text: str, regression: bool, bad: Bad | None
) -> None:
    """Note a label that is no label, or raise SourceError."""
    if bad is not None:
        bad.setdefault(row, _reason(subject, lines[row], column, text))
        return
    numbers = "finite numbers, whole ones" if regression else "whole numbers"
    raise SourceError(
        f"{subject} line {lines[row]}: {column} is {shorten(text) or 'empty'}; {numbers} from -2**63 to 2**63 - 1, "
        "or class names, are accepted. Correct it, or pass ",
        Option("on_error", "skip"),
        ".",
    )


def _reason(subject: str, line: int, column: str, text: str) -> str:
    return f"{column} is {shorten(text) or 'empty'} ({os.path.basename(subject)} line {line})."


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


class _NotCsvError(SourceError):
    """A file breaks the rules of CSV."""


class _UnusableRowError(Exception):
    """A row that cannot be used: what was found, and what is allowed."""

    def __init__(self, found: str, allowed: str) -> None:
        self.found, self._allowed = found, allowed

    def told(self, path: str, line: int) -> SourceError:
        """Return the error for the row's file."""
        return SourceError(f"{path} line {line}: {self.found}; ", self._allowed)


class LabelTable:
    """The rows of a CSV: which image each is about, and the cells of the chosen columns."""

    def __init__(
        self,
        path: str,
        keys: list[str],
        chosen: tuple[str, ...],
        *,
        file_column: str | None = None,
        skipped: list[dict[str, str]] | None = None,
    ) -> None:
        """Read it; ``chosen`` names columns, none: there are two, and the one that does not name files is read.

        file_column: the column that names files; None: the first that has a name. skipped: takes rows that are about no image, or
        cannot be read, as {"key", "reason"}; None: the first of them is an error.
        """
        self.path = path
        self._keys = keys
        self._skipped = skipped
        self.columns = {name: Column() for name in chosen or ("",)}
        names = _Names(self._keys)
        with closing(_rows(path, _delimiter(path, names))) as rows:
            images, lines = self._read(rows, chosen, file_column, names)
        self.images, self.lines = np.asarray(images, np.int64), np.asarray(lines, np.int64)
        """int64 [rows]: index of the image, line in the file."""
        if skipped and not len(self.images):
            raise SourceError(
                f"{path}: none of its {len(skipped):,} rows can be used; the first, {skipped[0]['key']}: {skipped[0]['reason']}"
            )

    def _read(
        self,
        rows: Iterator[tuple[int, list[str]]],
        chosen: tuple[str, ...],
        file_column: str | None,
        names: _Names,
    ) -> tuple[array[int], array[int]]:
        """Fill the columns. Returns: the rows' images and lines."""
        images, lines = array("q"), array("q")
        file, places, width = 0, [1], 2
        named = bool(chosen) or file_column is not None
        if named:
            line, header = next(rows, (1, [""]))
            header = [name.strip() for name in header]
            file, places = self._find(header, line, chosen, file_column)
            width = len(header)
        for number, (line, row) in enumerate(rows):
            if len(row) != width:
                remedy = (
                    Sentence(f"the header has {width}. Correct it.")
                    if named
                    else "two are read, file and label. Remove the others, or name the label's with "
                    + Option("label")
                    + "."
                )
                wrong = _UnusableRowError(f"{len(row)} columns", remedy)
                if not named and number == 0:
                    raise wrong.told(self.path, line)
                self._leave_out(line, wrong)
                continue
            name = row[file].strip()
            if not named and number == 0 and not names.known(name):
                continue
            try:
                image = names.get(name)
            except _UnusableRowError as error:
                self._leave_out(line, error)
                continue
            images.append(image)
            lines.append(line)
            for column, place in zip(self.columns.values(), places, strict=True):
                column.append(row[place].strip())
        return images, lines

    def _leave_out(self, line: int, wrong: _UnusableRowError) -> None:
        """Note a row that cannot be used, or raise SourceError."""
        if self._skipped is None:
            raise wrong.told(self.path, line) from None
        key = f"{os.path.basename(self.path)} line {line}"
        self._skipped.append({"key": key, "reason": f"{wrong.found}."})

    def _find(
        self, header: list[str], line: int, chosen: tuple[str, ...], file_column: str | None
    ) -> tuple[int, list[int]]:
        """Which column names the file, and which are the chosen ones."""
        where = f"{self.path} line {line}"
        for name in (*chosen, *(() if file_column is None else (file_column,))):
            if header.count(name) != 1:
                found = (
                    f"{header.count(name)} columns are called {name}"
                    if name in header
                    else f"no column {name}"
                )
                raise SourceError(
                    f"{where}: {found}; the first row names the columns, here {shorten(', '.join(header))}. Correct it, or pass others."
                )
        file = (
            next(place for place, name in enumerate(header) if name)
            if file_column is None
            else header.index(file_column)
        )
        if header[file] in chosen:
            is_first = (
                "is the first column; that one names the files" if file_column is None else "names the files"
            )
            remedy = (
                "Name the one that does with " + Option("label_file_column")
                if file_column is None
                else "Choose another one"
            )
            raise SourceError(f"{where}: {header[file]} {is_first}. ", remedy, ".")
        if chosen:
            return file, [header.index(name) for name in chosen]
        others = [place for place, name in enumerate(header) if name and place != file]
        if len(others) != 1:
            raise SourceError(
                f"{where}: {len(others)} columns beside {file_column}; one is taken for the label. Name it with ",
                Option("label"),
                ".",
            )
        return file, others

    def one_an_image(self, columns: Sequence[Column], what: str, bad: Bad | None = None) -> NDArray[np.int64]:
        """Find the first row of each image.

        bad: takes images whose rows disagree, or that have none, and get any row. Returns: int64 [N].
        Raises: SourceError without bad, for the first of those.
        """
        first = np.full(len(self._keys), -1, np.int64)
        owners, rows = np.unique(self.images, return_index=True)
        first[owners] = rows
        for row in np.flatnonzero(first[self.images] != np.arange(len(self.images))).tolist():
            image = int(self.images[row])
            earlier = int(first[image])
            now, then = (",".join(column[r] for column in columns) for r in (row, earlier))
            if now == then:
                continue
            if bad is None:
                raise SourceError(
                    f"{self.path} line {self.lines[row]}: {self._keys[image]} has the {what} {now}, and {then} in line "
                    f"{self.lines[earlier]}; each image has one. Remove one of the rows."
                )
            called, line = os.path.basename(self.path), self.lines[row]
            reason = f"its {what} is {then} ({called} line {self.lines[earlier]}) and {now} (line {line})."
            bad.setdefault(image, reason)
        missing = np.flatnonzero(first < 0)
        if len(missing) and bad is None:
            others = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise SourceError(
                f"{self.path}: no {what} for {self._keys[missing[0]]}{others}; every image needs one. "
                "Add the rows, or pass ",
                Option("on_error", "skip"),
                ".",
            )
        if len(missing) and not len(self.images):
            raise SourceError(f"{self.path}: holds no rows; one for each image is needed. Add them.")
        if bad is not None:
            for image in missing.tolist():
                bad.setdefault(image, f"has no row in {os.path.basename(self.path)}.")
        first[missing] = 0
        return first


def _rows(path: str, delimiter: str = ",") -> Generator[tuple[int, list[str]], None, None]:
    """Yield (line number, cells) of the rows that are not blank."""
    lines = read_lines(path, "a CSV of files and labels is needed", newline="")
    rows = csv.reader(lines, strict=True, delimiter=delimiter)
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        raise _NotCsvError(f"{path} line {rows.line_num}: not CSV ({error}). Correct it.") from None


def _delimiter(path: str, names: _Names) -> str:
    """Find out what stands between cells: a comma, a semicolon or a tab.

    The one that the first row holds; of several, one that parts the first cells so that they name images, or else the comma.
    """
    found: dict[str, list[list[str]]] = {}
    for delimiter in ",;\t":
        try:
            with closing(_rows(path, delimiter)) as rows:
                first = [row for _, row in islice(rows, _SNIFFED_ROWS)]
        except _NotCsvError:
            continue  # quotes that do not go with this delimiter
        if first and len(first[0]) > 1:
            found[delimiter] = first
    if len(found) > 1:
        for delimiter, first in found.items():
            if any(names.known(cell.strip()) for row in first[:2] for cell in row):
                return delimiter
    return next(iter(found), ",")


class _Names:
    """Finds images by what a CSV calls them: path, path without extension, or, if unique, name with or without extension."""

    def __init__(self, keys: list[str]) -> None:
        self._keys = keys
        self._paths = {key: index for index, key in enumerate(keys)}
        self._others: dict[str, dict[str, int]] = {}

    def known(self, name: str) -> bool:
        """Say whether any image is called so."""
        if self._by_path(name) is not None:
            return True
        ways = _ways(name)
        return any(_SHORT[way](key) == name for key in self._keys for way in ways)

    def get(self, name: str) -> int:
        """Return the index of the image. Raise _UnusableRowError unless there is exactly one."""
        index = self._by_path(name)
        for way in _ways(name) if index is None else ():
            index = self._known_by(way).get(name)
            if index == _AMBIGUOUS:
                first, second = [key for key in self._keys if _SHORT[way](key) == name][:2]
                raise _UnusableRowError(
                    f"{name} could be {first} or {second}",
                    f"a name without {_LEFT_OUT[way]} must be unique. Write the whole path.",
                )
            if index is not None:
                break
        if index is None:
            raise _UnusableRowError(
                f"no image is called {shorten(name)}",
                "paths below the images' folder are read, and unique names without folder or extension. Correct or remove the row, or pass "
                + Option("on_error", "skip")
                + ".",
            )
        return index

    def _by_path(self, name: str) -> int | None:
        index = self._paths.get(name)
        return self._paths.get(os.path.normpath(name)) if index is None else index

    def _known_by(self, way: str) -> dict[str, int]:
        """Images by a shorter name; made when it is needed first: for ten million images it takes two gigabytes."""
        if way not in self._others:
            found = self._others[way] = {}
            for index, key in enumerate(self._keys):
                name = _SHORT[way](key)
                found[name] = _AMBIGUOUS if name in found else index
        return self._others[way]


def _without_extension(key: str) -> str:
    folder, slash, name = key.rpartition("/")
    return f"{folder}{slash}{name.rpartition('.')[0] or name}"


_SHORT: dict[str, Callable[[str], str]] = {
    "path": _without_extension,
    "name": lambda key: key.rpartition("/")[2],
    "stem": lambda key: _without_extension(key).rpartition("/")[2],
}
_LEFT_OUT = {"path": "extension", "name": "folder", "stem": "extension"}


def _ways(name: str) -> tuple[str, ...]:
    """By which shorter names an image may be called so."""
    if "/" in name:
        return ("path",)
    return ("name", "stem") if is_image(name) else ("stem",)
