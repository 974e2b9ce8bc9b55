"""Labels given as text: the rules for what they may be.

    every cell of the column is       becomes (label_as="auto")
    a whole number                    int64: 7, -1, +2, 3.0 and 1e0 are whole numbers
    a number, some not whole          float32 (regression)
    anything else                     int64, numbering the class names in sorted order

A whole number with leading zeros (007) is a class name, as a number would not tell it from 7. label_as="classes" takes numbers for
class names, too, and "float" makes float32 of them, whole or not.
Whole numbers may stand among class names ("7" beside "seven"), other numbers may not: then one of the two is a mistake.
Empty cells and the words nan, inf and infinity are mistakes always.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.inputs.file_names import shorten
from packer.inputs.findings import Findings
from packer.sentence import Option, Sentence
from packer.units import LEADING_ZEROS

LABEL_AS = ("auto", "classes", "float")
"""How labels may be taken."""

_WHOLE = re.compile(r"[0-9]+")
_PADDED = re.compile(LEADING_ZEROS)
_SIGNED = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_BETWEEN_NAMES = re.compile(r"[|;]")
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INT64 = range(-(1 << 63), 1 << 63)
_DIGITS = 1000  # more than an int64 has, few enough to be made an int of
_EXACT = 1 << 53  # whole numbers up to this one are floats
_EQUAL_SHARE = 0.1  # of the different numbers; among many drawn ones a few are equal as float32


class CheckedRows:
    """Rows of a file that say something of images; the first that cannot be used is an error, or its image is refused.

    subject: the file; lines: where the rows stand in it, counted from 1; unit: what these numbers count; images: what each row is
    about, None: row k is about image k. refused: rows so far, whose images are refused.
    """

    def __init__(
        self,
        subject: str,
        lines: Sequence[int] | NDArray[np.int64],
        findings: Findings | None = None,
        *,
        unit: str = "line",
    ) -> None:
        self.subject, self.unit, self.findings = subject, unit, findings or Findings()
        self.lines, self.images = np.asarray(lines, np.int64), np.arange(len(lines))
        self.refused: set[int] = set()

    def refuse(self, row: int, found: str, allowed: str) -> None:
        """Refuse the image of a row. found: what is wrong with it; allowed: what is right, and a remedy. Raises SourceError."""
        where = f"{self.unit} {self.lines[row]}"
        reason = f"{found} ({os.path.basename(self.subject)} {where})."
        self.findings.refuse(int(self.images[row]), reason, f"{self.subject} {where}: {found}; {allowed}")
        self.refused.add(row)


def number_labels(
    rows: CheckedRows,
    texts: Sequence[str],
    *,
    column: str = "the label",
    regression: bool = True,
    label_as: str = "auto",
    names: list[str] | None = None,
) -> tuple[NDArray[Any], list[str] | None]:
    """Turn labels as text into numbers, and note in ``rows`` how they are taken.

    rows: refuse labels that are empty, not finite or too large, whose number is then 0; texts: the label of each.
    column: what to call them; regression: accept numbers that are not whole; label_as: as the module's table tells; names: of the
    classes that whole numbers stand for, which then may have leading zeros.
    Returns: int64 or float32 [N], and the class names that they number, or None where they were numbers already.
    Raises: SourceError for a label that is refused, and for names and numbers that are not written plainly in one column.
    """
    first: dict[str, int] = {}
    for row, text in enumerate(texts):
        first.setdefault(text, row)
    kinds = {text: _kind_of(text, label_as, padded=names is None) for text in first}
    by_kind = {kind: text for text, kind in reversed(kinds.items())}
    named, other = by_kind.get("name"), by_kind.get("number") or by_kind.get("fraction")
    if named is not None and other is not None:
        earlier, later = sorted((named, other), key=first.__getitem__)
        places = [f"{rows.unit} {rows.lines[first[text]]}" for text in (later, earlier)]
        raise SourceError(
            f"{rows.subject} {places[0]}: {column} is {later}, and {earlier} in {places[1]}; numbers or class names are accepted, not "
            f"both. Correct one, or pass {Option('Labels.as_', 'classes')}."
        )
    are_names = named is not None or label_as == "classes"
    whole = not are_names and label_as != "float" and not (regression and "fraction" in by_kind)
    known = names if whole else None
    span = _INT64 if known is None else range(len(known))
    allowed = f"{'finite numbers, whole ones' if regression else 'whole numbers'} from -2**63 to 2**63 - 1, or class names, are accepted"
    if known is not None:
        allowed = f"0 to {len(known) - 1} are classes"
    values: dict[str, float | None] = {text: 0 for text, kind in kinds.items() if kind != "wrong"}
    if whole:
        found = {text: _whole(text) for text in values}
        values = {text: number for text, number in found.items() if number is not None and number in span}
    elif not are_names:
        values = {text: float(text) for text in values if abs(float(text)) <= _FLOAT32_MAX}
    for row, text in enumerate(texts) if len(values) < len(kinds) else ():
        if text not in values:
            rows.refuse(row, _found(column, text), f"{allowed}. Correct it")
    if are_names:
        values, known = _number_names({text for row, text in enumerate(texts) if row not in rows.refused})
    dtype = np.int64 if whole or are_names else np.float64
    labels: NDArray[Any] = np.fromiter((values.get(text, 0) for text in texts), dtype, len(texts))
    labels[list(rows.refused)] = 0
    if labels.dtype != np.int64:
        _note_rounded(rows, labels, column)
        labels = labels.astype(np.float32)
    if regression:
        rows.findings.notes += _notes_on(np.delete(labels, list(rows.refused)), known)
    return labels, known


def _kind_of(text: str, label_as: str, padded: bool) -> str:
    """Return "plain" (a whole number of digits alone), "number" (another whole one), "fraction", "name" or "wrong"."""
    padded = padded and label_as == "auto" and _PADDED.fullmatch(text) is not None
    if _WHOLE.fullmatch(text) and not padded:
        return "plain"
    if not text or _NOT_FINITE.fullmatch(text):
        return "wrong"
    if label_as == "classes" or padded or not _NUMBER.fullmatch(text):
        return "wrong" if label_as == "float" else "name"
    return "fraction" if _whole(text) is None else "number"


def _note_rounded(rows: CheckedRows, values: NDArray[Any], column: str) -> None:
    """Note that different numbers become equal as float32."""
    different = len(np.unique(values))
    equal = different - len(np.unique(values.astype(np.float32)))
    if equal > _EQUAL_SHARE * different:
        rows.findings.notes.append(
            f"{column} is stored as float32, which makes {equal:,} of {different:,} different numbers equal to others. If that matters, "
            "subtract what they have in common."
        )


def _number_names(texts: Collection[str]) -> tuple[dict[str, float | None], list[str]]:
    """Number names in sorted order, whole numbers without leading zeros by their value. Returns: name -> number, and the classes."""
    values = {text: _whole(text) for text in texts if _NUMBER.fullmatch(text) and not _PADDED.fullmatch(text)}
    called, order = {text: text for text in texts}, None
    if len(values) == len(texts) and None not in values.values():
        called, order = {text: str(value) for text, value in values.items()}, int
    classes = sorted(set(called.values()), key=order)
    numbers = {name: number for number, name in enumerate(classes)}
    return {text: numbers[name] for text, name in called.items()}, classes


def _notes_on(labels: NDArray[Any], classes: Sequence[str] | None) -> list[str]:
    """Say how labels that are numbers are taken, and which classes look like several; labels: of the images that are packed."""
    several = next((name for name in classes or () if _BETWEEN_NAMES.search(name)), None)
    as_classes = Option("Labels.as_", "classes")
    if several is not None:
        pass_separator = Option("Labels.separator", "|")
        note = f"Classes hold a | or ;, such as {several!r}; each is one class. Pass {pass_separator} if cells hold several."
    elif classes is not None or not len(labels):
        return []
    elif labels.dtype != np.int64:
        note = f"Labels are numbers, stored as float32; {as_classes} takes them for classes."
    else:
        note = (
            f"Labels are whole numbers from {labels.min()} to {labels.max()}, stored as int64; "
            f"{Option('Labels.as_', 'float')} stores float32, {as_classes} numbers them from 0."
        )
    return [Sentence(note)]


def number_columns(
    rows: CheckedRows, columns: Mapping[str, Sequence[str]], *, label_as: str = "auto"
) -> NDArray[Any]:
    """Turn several columns of numbers into one label each sample. columns: name -> texts.

    Returns: uint8 [N, C] if all are 0 or 1 (several labels, each there or not), else float32 [N, C]; label_as "float": always.
    Raises: SourceError for anything but a finite number.
    """
    numbers = finite_numbers(rows, columns)
    for name, values in zip(columns, numbers.T, strict=True):
        _note_rounded(rows, values, name)
    hot = label_as == "auto" and bool(((numbers == 0) | (numbers == 1)).all())
    return numbers.astype(np.uint8 if hot else np.float32)


def multi_hot(
    subject: str, texts: Sequence[str], column: str, separator: str
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


def split_names(text: str, separator: str) -> list[str]:
    """Split a cell into names, without blanks around them; separator: " " stands for any run of blanks."""
    parts = text.split(None if separator == " " else separator)
    return [name for part in parts if (name := part.strip())]


def finite_numbers(
    rows: CheckedRows, columns: Mapping[str, Sequence[str]], *, missing: bool = False
) -> NDArray[np.float64]:
    """Read columns of numbers, name -> texts.

    rows: refuse anything but a finite number, which is then 0; missing: take empty cells for NaN.
    Returns: float64 [N, C], each within float32's range. Raises: SourceError.
    """
    values = np.zeros((len(rows.lines), len(columns)))
    for number, (name, texts) in enumerate(columns.items()):
        for row, text in enumerate(texts):
            if missing and not text:
                values[row, number] = np.nan
            elif _NUMBER.fullmatch(text) and abs(float(text)) <= _FLOAT32_MAX:
                values[row, number] = float(text)
            else:
                rows.refuse(row, _found(name, text), "finite numbers are accepted. Correct it")
    return values


def _whole(text: str) -> int | None:
    """Return the value of a number, if it is whole; of one that no int64 can hold, any such one."""
    plain = _SIGNED.fullmatch(text)
    if plain:
        return int(plain[1][:_DIGITS])
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= _EXACT else None


def _found(column: str, text: str) -> str:
    return f"{column} is {shorten(text) or 'empty'}"
