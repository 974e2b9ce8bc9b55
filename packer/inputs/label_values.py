"""Rules for labels given as text.

    cells of the column               label (label_as="auto")
    only whole numbers                int64: 7, -1, +2, 3.0 and 1e0 are whole numbers
    only numbers, some fractional     float32 (regression)
    any other text                    int64 numbers of the class names, in sorted order

A whole number with leading zeros (007) is a class name, since as a number it would equal 7. With
label_as="classes" all numbers are class names; "float" stores all numbers as float32. Whole numbers in plain
digits may be mixed with class names ("7" beside "seven"); mixing other numbers with names is an error. Empty
cells and the words nan, inf and infinity are always errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from packer.cell_names import SEPARATORS as SEPARATORS
from packer.cell_names import split_names as split_names
from packer.errors import SourceError
from packer.inputs.file_names import first_few, shorten
from packer.inputs.findings import Findings
from packer.units import LEADING_ZEROS

LABEL_AS = ("auto", "classes", "float")
"""Values of `label_as`."""


_WHOLE = re.compile(r"[0-9]+")
_PADDED = re.compile(LEADING_ZEROS)
_SIGNED = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INT64 = range(-(1 << 63), 1 << 63)
_DIGITS = 1000  # more digits than an int64 has, and few enough for int()
_EXACT = 1 << 53  # float64 holds every whole number up to this one
_EQUAL_SHARE = (
    0.1  # fraction of distinct numbers before a note; among many random numbers a few collide as float32
)


@dataclass(frozen=True)
class LabelColumn:
    """The origin of labels given as text, for checks.

    subject: the file. name: of the column, in messages. as_: how cells are read. separator: in the form of
    `split_names`. separated: True if a cell holds the separator. alone: there are no other columns.
    """

    subject: str
    name: str
    as_: str = "auto"
    separator: str | None = None
    separated: bool = False
    alone: bool = False

    @classmethod
    def from_texts(
        cls,
        subject: str,
        name: str,
        texts: Iterable[str],
        as_: str,
        separator: str | None,
        alone: bool = False,
    ) -> LabelColumn:
        """Return the origin of some texts."""
        separated = separator is not None and any(separator in text for text in texts)
        return cls(subject, name, as_, separator, separated, alone)


class CheckedRows:
    """Rows of a file that describe images; an invalid row raises, or its image is refused.

    subject: the file. lines: line number of each row, counted from 1, in `unit`. images: image of each row,
    initially k for row k. refused: rows refused so far.
    """

    subject: str
    unit: str
    findings: Findings
    lines: NDArray[np.int64]
    images: NDArray[np.int64]

    def __init__(
        self, subject: str, lines: ArrayLike, findings: Findings | None = None, *, unit: str = "line"
    ) -> None:
        self.subject, self.unit, self.findings = subject, unit, findings or Findings()
        self.lines = np.asarray(lines, np.int64)
        self.images = np.arange(len(self.lines))
        self.refused: set[int] = set()

    def refuse(self, row: int, found: str, allowed: str) -> None:
        """Refuse the image of a row. found: its defect; allowed: the rule and remedy. Raises SourceError."""
        where = f"{self.unit} {self.lines[row]}"
        reason = f"{found} ({os.path.basename(self.subject)} {where})."
        self.findings.refuse(int(self.images[row]), reason, f"{self.subject} {where}: {found}; {allowed}")
        self.refused.add(row)


def read_texts(
    rows: CheckedRows, texts: Sequence[str], origin: LabelColumn, called: str, names: list[str] | None = None
) -> tuple[NDArray[Any], list[str] | None, dict[str, Any]]:
    """Convert a column of labels to numbers, or to multi-hot rows if cells have a separator.

    called: the column in messages. names: see `number_labels`.
    Returns: the labels, the class names or None, and the field's description (`Field.about`).
    """
    if origin.separator is not None:
        hot, classes = multi_hot(rows, texts, called, origin.separator)
        return hot, classes, {"columns": classes}
    values, found = number_labels(rows, texts, column=called, label_as=origin.as_, names=names)
    return values, found, {}


def number_labels(
    rows: CheckedRows,
    texts: Sequence[str],
    *,
    column: str = "the label",
    regression: bool = True,
    label_as: str = "auto",
    names: list[str] | None = None,
) -> tuple[NDArray[Any], list[str] | None]:
    """Convert labels from text to numbers.

    rows: refuses labels that are empty, not finite or too large, which become 0. texts: the label of each
    row. column: name of the labels in messages. regression: accept fractions. label_as: see the module.
    names: class names if whole numbers are class indices; these may have leading zeros.
    Returns: int64 or float32 [N], and the class names, or None if the texts were numbers.
    Raises: SourceError for a refused label, and for a column that mixes class names with numbers other than
    digits.
    """
    first: dict[str, int] = {}
    for row, text in enumerate(texts):
        first.setdefault(text, row)
    kinds = {text: _kind_of(text, label_as, padded=names is None) for text in first}
    by_kind = {kind: text for text, kind in reversed(kinds.items())}
    named = by_kind.get("name")
    _check_mixed(rows, column, first, named, by_kind.get("number") or by_kind.get("fraction"))
    are_names = named is not None or label_as == "classes"
    whole = not are_names and label_as != "float" and not (regression and "fraction" in by_kind)
    known = names if whole else None
    span = _INT64 if known is None else range(len(known))
    allowed = (
        f"{'finite numbers, whole numbers' if regression else 'whole numbers'} from -2**63 to 2**63 - 1, or "
        "class names, are accepted"
    )
    if known is not None:
        allowed = f"classes are numbered from 0 to {len(known) - 1}"
    values: dict[str, float | None] = {text: 0 for text, kind in kinds.items() if kind != "wrong"}
    if whole:
        found = {text: _to_int(text) for text in values}
        values = {text: number for text, number in found.items() if number is not None and number in span}
    elif not are_names:
        values = {text: float(text) for text in values if abs(float(text)) <= _FLOAT32_MAX}
    for row, text in enumerate(texts) if len(values) < len(kinds) else ():
        if text not in values:
            rows.refuse(row, _describe_cell(column, text), f"{allowed}. Correct it")
    if are_names:
        packed = {text for row, text in enumerate(texts) if row not in rows.refused}
        forms = rows.findings.compose_classes(sorted(packed))
        numbers, known = _number_names(forms.values())
        values = {text: numbers[form] for text, form in forms.items()}
    dtype = np.int64 if whole or are_names else np.float64
    labels: NDArray[Any] = np.fromiter((values.get(text, 0) for text in texts), dtype, len(texts))
    labels[list(rows.refused)] = 0
    if labels.dtype != np.int64:
        _note_rounded(rows, labels, column)
        labels = labels.astype(np.float32)
    return labels, known


def _check_mixed(
    rows: CheckedRows, column: str, first: Mapping[str, int], named: str | None, other: str | None
) -> None:
    """Raise SourceError for a class name and a number other than digits. first: text -> its first row."""
    if named is not None and other is not None:
        earlier, later = sorted((named, other), key=first.__getitem__)
        places = [f"{rows.unit} {rows.lines[first[text]]}" for text in (later, earlier)]
        raise SourceError(
            f"{rows.subject} {places[0]}: {column} is {later}, but {earlier} in {places[1]}; numbers or "
            "class names are accepted, not both. Correct one of them, or pass "
            "labels=Labels(as_='classes')."
        )


def _kind_of(text: str, label_as: str, padded: bool) -> str:
    """Return "plain" (only digits), "number" (another whole number), "fraction", "name" or "wrong"."""
    padded = padded and label_as == "auto" and _PADDED.fullmatch(text) is not None
    if _WHOLE.fullmatch(text) and not padded:
        return "plain"
    if not text or _NOT_FINITE.fullmatch(text):
        return "wrong"
    if label_as == "classes" or padded or not NUMBER.fullmatch(text):
        return "wrong" if label_as == "float" else "name"
    return "fraction" if _to_int(text) is None else "number"


def _note_rounded(rows: CheckedRows, values: NDArray[Any], column: str) -> None:
    """Add a note if many distinct numbers become equal as float32."""
    different = len(np.unique(values))
    equal = different - len(np.unique(values.astype(np.float32)))
    if equal > _EQUAL_SHARE * different:
        rows.findings.note(
            f"{column} is stored as float32, which makes {equal:,} of {different:,} distinct numbers equal "
            "to others. If that matters, subtract a common offset first."
        )


def _number_names(texts: Collection[str]) -> tuple[dict[str, float | None], list[str]]:
    """Return name -> class number, and the sorted classes (by value, if all are unpadded numbers)."""
    values = {text: _to_int(text) for text in texts if NUMBER.fullmatch(text) and not _PADDED.fullmatch(text)}
    called, order = {text: text for text in texts}, None
    if len(values) == len(texts) and None not in values.values():
        called, order = {text: str(value) for text, value in values.items()}, int
    classes = sorted(set(called.values()), key=order)
    numbers = {name: number for number, name in enumerate(classes)}
    return {text: numbers[name] for text, name in called.items()}, classes


def number_columns(
    rows: CheckedRows, columns: Mapping[str, Sequence[str]], *, label_as: str = "auto"
) -> NDArray[Any]:
    """Combine several columns of numbers into one label per row. columns: name -> texts.

    Returns: uint8 [N, C] if all values are 0 or 1 (multi-hot) and label_as is "auto", else float32 [N, C].
    Raises: SourceError for a text that is not a finite number.
    """
    numbers = finite_numbers(rows, columns)
    for name, values in zip(columns, numbers.T, strict=True):
        _note_rounded(rows, values, name)
    hot = label_as == "auto" and bool(((numbers == 0) | (numbers == 1)).all())
    return numbers.astype(np.uint8 if hot else np.float32)


def multi_hot(
    rows: CheckedRows, texts: Sequence[str], column: str, separator: str
) -> tuple[NDArray[np.uint8], list[str]]:
    """Encode cells that hold several class names as multi-hot rows.

    separator: see `split_names`. An empty cell gives a row of zeros. If all names are whole numbers they are
    sorted by value.
    Returns: uint8 [N, C], 1 where the cell holds the class; and the C class names.
    Raises: SourceError if all cells are empty.
    """
    parts = {text: split_names(text, separator) for text in dict.fromkeys(texts)}
    forms = rows.findings.compose_classes(name for some in parts.values() for name in some)
    names = set(forms.values())
    if not names:
        raise SourceError(
            f"{rows.subject}: {column} is empty in all {len(texts):,} rows; class names are needed. Add some."
        )
    whole = all(_WHOLE.fullmatch(name) for name in names)
    classes = sorted(
        names, key=lambda name: (len(name.lstrip("0")), name.lstrip("0"), name) if whole else (0, name, name)
    )
    numbers = {name: number for number, name in enumerate(classes)}
    hot = np.zeros((len(texts), len(classes)), np.uint8)
    for row, text in enumerate(texts):
        for name in parts[text]:
            hot[row, numbers[forms[name]]] = 1
    rows.findings.note(f"Cells hold class names: {len(classes):,} classes, {first_few(classes)}.")
    return hot, classes


def finite_numbers(
    rows: CheckedRows, columns: Mapping[str, Sequence[str]], *, missing: bool = False
) -> NDArray[np.float64]:
    """Parse columns of numbers, name -> texts.

    rows: refuses texts that are not finite numbers, which become 0. missing: empty cells become NaN.
    Returns: float64 [N, C], within the range of float32. Raises: SourceError.
    """
    values = np.zeros((len(rows.lines), len(columns)))
    for number, (name, texts) in enumerate(columns.items()):
        for row, text in enumerate(texts):
            if missing and not text:
                values[row, number] = np.nan
            elif NUMBER.fullmatch(text) and abs(float(text)) <= _FLOAT32_MAX:
                values[row, number] = float(text)
            else:
                rows.refuse(row, _describe_cell(name, text), "finite numbers are accepted. Correct it")
    return values


def _to_int(text: str) -> int | None:
    """Return a whole number's value, else None. Beyond int64 the value is inexact, but still beyond int64."""
    plain = _SIGNED.fullmatch(text)
    if plain:
        return int(plain[1][:_DIGITS])
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= _EXACT else None


def _describe_cell(column: str, text: str) -> str:
    return f"{column} is {shorten(text) or 'empty'}"
