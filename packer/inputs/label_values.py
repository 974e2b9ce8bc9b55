"""Labels given as text: the rules for what they may be, and the CSV in which they stand beside the names of images.

    every cell of the column is       becomes (label_as="auto")
    a whole number                    int64: 7, -1, +2, 3.0 and 1e0 are whole numbers
    a number, some not whole          float32 (regression)
    anything else                     int64, numbering the class names in sorted order

A whole number with leading zeros (007) is a class name, as a number would not tell it from 7. label_as="classes" takes numbers for
class names, too, and "float" (or "number") makes float32 of them, whole or not.
Whole numbers may stand among class names ("7" beside "seven"), other numbers may not: then one of the two is a mistake.
Empty cells and the words nan, inf and infinity are mistakes always.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.inputs.file_names import shorten
from packer.sentence import Option, Part
from packer.units import LEADING_ZEROS

LABEL_AS = ("auto", "classes", "float", "number")
"""How labels may be taken; "number" is another word for "float"."""
BARS = "|;"
"""The separator that stands for either one."""

_WHOLE = re.compile(r"[0-9]+")
_PADDED = re.compile(LEADING_ZEROS)
_SIGNED = re.compile(r"[+-]?([0-9]+)(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_BETWEEN_NAMES = re.compile(r"[|;]")
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INT64 = np.iinfo(np.int64)
_DIGITS = 25  # more than an int64 has, few enough to be made an int of
_SHOWN = 3
_EQUAL_SHARE = 0.1  # of the different numbers; among many drawn ones a few are equal as float32


class CheckedRows:
    """Rows of a file; the first that cannot be used is an error, or all of them are noted.

    subject: the file; lines: where the rows stand in it, counted from 1; skip: note them; then: called with each row that is noted
    and its reason, in words that follow the image's name; unit: what the numbers count. refused: row -> reason. notes: what the user
    may not expect of the values, a sentence each.
    """

    def __init__(
        self,
        subject: str,
        lines: Sequence[int] | NDArray[np.int64],
        *,
        skip: bool = False,
        then: Callable[[int, str], object] | None = None,
        unit: str = "line",
        notes: list[str] | None = None,
    ) -> None:
        self.subject, self._lines, self._skip, self._then, self.unit = subject, lines, skip, then, unit
        self.refused: dict[int, str] = {}
        self.notes = [] if notes is None else notes

    def refuse(self, row: int, found: str, *allowed: Part) -> None:
        """Note a row, or raise SourceError. found: what is wrong with it; allowed: what is right, and a remedy."""
        if not self._skip:
            raise self.error(row, f"{found}; ", *allowed)
        if row not in self.refused:
            reason = f"{found} ({os.path.basename(self.subject)} {self.unit} {self.line(row)})."
            self.refused[row] = reason
            if self._then is not None:
                self._then(row, reason)

    def error(self, row: int, *parts: Part) -> SourceError:
        """Return the error for a row."""
        return SourceError(f"{self.subject} {self.unit} {self.line(row)}: ", *parts)

    def line(self, row: int) -> int:
        """Return where a row stands."""
        return int(self._lines[row])


def number_labels(
    rows: CheckedRows,
    texts: Sequence[str],
    *,
    column: str = "the label",
    regression: bool = True,
    label_as: str = "auto",
    padded: bool = True,
) -> tuple[NDArray[Any], list[str] | None]:
    """Turn labels as text into numbers.

    rows: refuse labels that are empty, not finite or too large, whose number is then 0; texts: the label of each.
    column: what to call them; regression: accept numbers that are not whole; label_as: as the module's table tells; padded: take
    whole numbers with leading zeros for class names.
    Returns: int64 or float32 [N], and the class names that they number, or None where they were numbers already.
    Raises: SourceError for a label that is refused, and for names and numbers that are not written plainly in one column.
    """
    check_label_as(label_as)
    floats = label_as in ("float", "number")
    padded = padded and label_as == "auto"
    name, number, fraction = None, None, None  # where the first ones are
    for row, text in enumerate(texts):
        if _WHOLE.fullmatch(text) and not (padded and text[0] == "0" and len(text) > 1):
            continue
        if not text or _NOT_FINITE.fullmatch(text):
            _refuse(rows, row, column, text, regression)
        elif label_as == "classes" or (padded and _PADDED.fullmatch(text)):
            name = row if name is None else name
        elif _NUMBER.fullmatch(text):
            number = row if number is None else number
            if _whole(text) is None:
                if not regression:
                    _refuse(rows, row, column, text, regression)
                else:
                    fraction = row if fraction is None else fraction
        else:
            name = row if name is None else name
        if name is not None and floats:
            raise rows.error(
                name,
                f"{column} is {texts[name]}; with label_as {label_as} numbers are accepted. "
                "Correct it, or leave that out.",
            )
        if name is not None and number is not None:
            first, second = sorted((name, number))
            raise rows.error(
                second,
                f"{column} is {texts[second]}, and {texts[first]} in {rows.unit} {rows.line(first)}; "
                "numbers or class names are accepted, not both. Correct one, or pass ",
                Option("label_as", "classes"),
                ".",
            )
    refused = rows.refused
    if name is not None and padded:
        _note_padded(rows, texts, column)
    if name is not None or label_as == "classes":
        return _number_names([None if row in refused else text for row, text in enumerate(texts)])
    whole = fraction is None and not floats
    too_large = _beyond_int64 if whole else _beyond_float32
    for row, text in enumerate(texts):
        if row not in refused and too_large(text):
            _refuse(rows, row, column, text, regression)
    kept = texts if not refused else ["0" if row in refused else text for row, text in enumerate(texts)]
    if whole:
        return np.fromiter(map(_int, kept), np.int64, len(texts)), None
    values = np.fromiter(map(float, kept), np.float64, len(texts))
    _note_rounded(rows, values, column)
    return values.astype(np.float32), None


def _note_padded(rows: CheckedRows, texts: Sequence[str], column: str) -> None:
    """Note that labels which look like numbers are class names."""
    kept = [text for row, text in enumerate(texts) if row not in rows.refused]
    if kept and all(map(_SIGNED.fullmatch, kept)):
        shown = next(filter(_PADDED.fullmatch, kept))
        rows.notes.append(
            f"{column} holds whole numbers with leading zeros, such as {shown}, which numbers would lose: "
            "its texts are the classes; " + Option("label_as", "float") + " takes them for numbers."
        )


def _note_rounded(rows: CheckedRows, values: NDArray[np.float64], column: str) -> None:
    """Note that different numbers become equal as float32."""
    found = np.unique(values)
    stored = found.astype(np.float32)
    equal = np.flatnonzero(stored[1:] == stored[:-1])
    if len(equal) > _EQUAL_SHARE * len(found):
        first, second = found[equal[0]].item(), found[equal[0] + 1].item()
        rows.notes.append(
            f"{column} is stored as float32, which makes {len(equal):,} of {len(found):,} different numbers "
            f"equal to others, such as {first!r} and {second!r}. If that matters, subtract what they have in common."
        )


def check_label_as(label_as: str) -> None:
    """Raise UsageError unless it is one of LABEL_AS."""
    if label_as not in LABEL_AS:
        raise UsageError(f"label_as {label_as!r}: is not one of {', '.join(LABEL_AS)}. Pass one of them.")


def _number_names(texts: Sequence[str | None]) -> tuple[NDArray[np.int64], list[str]]:
    """Number names in sorted order, whole numbers without leading zeros by their value; None, no name, gets 0."""
    known = {text for text in texts if text is not None}
    values = {text: _whole(text) for text in known if _NUMBER.fullmatch(text) and not _PADDED.fullmatch(text)}
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
    rows: CheckedRows, columns: Sequence[Sequence[str]], names: Sequence[str], *, label_as: str = "auto"
) -> NDArray[Any]:
    """Turn several columns of numbers into one label each sample.

    columns: texts of each; names: of each, for messages.
    Returns: uint8 [N, C] if all are 0 or 1 (several labels, each there or not), else float32 [N, C]; label_as "float": always.
    Raises: SourceError for anything but a finite number; UsageError for label_as "classes".
    """
    check_label_as(label_as)
    if label_as == "classes":
        raise UsageError(
            f"label_as classes: goes with one label column, and {len(columns)} are chosen. Choose one, or leave it out."
        )
    values = np.empty((len(columns[0]), len(columns)), np.float32)
    for number, texts in enumerate(columns):
        numbers = finite_numbers(rows, texts, names[number])
        _note_rounded(rows, numbers, names[number])
        values[:, number] = numbers
    if label_as == "auto" and ((values == 0) | (values == 1)).all():
        return values.astype(np.uint8)
    return values


def multi_hot(
    subject: str, texts: Sequence[str], column: str, separator: str = BARS
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
            f"{subject}: {column} is empty in all {len(texts):,} rows; class names are needed. Add some."
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


def check_bars(rows: CheckedRows, texts: Sequence[str], column: str) -> None:
    """Raise UsageError if no cell holds a bar or a semicolon, and one holds a comma or a space: it may hold several names, or one."""
    if any(letter in text for text in texts for letter in BARS):
        return
    for letter, called in ((",", "comma"), (" ", "space")):
        row = next((row for row, text in enumerate(texts) if letter in text), None)
        if row is not None:
            raise UsageError(
                f"{rows.subject} {rows.unit} {rows.line(row)}: {column} is {shorten(texts[row])!r}, and no cell has a | or ;, "
                "which part names. Pass ",
                Option("label_separator", called),
                ", or ",
                Option("label_separator", "bar"),
                " if it is one name.",
            )


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
    rows: CheckedRows, texts: Sequence[str], column: str, *, missing: bool = False
) -> NDArray[np.float64]:
    """Read one column of numbers.

    rows: refuse anything but a finite number, which is then 0; missing: take empty cells for NaN.
    Returns: float64 [N], each within float32's range. Raises: SourceError.
    """
    values = np.zeros(len(texts))
    for row, text in enumerate(texts):
        if missing and not text:
            values[row] = np.nan
        elif _NUMBER.fullmatch(text) and not _beyond_float32(text):
            values[row] = float(text)
        else:
            rows.refuse(row, _found(column, text), "finite numbers are accepted. Correct it.")
    return values


def _whole(text: str) -> int | None:
    """Return the value of a number, if it is whole; of one that no int64 can hold, any such one."""
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


def _refuse(rows: CheckedRows, row: int, column: str, text: str, regression: bool) -> None:
    """Refuse a label that is no label."""
    numbers = "finite numbers, whole ones" if regression else "whole numbers"
    rows.refuse(
        row,
        _found(column, text),
        f"{numbers} from -2**63 to 2**63 - 1, or class names, are accepted. Correct it, or pass ",
        Option("on_error", "skip"),
        ".",
    )


def _found(column: str, text: str) -> str:
    return f"{column} is {shorten(text) or 'empty'}"
