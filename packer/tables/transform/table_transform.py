"""The mapping from raw columns to fields: fitted once, stored in the header, applied to any rows.

Order of operations, in float64: log1p; fill missing cells; standardize, (x - mean) / std; cast. Features
follow the order of their columns; a timestamp has two (days since 1970-01-01, and ``.seconds`` since
midnight), a one-hot column one per category; the indicators of missing cells come last. Categories are
numbered from 1 in ascending order of text; 0 is for missing ones and for those in no row of fit. Mean and std
are computed over the filled rows.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.cell_names import split_names
from packer.errors import UsageError
from packer.format.fields import Field
from packer.tables.transform.column_types import (
    DEALING,
    TableColumn,
    is_missing,
    matched,
    nearest,
    shortest,
    unique,
)
from packer.tables.transform.records import (
    BadCells,
    BadRow,
    CellFault,
    ParsedRows,
    RecordLayout,
    RecordMember,
)

DTYPES = ("float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8")
MAX_NAME = 100  # most characters of a field's name
MOST_BAD = 100_000
TAKEN = (
    *("features", "label", "categories", "key", "image", "source_row", "sequence_row"),
    *("packer", "checksums", "header", "trailer"),
)

Rule = Callable[[NDArray[Any], Sequence[str]], NDArray[np.bool_]]
"""Finds the cells that break a rule: raw values [n] and texts of their codes in, bool [n] out."""


@dataclass(frozen=True)
class TableTransform:
    """The transform of a table's columns into fields: planned, then fitted.

    columns: columns of the input, in order; dtype: of the features, NumPy's type string; label: columns, kind
    ("classes" or "number") and dtype of the field, or None; separator: of the names of several classes in a
    cell of the label, whose field is then uint8 [C], "" for one class; fit_name: rows whose statistics are
    used, "all" or a split's name, "" for a plan; reading: options with which text files were read, plain
    JSON; max_categories: most categories of a column to be fitted; whole_label: in a plan, store the label as
    int64 if it holds only whole numbers.
    """

    columns: tuple[TableColumn, ...]
    dtype: str
    label: tuple[str, ...] = ()
    label_kind: str | None = None
    label_dtype: str | None = None
    fit_name: str = ""
    reading: Mapping[str, Any] = field(default_factory=dict)
    max_categories: int = field(default=sys.maxsize, compare=False)
    whole_label: bool = field(default=False, compare=False)
    separator: str = ""

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of the field `features`."""
        plain = [name for c in self.columns for name in c.outputs]
        return unique([*plain, *(f"{c.name}.missing" for c in self.columns if c.indicator)])

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """Names of the columns of the field `categories`."""
        return tuple(c.name for c in self.columns if c.coded)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the label's classes, None if it has none."""
        if self.label_kind != "classes":
            return None
        return self.column(self.label[0]).categories

    def column(self, name: str) -> TableColumn:
        """Return the column with that name. Raises KeyError."""
        return self._named[name]

    @cached_property
    def _named(self) -> dict[str, TableColumn]:
        return {c.name: c for c in self.columns}

    def fields(self) -> tuple[Field, ...]:
        """Return the fields in order: features, categories, label, kept columns."""
        fields = []
        if self.features:
            fields.append(Field("features", self.dtype, (len(self.features),)))
        if self.categories:
            fields.append(Field("categories", "<i8", (len(self.categories),)))
        if self.label and self.label_dtype:
            several = list(self.classes or ()) if self.separator else []
            width = len(several or self.label)
            shape = (width,) if several or width > 1 else ()
            fields.append(Field("label", self.label_dtype, shape, {"columns": several} if several else {}))
        for c in self.columns:
            if c.field is not None and c.kind.kept:
                dtype, about = c.kind.kept
                fields.append(
                    Field(c.field, dtype, None if c.type == "text" else (), {"column": c.name, **about})
                )
        return tuple(fields)

    def plan_for(self, columns: Sequence[TableColumn], *, labeled: bool = True) -> TableTransform:
        """Plan another table's columns, matched by name; unknown columns are left out.

        Label and kept columns may be missing; their fields are then missing, too. labeled: False to leave
        out the columns of the label. Raises UsageError if a feature is missing.
        """
        names = {c.name: c for c in columns}
        missing = [c.name for c in self.columns if c.role == "feature" and c.name not in names]
        if missing:
            few = ", ".join(map(repr, missing[:10])) + (" and others" if len(missing) > 10 else "")
            raise UsageError(
                f"table: has no column {few}, which features need; {nearest(missing[0], names)}."
                " Add the columns that the pack was converted from."
            )
        label = self.label if labeled and all(name in names for name in self.label) else ()
        known = {c.name: c for c in self.columns if c.role != "label" or label}
        given = self.reading.get("types", {})
        planned = tuple(
            known[c.name].but(digits=None if c.name in given else c.digits or "")
            if c.name in known
            else c.but(role="drop")
            for c in columns
        )
        unlabeled: dict[str, Any] = {} if label else {"label_kind": None, "label_dtype": None}
        return replace(self, columns=planned, label=label, **unlabeled)

    @property
    def class_values(self) -> tuple[float, ...] | None:
        """Values of a numeric label's classes in ascending order, int for integers.

        None if the classes are texts, not known yet, or if the label has none.
        """
        c = self.column(self.label[0]) if self.label_kind == "classes" else None
        if c is None or c.categories is None:
            return None
        if c.kind.classes:
            return tuple(map(float, range(len(c.kind.classes))))
        number = int if c.type == "integer" else float
        return tuple(map(number, c.categories)) if c.kind.numeric else None

    @cached_property
    def layout(self) -> RecordLayout:
        """The columns that are read."""
        return RecordLayout(
            tuple(
                RecordMember(i, c, self._single(c), self._exact(c))
                for i, c in enumerate(self.columns)
                if c.role != "drop"
            )
        )

    @cached_property
    def numeric(self) -> tuple[RecordMember, ...]:
        """The numeric columns that are read, in order; a sample has a column for each."""
        return tuple(w for w in self.layout.members if w.column.kind.numeric)

    def bad_rows(
        self,
        records: NDArray[Any],
        dictionaries: Mapping[int, Sequence[str]] | None = None,
        most: int = MOST_BAD,
    ) -> tuple[NDArray[np.bool_] | None, list[BadRow]]:
        """Find the rows of the layout that cannot be mapped.

        dictionaries: column number -> texts of the codes in these records.
        Returns: bool [n], None if no row is bad; at most `most` bad rows in ascending order, with the row
        number from 0 as `line`.
        """
        bad = BadCells(most)
        for w, is_wrong, reason in self._rules:
            x, texts = records[w.name], (dictionaries or {}).get(w.index, ())
            bad.add(w.index, is_wrong(x, texts), reason, lambda row: _text(x[row], w, texts))  # noqa: B023
        return bad.mask, sorted(bad.rows, key=lambda bad: (bad.line, bad.column))[:most]

    def accept(self, parsed: ParsedRows) -> list[BadRow]:
        """Write categories as the known ones, and leave out rows that cannot be mapped.

        Returns: a fault for each of these rows.
        """
        for index, texts in parsed.dictionaries.items():
            parsed.dictionaries[index] = matched(self.columns[index], texts)
        mask, bad = self.bad_rows(parsed.records, parsed.dictionaries)
        parsed.leave_out(mask, bad)
        return [*{b.line: b for b in reversed(bad)}.values()]

    @cached_property
    def _rules(self) -> list[tuple[RecordMember, Rule, str]]:
        """Rules for cells: a column, the cells that break the rule, and the reason."""
        return [(w, rule, reason) for w in self.layout.members for rule, reason in self._rules_of(w)]

    def _rules_of(self, w: RecordMember) -> Iterator[tuple[Rule, str]]:
        c, dtype = w.column, np.dtype(self.dtype)
        why = ""
        if c.role == "label":
            why = "is missing; a label is needed" if not self.separator else ""
            dtype = np.dtype(self.label_dtype if self.label_kind == "number" else "O")
        elif c.role == DEALING:
            why = "is missing; it defines the row's split or place"
        elif c.role == "keep" and c.kind.whole:
            why = f"is missing; a kept {c.type} column cannot store that"
        elif c.missing == "error":
            why = "is missing"
        elif c.missing == "nan" and c.kind.numeric and dtype.kind in "iu":
            why = f"is missing; {dtype.name} cannot store that"
        if why:
            yield lambda x, texts: is_missing(x), why
        if c.log1p:
            yield lambda x, texts: x <= -1, "has no log1p; numbers above -1 have one"
        fits = w.dtype == dtype or dtype.kind == "O" or (c.kind.whole and dtype.kind == "f")
        if not (
            c.role in ("keep", DEALING) or not c.kind.numeric or c.log1p or c.standardize is not None or fits
        ):
            for part in c.kind.parts.values() or [np.asarray]:
                yield from _misfits(dtype, part)
        if c.role == "label" and self.label_kind == "classes" and c.categories is not None:
            yield lambda x, texts: self._has_no_class(w, x, texts), CellFault.NO_CLASS

    def _has_no_class(self, w: RecordMember, x: NDArray[Any], texts: Sequence[str]) -> NDArray[np.bool_]:
        classes: Sequence[float] = self.class_values or ()
        if not w.column.kind.numeric:
            names = self.known[w.index].keys()
            classes = [code for code, text in enumerate(texts) if names >= {*self.class_names(text)}]
        return ~(np.isin(x, np.array(classes, x.dtype)) | is_missing(x))

    def _single(self, c: TableColumn) -> bool:
        if c.type != "number" or c.role in ("keep", DEALING):
            return False
        if c.role == "label":
            return self.label_kind == "number" and self.label_dtype == "<f4" and not self.whole_label
        return self.dtype == "<f4" and c.standardize is None and not c.log1p

    def _exact(self, c: TableColumn) -> bool:
        """Return True if the column's whole numbers must stay exact: it is kept, or a single class label."""
        measure = self.label_kind is not None and self.label_dtype != "<i8"
        if c.role == "feature" or (c.role == "label" and (measure or len(self.label) > 1)):
            return False
        return c.type == "number" or (c.type == "integer" and c.digits is not None)

    def class_names(self, text: str) -> list[str]:
        """Return the classes in a cell of the label."""
        return split_names(text, self.separator) if self.separator else [text]

    @cached_property
    def known(self) -> dict[int, dict[str, int]]:
        """Codes of the label's known classes by text, by column number; only for classes that are texts."""
        return {
            i: {text: code for code, text in enumerate(c.categories)}
            for i, c in enumerate(self.columns)
            if c.role == "label" and c.categories is not None and not c.kind.numeric
        }

    def to_json(self) -> dict[str, Any]:
        """Return the header's member `table`, as plain JSON values."""
        return {
            "columns": [c.to_json() for c in self.columns],
            "features": list(self.features),
            "categories": list(self.categories),
            "dtype": self.dtype,
            "label": {
                **{"columns": list(self.label), "kind": self.label_kind, "dtype": self.label_dtype},
                **({"separator": self.separator} if self.separator else {}),
            }
            if self.label
            else None,
            "fit": self.fit_name,
            "reading": dict(self.reading),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TableTransform:
        """Return the transform of a checked record of `to_json` (see table_record.py). Raises ValueError."""
        label, given = record["label"] or {}, record["reading"].get("types", {})
        transform = cls(
            tuple(TableColumn.from_json(c, given.get(c["name"], "")) for c in record["columns"]),
            record["dtype"],
            tuple(label.get("columns", ())),
            label.get("kind"),
            label.get("dtype"),
            record["fit"],
            dict(record["reading"]),
            separator=label.get("separator", ""),
        )
        _check(transform, record)
        return transform


def kept_fields(names: Sequence[str]) -> dict[str, str]:
    """Return the field names of kept columns, unique regardless of case."""
    fields: dict[str, str] = {}
    taken = set(TAKEN)
    numbers: dict[str, int] = {}  # next number for each name, because many columns may share one
    for name in names:
        field = base = _field_name(name)
        number = numbers.get(base, 2)
        while field.casefold() in taken:
            end = f"_{number}"
            field = base[: MAX_NAME - len(end)] + end
            number += 1
        numbers[base] = number
        taken.add(field.casefold())
        fields[name] = field
    return fields


def _field_name(name: str) -> str:
    field = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if not re.match(r"[A-Za-z]", field):
        field = f"column_{field}"
    field = field[:MAX_NAME]
    return f"{field}_" if keyword.iskeyword(field) else field


def _check(t: TableTransform, record: Mapping[str, Any]) -> None:
    """Raise ValueError if members of a transform contradict each other or the record it was read from."""
    kept = kept_fields([c.name for c in t.columns if c.role == "keep"])
    for c in t.columns:
        feature, scale = c.role == "feature", c.standardize or (0.0, 1.0) * max(1, len(c.kind.parts))
        sound = (
            c.field == kept.get(c.name)
            and (c.role != "keep" or c.kind.kept)
            and (c.missing is not None) == feature
            and (c.role == "label" or (c.categories is not None) == (feature and c.type == "category"))
            and len(scale) == 2 * max(1, len(c.kind.parts))
            and (c.standardize is None or (feature and c.kind.scaled and min(scale[1::2]) > 0))
            and not (feature and (c.type == "text" or (c.one_hot and c.type != "category")))
            and not (c.indicator and not (feature and c.kind.numeric))
            and not (c.log1p and not (feature and c.type == "number"))
        )
        if sound and c.fill and c.standardize is None:
            fill = np.array([c.fill])
            with np.errstate(all="ignore"):
                stored = np.array([of(fill) for of in c.kind.parts.values()] or [fill]).astype(t.dtype)
            sound = bool(np.isfinite(stored).all())
        if not sound:
            raise ValueError(f"column {c.name[:80]!r} is malformed")
    labels = [c for c in t.columns if c.role == "label"]
    coded = [c.categories is not None for c in labels]
    if t.label_kind == "classes":
        fits = coded == [True] and t.label_dtype == ("|u1" if t.separator else "<i8") and bool(t.classes)
        fits = fits and not (t.separator and labels[0].kind.numeric)
        values = t.class_values or ()  # ValueError unless they are numbers
        fits = fits and all(a < b for a, b in pairwise(values)) and all(abs(x) < 1 << 63 for x in values)
    else:
        fits = not any(coded) and all(c.kind.numeric for c in labels)
        fits = fits and t.label_dtype in (None, "<i8", "<f4", "<f8")
    fits = fits and sorted(t.label) == sorted(c.name for c in labels)
    if not fits or (list(t.features), list(t.categories)) != (record["features"], record["categories"]):
        raise ValueError("the columns, the label and the fields do not go together")


def _misfits(dtype: np.dtype[Any], part: Callable[[NDArray[Any]], NDArray[Any]]) -> list[tuple[Rule, str]]:
    """Return rules for present numbers whose part a dtype cannot represent, and the reasons."""
    if dtype.kind == "f":
        reason = CellFault.BEYOND_SINGLE if dtype == np.float32 else f"is beyond {dtype.name}"
        return [(lambda x, texts: _overflows(part(x), dtype), reason)]
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max

    def beyond(x: NDArray[Any]) -> NDArray[np.bool_]:
        # 2.0**63 is not an int64, but int64's maximum becomes 2.0**63 as a float.
        return np.asarray((part(x) < least) | (part(x) >= float(most) + 1))

    return [
        (lambda x, texts: beyond(x) & ~is_missing(x), f"is beyond {dtype.name} ({least} to {most})"),
        (
            lambda x, texts: ~beyond(x) & ~is_missing(x) & (part(x) != np.trunc(part(x))),
            CellFault.NOT_WHOLE,
        ),
    ]


def _overflows(x: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        return np.asarray(np.isinf(x.astype(dtype)))


def _text(value: Any, w: RecordMember, texts: Sequence[str]) -> str:
    """Return a raw value as text for a message, "" if it is missing. texts: texts of the category codes."""
    if w.column.type == "text" or is_missing(np.asarray([value]))[0]:
        return ""
    return texts[value] if w.column.type == "category" else shortest(value.item())
