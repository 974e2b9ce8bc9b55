"""The arithmetic of a fitted transform, column by column: records in, fields out; also for data frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.tables.transform.column_types import DEALING, MISSING_INTEGER, TableColumn, as_float, is_missing
from packer.tables.transform.records import RecordLayout, RecordMember, adjacent, adjacent_members
from packer.tables.transform.table_transform import TableTransform

Fields = dict[str, "NDArray[Any] | list[bytes]"]
_CELLS = 32_768  # cells per step with arithmetic, so that they stay in the CPU cache


@dataclass
class MappedRows:
    """Mapped rows.

    fields: name -> [n, ...], C-contiguous, or the rows' texts; beyond: (record, column name) of the first
    record with a feature beyond its dtype (a present cell became infinite), None if all fit.
    """

    fields: Fields
    beyond: tuple[int, str] | None = None


Step = Callable[[NDArray[Any], NDArray[Any]], "tuple[int, str] | None"]
"""Fills columns of features [n, F] from records [n]. Returns the first infinite record, and its column."""


class RowMapper:
    """A fitted transform for records of one layout; thread-safe.

    transform: fitted; layout: layout of the records, from a plan; dictionaries: column number -> texts of the
    codes in these records.
    """

    transform: TableTransform
    layout: RecordLayout

    def __init__(
        self,
        transform: TableTransform,
        layout: RecordLayout,
        dictionaries: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        self.transform, self.layout = transform, layout
        texts = dictionaries or {}
        self._wanted = {w.column.name: w for w in layout.members}
        self._codes = {
            w.column.name: _codes(transform.column(w.column.name), texts.get(w.index, ()))
            for w in layout.members
            if w.column.type == "category"
            and w.column.role != DEALING  # of these the transform may have none
        }
        self._steps = self._plan()
        self._label = [self._wanted[name] for name in transform.label if name in self._wanted]
        if self._label and transform.separator:
            self._hot = _multi_hot(transform, texts.get(self._label[0].index, ()))
        self._classes = np.array(transform.class_values or ())

    def map(self, records: NDArray[Any], texts: bytes | memoryview = b"") -> MappedRows:
        """Map records [n] of the layout without bad rows. texts: bytes that `at` of text columns refers to.

        Raises ValueError if the records have another layout.
        """
        if records.dtype != self.layout.dtype:
            raise ValueError(f"records have dtype {records.dtype}; {self.layout.dtype} is mapped")
        transform, n = self.transform, len(records)
        mapped = MappedRows({})
        if transform.features:
            features = np.empty((n, len(transform.features)), transform.dtype)
            with np.errstate(all="ignore"):
                beyond = [first for step in self._steps if (first := step(records, features)) is not None]
            mapped.beyond = min(beyond, default=None, key=lambda first: first[0])
            indicators = [c for c in transform.columns if c.indicator]
            for j, c in enumerate(indicators, len(transform.features) - len(indicators)):
                features[:, j] = is_missing(records[self._wanted[c.name].name])
            mapped.fields["features"] = features
        if names := transform.categories:
            codes = [self._codes[name][records[self._wanted[name].name]] for name in names]
            mapped.fields["categories"] = np.stack(codes, axis=1)
        if self._label:
            mapped.fields["label"] = self._labels(records)
        for c in transform.columns:
            if c.field is not None and c.name in self._wanted:
                mapped.fields[c.field] = _kept(c, records[self._wanted[c.name].name], texts)
        return mapped

    def _plan(self) -> list[Step]:
        """Return the steps that fill the features: per run of adjacent numbers in a record, or per column."""
        steps: list[Step] = []
        at = 0
        widths = {c.name: len(c.outputs) for c in self.transform.columns}
        wanted = [self._wanted[name] for name, width in widths.items() if width]
        for run in adjacent_members(wanted, self.layout.dtype):
            columns = [self.transform.column(w.column.name) for w in run]
            step = self._numbers if columns[0].kind.numeric else self._one_hot
            steps.append(step(columns, at))
            at += sum(widths[c.name] for c in columns)
        return steps

    def _numbers(self, run: list[TableColumn], first: int) -> Step:
        member, width, parts = self._wanted[run[0].name].name, len(run), list(run[0].kind.parts.values())
        several = max(1, len(parts))
        fill = np.array([np.nan if c.fill is None else c.fill for c in run])
        mean, std = np.array([c.standardize or (0.0, 1.0) * several for c in run]).reshape(-1, 2).T
        logs = np.flatnonzero([c.log1p for c in run])
        filled, scaled = not np.isnan(fill).all(), any(c.standardize for c in run)
        columns, rows = slice(first, first + width * several), max(1, _CELLS // width)

        def step(records: NDArray[Any], features: NDArray[Any]) -> tuple[int, str] | None:
            cells = adjacent(records, member, width)
            if not (filled or scaled or len(logs) or parts):
                features[:, columns] = cells
                return None
            if cells.dtype.kind == "i":
                features[:, columns] = np.where(cells == MISSING_INTEGER, 0, cells)  # the only fill value
                return None
            beyond = None
            for start in range(0, len(cells), rows):
                part = slice(start, start + rows)
                x = cells[part].astype(np.float64)
                if len(logs):
                    x[:, logs] = np.log1p(x[:, logs])
                if filled:
                    np.copyto(x, fill, where=np.isnan(x))
                if parts:
                    x = np.stack([of(x) for of in parts], axis=2).reshape(len(x), -1)
                if scaled:
                    x -= mean
                    x /= std
                features[part, columns] = x
                # Logarithms are small, and fill values of one part fit; the reader checked unchanged values.
                checked = beyond is None and (scaled or (filled and parts))
                if checked and (where := _infinite(features[part, columns])) is not None:
                    beyond = start + where[0], run[where[1] // several].name
            return beyond

        return step

    def _one_hot(self, run: list[TableColumn], first: int) -> Step:
        (c,) = run
        member, codes, width = self._wanted[c.name].name, self._codes[c.name], len(c.outputs)

        def step(records: NDArray[Any], features: NDArray[Any]) -> None:
            numbers = codes[records[member]]
            features[:, first : first + width] = 0
            rows = np.flatnonzero(numbers)
            features[rows, first + numbers[rows] - 1] = 1

        return step

    def _labels(self, records: NDArray[Any]) -> NDArray[Any]:
        raw = [records[w.name] for w in self._label]
        if self.transform.separator:
            return np.asarray(self._hot[raw[0]])
        if self.transform.label_kind == "classes":
            return self._class_codes(self._label[0], raw[0])
        dtype = np.dtype(self.transform.label_dtype)
        values = [x if x.dtype.kind == dtype.kind == "i" else as_float(x) for x in raw]
        with np.errstate(all="ignore"):
            label = np.stack([x.astype(dtype) for x in values], axis=1)
        return label if len(raw) > 1 else label[:, 0]

    def _class_codes(self, w: RecordMember, x: NDArray[Any]) -> NDArray[np.int64]:
        """Return class codes from 0, -1 for unknown values."""
        if w.column.type == "category":
            return np.asarray(self._codes[w.column.name][x] - 1)
        values = x if x.dtype.kind == "i" else as_float(x)
        places = np.minimum(np.searchsorted(self._classes, values), len(self._classes) - 1)
        return np.asarray(np.where(self._classes[places] == values, places, -1), np.int64)


def _codes(c: TableColumn, texts: Sequence[str]) -> NDArray[np.int64]:
    """Return category numbers by code, 0 for unknown ones; the last entry is for code -1 (missing)."""
    numbers = {text: k for k, text in enumerate(c.categories or (), 1)}
    return np.array([*(numbers.get(text, 0) for text in texts), 0], np.int64)


def _multi_hot(transform: TableTransform, texts: Sequence[str]) -> NDArray[np.uint8]:
    """Return the label of each code, uint8 [n + 1, C]; the last is for code -1: a cell without classes."""
    numbers = {name: k for k, name in enumerate(transform.classes or ())}
    hot = np.zeros((len(texts) + 1, len(numbers)), np.uint8)
    for row, text in enumerate(texts):
        hot[row, [numbers[name] for name in transform.class_names(text) if name in numbers]] = 1
    return hot


def _infinite(features: NDArray[Any]) -> tuple[int, int] | None:
    """Return row and column of the first infinity in [n, F], None if there is none."""
    if features.dtype.kind != "f":
        return None
    infinite = np.isinf(features)
    return divmod(int(np.argmax(infinite)), infinite.shape[1]) if infinite.any() else None


def _kept(c: TableColumn, x: NDArray[Any], texts: bytes | memoryview) -> NDArray[Any] | list[bytes]:
    if c.type == "text":
        blob = memoryview(texts)
        ends = x["at"] + x["length"]
        return [bytes(blob[a:b]) for a, b in zip(x["at"].tolist(), ends.tolist(), strict=True)]
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(x, c.kind.kept[0] if c.kind.kept else x.dtype)
