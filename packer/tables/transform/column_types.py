"""Types of columns: the facts about each type, in one table.

An entry defines how cells are read (by a reader of cell_values.py), their raw dtype in records, the sums,
features and fields computed from them, the possible faults of a cell, and the matching Arrow types. To add a
type, write an entry in TYPES, and add its name to KINDS in ``packer/format/table_record.py``.

=========== ========== ============================================================== ===============
type        raw dtype  meaning                                                        missing
=========== ========== ============================================================== ===============
number      <f8, <f4   the number; <f4: float32 nearest to the double of the text     NaN
integer     <i8        the number, exactly                                            MISSING_INTEGER
boolean     <f4        0 or 1                                                         NaN
date        <f8        days since 1970-01-01                                          NaN
time        <f8        seconds since midnight                                         NaN
timestamp   <f8        seconds since 1970-01-01T00:00:00Z; without a zone: UTC        NaN
category    <i4        number in a list of texts                                      -1
text        TEXT       position of its UTF-8 bytes in a buffer: (at, length)          length 0
=========== ========== ============================================================== ===============
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.given_values import option_text
from packer.tables.transform import cell_values
from packer.tables.transform.cell_values import DAY, Reader

MISSING_INTEGER = -(2**63)
MISSING_CATEGORY = -1
DEALING = "dealing"
_NAMED = 6  # most columns named in a note
TEXT = np.dtype([("at", "<i8"), ("length", "<i4")])


@dataclass(frozen=True)
class ColumnType:
    """A type of column.

    raw: dtype of its values in records; reason: fault of a cell that does not have this type, the end of a
    sentence; read: reader of a column's distinct texts, None if the record parser reads each cell itself;
    numeric: numbers, not texts; whole: only whole numbers, which fit every dtype of labels; scaled: can be
    standardized; parts: name -> function, for types whose values need several features; the first part has
    the column's name; classes: class names of a label, () for those in the data, None if it cannot have
    classes; kept: dtype and `about` of its field when kept; of: the type that a notation writes, "" for a
    type; inferred: True for a notation whose cells no other type reads; verbatim: only empty cells are
    missing; arrow: prefixes of the names of Arrow types read as this type; also: other types whose Arrow
    values are read as this type on request.
    """

    raw: np.dtype[Any]
    reason: str = ""
    read: Reader | None = None
    numeric: bool = True
    whole: bool = False
    scaled: bool = True
    parts: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    kept: tuple[str, Mapping[str, Any]] | None = None
    of: str = ""
    inferred: bool = False
    verbatim: bool = False
    arrow: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: from the input, planned or fitted. `notation` and `digits` are not in the header.

    name: unique in the table; type: one of TYPES; notation: one of NOTATIONS, "" for the usual one; digits:
    if the type was inferred from texts, a number among the first cells whose digits this type loses (007;
    9223372036854775808; 1.10 beside 1.9), "" if there is none. role: "feature", "label", "keep" or "drop"; in
    a plan also DEALING: read to assign rows to splits, not stored. missing: policy, for features; fill:
    replacement for missing cells, after log1p; standardize: mean and std, for a timestamp those of days and
    of seconds, () until measured; categories: in ascending order of text (numeric classes: of number); field:
    name of a kept column's field.
    """

    name: str
    type: str
    notation: str = ""
    digits: str | None = field(default=None, compare=False)
    role: str = "feature"
    missing: str | None = None
    fill: float | None = None
    indicator: bool = False
    log1p: bool = False
    standardize: tuple[float, ...] | None = None
    categories: tuple[str, ...] | None = None
    one_hot: bool = False
    field: str | None = None
    statistics: Mapping[str, Any] | None = None

    @classmethod
    def given(cls, name: str, kind: str) -> TableColumn:
        """Return a column of a type as users name it: one of TYPES or of NOTATIONS."""
        return cls(name, NOTATIONS[kind].of, kind) if kind in NOTATIONS else cls(name, kind)

    def but(self, **members: Any) -> TableColumn:
        """Return the column with other members, as dataclasses.replace does in five times the time."""
        column = object.__new__(TableColumn)
        vars(column).update(vars(self), **members)
        return column

    @property
    def kind(self) -> ColumnType:
        """Entry of the column's type."""
        return TYPES[self.type]

    @property
    def cells(self) -> ColumnType:
        """Entry that defines how cells are read: that of the notation, or of the type."""
        return NOTATIONS[self.notation] if self.notation else TYPES[self.type]

    @property
    def coded(self) -> bool:
        """True for a column of the field `categories`."""
        return self.role == "feature" and self.type == "category" and not self.one_hot

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the column's features, without the indicator, not yet made unique."""
        if self.role != "feature" or self.coded:
            return ()
        if self.one_hot:
            return tuple(f"{self.name}={c}" for c in self.categories or ())
        return (self.name, *(f"{self.name}.{part}" for part in list(self.kind.parts)[1:]))

    def to_json(self) -> dict[str, Any]:
        """Return the column's part of the header's record."""
        record = dict(vars(self))
        del record["notation"], record["digits"]
        for name in ("standardize", "categories"):
            record[name] = None if record[name] is None else list(record[name])
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any], given: str = "") -> TableColumn:
        """Return the column of a checked record from `to_json`. given: type named by the user, "" if none."""
        notation = (
            given if given in NOTATIONS and NOTATIONS[given].numeric == TYPES[record["type"]].numeric else ""
        )
        members: dict[str, Any] = {name: record[name] for name in _RECORDED}
        members["fill"] = None if members["fill"] is None else float(members["fill"])
        for name, kind in (("standardize", float), ("categories", str)):
            members[name] = None if members[name] is None else tuple(map(kind, members[name]))
        return _BLANK.but(**members, notation=notation)

    @staticmethod
    def named(names: Iterable[str]) -> list[TableColumn]:
        """Return columns of numbers with these names."""
        return [_BLANK.but(name=name) for name in names]


_BLANK = TableColumn("", "number")
_RECORDED = tuple(f.name for f in fields(TableColumn) if f.name not in ("notation", "digits"))


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the most similar of the names."""
    names = list(names)
    close = difflib.get_close_matches(name, names, 1, 0.5)
    if close:
        return f"the nearest is {close[0]!r}"
    return f"there are {listed([repr(n) for n in names[:8]])}" + (" and others" if len(names) > 8 else "")


def listed(words: Sequence[str]) -> str:
    """Return words as an enumeration: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "none"


def shown_columns(columns: Sequence[str]) -> str:
    """Return the number of columns, and the names of the first few."""
    more = f" and {len(columns) - _NAMED} more" if len(columns) > _NAMED else ""
    return f"{units.count(len(columns), 'column')} ({', '.join(columns[:_NAMED])}{more})"


def note_on(columns: Iterable[str], what: str) -> list[str]:
    """Return a note on some columns, [] if there are none."""
    names = list(dict.fromkeys(columns))
    return [f"{shown_columns(names)}: {what}"] if names else []


def as_category(name: str) -> str:
    """Return the option that reads a column as categories."""
    return option_text("types", {name: "category"})


def is_missing(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Return bool [n], True for the missing cells of a raw array."""
    if x.dtype.names:
        return np.asarray(x["length"] == 0)
    if x.dtype.kind == "i":
        return np.asarray(x == (MISSING_INTEGER if x.dtype.itemsize == 8 else MISSING_CATEGORY))
    return np.asarray(np.isnan(x))


def as_float(x: NDArray[Any]) -> NDArray[np.float64]:
    """Return raw numbers of any type as float64, NaN for missing."""
    if x.dtype.kind != "i":
        return x.astype(np.float64)
    return np.where(x == MISSING_INTEGER, np.nan, x.astype(np.float64))


def days_of(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the number of full days in seconds since 1970."""
    return np.floor(seconds / DAY)


def seconds_of(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return seconds since midnight, in [0, DAY), for seconds since 1970."""
    return seconds - days_of(seconds) * DAY


def shortest(value: float) -> str:
    """Return the shortest text of a number: "3" for 3.0; all digits of an int."""
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e16 else repr(value)


def unique(names: Sequence[str]) -> tuple[str, ...]:
    """Return unique names: number repeated ones, and name empty ones `column_` and their position.

    >>> unique(["a", "a", "", "a.1"])
    ('a', 'a.2', 'column_2', 'a.1')
    """
    taken, seen, result = set(names), {""}, []
    numbers: dict[str, int] = {}  # last number appended to each name
    for place, text in enumerate(names):
        name = stem = text or f"column_{place}"
        if text in seen:
            while name in taken:
                numbers[stem] = numbers.get(stem, 0) + 1
                name = f"{stem}.{numbers[stem]}"
            taken.add(name)
        seen.add(text)
        result.append(name)
    return tuple(result)


def matched(column: TableColumn, texts: Sequence[str]) -> list[str]:
    """Return each text as the category that writes it: itself, or the only one of an equal number."""
    known = column.categories or ()
    return list(map(matching(known), texts)) if set(texts).difference(known) else list(texts)


def matching(known: Sequence[str]) -> Callable[[str], str]:
    """Return a function that replaces the text of a number or boolean by the category that writes it.

    Spaces around a text do not count; other texts are their own categories.
    """
    keyed: dict[float | str, list[str]] = {}
    for text in known:
        keyed.setdefault(_key(text), []).append(text)
    matches: dict[float | str, str] = {text: text for text in known}
    matches |= {key: alike[0] for key, alike in keyed.items() if len(alike) == 1}
    return lambda text: matches.get(text) or matches.get(text.strip(" \t")) or matches.get(_key(text)) or text


def _key(text: str) -> float | str:
    """Return equal keys for texts of equal numbers (exact beyond float64's whole numbers) or booleans."""
    text = text.strip(" \t")
    if text.lower() in ("true", "false"):
        return text.lower()
    if "_" in text or not text.isascii():
        return text  # numbers to Python alone
    try:
        return int(text) if text.lstrip("+-").isdigit() else int(f) if (f := float(text)).is_integer() else f
    except (ValueError, OverflowError):
        return text


_NUMBER = np.dtype("<f8")
TYPES: Mapping[str, ColumnType] = {
    "number": ColumnType(
        _NUMBER,
        "is not a number",
        classes=(),
        kept=("<f8", {}),
        arrow=("halffloat", "float", "double", "null"),
        also=("integer", "boolean"),
    ),
    "integer": ColumnType(
        np.dtype("<i8"),
        "is not a whole number",
        whole=True,
        classes=(),
        kept=("<i8", {}),
        arrow=("int", "uint"),
        also=("number", "boolean"),
    ),
    "boolean": ColumnType(
        np.dtype("<f4"),
        "is neither true nor false",
        cell_values.booleans,
        whole=True,
        scaled=False,
        classes=("false", "true"),
        kept=("|u1", {}),
        arrow=("bool",),
        also=("integer", "number"),  # with missing values
    ),
    "date": ColumnType(
        _NUMBER,
        "is not a date (YYYY-MM-DD)",
        cell_values.dates,
        kept=("<f8", {"unit": "days since 1970-01-01"}),
        arrow=("date",),
        also=("timestamp",),
    ),
    "time": ColumnType(
        _NUMBER,
        "is not a time (HH:MM:SS)",
        cell_values.times,
        kept=("<f8", {"unit": "seconds since midnight"}),
        arrow=("time32", "time64", "duration"),
    ),
    "timestamp": ColumnType(
        _NUMBER,
        "is not a timestamp (YYYY-MM-DD HH:MM:SS)",
        cell_values.timestamps,
        parts={"days": days_of, "seconds": seconds_of},
        kept=("<f8", {"unit": "seconds since 1970-01-01T00:00:00Z"}),
        arrow=("timestamp",),
        also=("date",),
    ),
    "category": ColumnType(np.dtype("<i4"), numeric=False, scaled=False, classes=()),
    "text": ColumnType(TEXT, numeric=False, scaled=False, kept=("|u1", {"encoding": "utf-8"})),
}


def _notation(of: str, read: Reader, reason: str, inferred: bool = False) -> ColumnType:
    return replace(TYPES[of], of=of, read=read, reason=reason, inferred=inferred)


# fmt: off
NOTATIONS: Mapping[str, ColumnType] = {
    "currency": _notation("number", cell_values.amounts, "is not an amount of money ($1,234.50)"),
    "percent": _notation("number", cell_values.percentages, "is not a percentage (12%)"),
    "date-name": _notation(
        "date", cell_values.dates_named, "is not a date (28-Oct-2018, Oct 28, 2018)", True),
    "date-ymd": _notation("date", cell_values.dates_ymd, "is not a date (YYYYMMDD)"),
    "date-mdy": _notation("date", cell_values.dates_mdy, "is not a date (MM/DD/YYYY)"),
    "date-dmy": _notation("date", cell_values.dates_dmy, "is not a date (DD/MM/YYYY)"),
    "time-12h": _notation("time", cell_values.times_12h, "is not a time with AM or PM (8:30 PM)", True),
    "timestamp-offset": _notation(
        "timestamp", cell_values.timestamps_offset, "is not a timestamp with an offset (+HH:MM or Z)",
        True),
    "timestamp-mdy": _notation(
        "timestamp", cell_values.timestamps_mdy, "is not a timestamp (MM/DD/YYYY HH:MM[:SS])"),
    "timestamp-dmy": _notation(
        "timestamp", cell_values.timestamps_dmy, "is not a timestamp (DD/MM/YYYY HH:MM[:SS])"),
    "verbatim": replace(TYPES["category"], of="category", verbatim=True),
}
# fmt: on
"""Notations of numbers, dates and texts; users choose them like types."""
