"""The arithmetic of a fitted transform: records in, fields out, whole columns at a time; applied to data frames bit for bit alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.table_record import check_table
from packer.tables.transform import data_frames
from packer.tables.transform.column_types import MISSING_INTEGER, TEXT, TableColumn, as_float, is_missing
from packer.tables.transform.records import CellFault, RecordLayout, RecordMember
from packer.tables.transform.table_transform import ColumnTransform, TableTransform

Fields = dict[str, "NDArray[Any] | list[bytes]"]
_CELLS = 32_768  # at a time, where there is arithmetic: they stay in the cache


@dataclass
class MappedRows:
    """Rows of the fields.

    fields: name -> [n, ...], C-contiguous, or the rows' texts; bad: bool [n], the rows whose label is missing or no known
    class, None if there are none; beyond: (record, column name) of the first record whose features do not all fit their dtype (a cell
    that is there became infinite), None if all do.
    """

    fields: Fields
    bad: NDArray[np.bool_] | None = None
    beyond: tuple[int, str] | None = None


Step = Callable[[NDArray[Any], NDArray[Any]], "tuple[int, str] | None"]
"""Fills columns of the features [n, F] from records [n]. Returns the first record, and its column, that became infinite."""


class RowMapper:
    """A fitted transform for records of one layout; thread-safe.

    transform: fitted; layout: of the records, that of a plan; dictionaries: column number -> the texts that the
    codes in these records mean.
    """

    def __init__(
        self,
        transform: TableTransform,
        layout: RecordLayout,
        dictionaries: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        self.transform, self.layout = transform, layout
        self._dictionaries = dictionaries = dictionaries or {}
        self._wanted = {w.column.name: w for w in layout.members}
        self._codes: dict[str, NDArray[np.int64]] = {}
        for w in layout.members:
            c = transform.column(w.column.name)
            if c.type == "category":
                self._codes[c.name] = _codes(c, dictionaries.get(w.index, ()))
        self._dtype = np.dtype(transform.dtype)
        self._steps = self._plan()
        self._label = [self._wanted[name] for name in transform.label if name in self._wanted]
        exact = transform.classes is not None and transform.column(transform.label[0]).type == "integer"
        self._classes = np.array(transform.class_values or (), np.int64 if exact else np.float64)

    def __reduce__(self) -> tuple[Any, ...]:
        return RowMapper, (self.transform, self.layout, self._dictionaries)

    def map(self, records: NDArray[Any], texts: bytes | memoryview = b"") -> MappedRows:
        """Map records [n] of the layout. texts: the blob that `at` of text columns counts from.

        Raises ValueError if the records are of another layout.
        """
        if records.dtype != self.layout.dtype:
            raise ValueError(f"records have dtype {records.dtype}; {self.layout.dtype} is mapped")
        transform, n = self.transform, len(records)
        mapped = MappedRows({})
        if transform.features:
            features = np.empty((n, len(transform.features)), self._dtype)
            with np.errstate(all="ignore"):
                beyond = [found for step in self._steps if (found := step(records, features)) is not None]
            mapped.beyond = min(beyond, default=None, key=lambda found: found[0])
            mapped.fields["features"] = features
        names = transform.categories
        if names:
            codes = np.empty((n, len(names)), np.int64)
            for j, name in enumerate(names):
                codes[:, j] = self._codes[name][records[self._wanted[name].name]]
            mapped.fields["categories"] = codes
        if self._label:
            mapped.fields["label"], mapped.bad = self._labels(records)
        for c in transform.columns:
            if c.field is not None and c.name in self._wanted:
                mapped.fields[c.field] = _kept(c, records[self._wanted[c.name].name], texts)
        return mapped

    def _plan(self) -> list[Step]:
        """Return the steps that fill the features: one for each run of numbers side by side in a record, one for any other column."""
        members: Mapping[str, Any] = self.layout.dtype.fields or {}
        steps: list[Step] = []
        run: list[ColumnTransform] = []
        at = first = 0

        def finish() -> None:
            if run:
                steps.append(self._run(list(run), first))
                run.clear()

        for c in self.transform.columns:
            if not c.outputs:
                continue
            member = self._wanted[c.name].name
            if not c.kind.numeric or c.kind.parts:
                finish()
                steps.append(self._parts(c, at) if c.kind.parts else self._one_hot(c, at))
            else:
                if run:
                    dtype, offset = members[self._wanted[run[-1].name].name][:2]
                    if members[member][:2] != (dtype, offset + dtype.itemsize):
                        finish()
                if not run:
                    first = at
                run.append(c)
            at += len(c.outputs)
        finish()
        for j, c in enumerate((c for c in self.transform.columns if c.indicator), at):
            steps.append(self._indicator(c, j))
        return steps

    def _run(self, run: list[ColumnTransform], first: int) -> Step:
        member, width = self._wanted[run[0].name].name, len(run)
        fill = np.array([np.nan if c.fill is None else c.fill for c in run])
        mean, std = np.array([c.standardize or (0.0, 1.0) for c in run]).T
        logs = np.flatnonzero([c.log1p for c in run])
        filled, scaled = not np.isnan(fill).all(), any(c.standardize for c in run)
        columns, rows = slice(first, first + width), max(1, _CELLS // width)

        def step(records: NDArray[Any], features: NDArray[Any]) -> tuple[int, str] | None:
            cells = records[member]
            cells = np.lib.stride_tricks.as_strided(
                cells, (len(cells), width), (cells.strides[0], cells.itemsize), writeable=False
            )
            if not (filled or scaled or len(logs)):
                features[:, columns] = cells
                return None
            if cells.dtype.kind == "i":
                features[:, columns] = np.where(cells == MISSING_INTEGER, 0, cells)  # all that is filled in
                return None
            beyond = None
            for start in range(0, len(cells), rows):
                part = slice(start, start + rows)
                x = cells[part].astype(np.float64)
                if len(logs):
                    x[:, logs] = np.log1p(x[:, logs])
                if filled:
                    np.copyto(x, fill, where=np.isnan(x))
                if scaled:
                    x -= mean
                    x /= std
                features[part, columns] = x
                # Logarithms are small, and fills fit; what is left as it is was checked when it was read.
                if scaled and beyond is None and (where := _infinite(features[part, columns])) is not None:
                    beyond = start + where[0], run[where[1]].name
            return beyond

        return step

    def _parts(self, c: ColumnTransform, first: int) -> Step:
        member, parts = self._wanted[c.name].name, list(c.kind.parts.values())
        scale = c.standardize or (0.0, 1.0) * len(parts)
        scales = list(zip(scale[::2], scale[1::2], strict=True))

        def step(records: NDArray[Any], features: NDArray[Any]) -> tuple[int, str] | None:
            x = records[member].astype(np.float64)
            if c.fill is not None:
                x[np.isnan(x)] = c.fill
            for j, (part, (mean, std)) in enumerate(zip(parts, scales, strict=True), first):
                features[:, j] = (part(x) - mean) / std
            where = _infinite(features[:, first : first + len(parts)]) if c.standardize or c.fill else None
            return None if where is None else (where[0], c.name)

        return step

    def _one_hot(self, c: ColumnTransform, first: int) -> Step:
        member, codes = self._wanted[c.name].name, self._codes[c.name]
        width = len(c.outputs)

        def step(records: NDArray[Any], features: NDArray[Any]) -> None:
            own = codes[records[member]]
            features[:, first : first + width] = 0
            rows = np.flatnonzero(own)
            features[rows, first + own[rows] - 1] = 1

        return step

    def _indicator(self, c: ColumnTransform, at: int) -> Step:
        wanted = self._wanted[c.name]

        def step(records: NDArray[Any], features: NDArray[Any]) -> None:
            features[:, at] = is_missing(records[wanted.name])

        return step

    def _labels(self, records: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        raw = [records[w.name] for w in self._label]
        dtype = np.dtype(self.transform.label_dtype)
        bad = np.zeros(len(records), np.bool_)
        for x in raw:
            bad |= is_missing(x)
        if self.transform.label_kind == "classes":
            label = self._class_codes(self._label[0], raw[0])
            bad |= label < 0
        else:
            label = np.empty((len(records), len(raw)), dtype)
            with np.errstate(all="ignore"):
                for j, x in enumerate(raw):
                    label[:, j] = x if x.dtype.kind == "i" and dtype.kind == "i" else as_float(x)
            label = label if len(raw) > 1 else label[:, 0]
        return label, bad if bad.any() else None

    def _class_codes(self, w: RecordMember, x: NDArray[Any]) -> NDArray[np.int64]:
        """Return the classes from 0, -1 for none."""
        if w.column.type == "category":
            return np.asarray(self._codes[w.column.name][x] - 1)
        values = x if x.dtype.kind == "i" else as_float(x)
        places = np.minimum(np.searchsorted(self._classes, values), len(self._classes) - 1)
        return np.asarray(np.where(self._classes[places] == values, places, -1), np.int64)


def _codes(c: ColumnTransform, texts: Sequence[str]) -> NDArray[np.int64]:
    """Return category numbers by code, 0 for unknown ones; the entry of code -1, missing, is the last."""
    numbers = {text: k for k, text in enumerate(c.categories or (), 1)}
    return np.array([*(numbers.get(text, 0) for text in texts), 0], np.int64)


def _infinite(features: NDArray[Any]) -> tuple[int, int] | None:
    """Find the row and column of the first infinity in [n, F], None if there is none."""
    if features.dtype.kind != "f":
        return None
    found = np.isinf(features)
    return divmod(int(np.argmax(found)), found.shape[1]) if found.any() else None


def _kept(c: ColumnTransform, x: NDArray[Any], texts: bytes | memoryview) -> NDArray[Any] | list[bytes]:
    if c.type == "text":
        blob = memoryview(texts)
        ends = x["at"] + x["length"]
        return [bytes(blob[a:b]) for a, b in zip(x["at"].tolist(), ends.tolist(), strict=True)]
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(x, c.kind.kept[0] if c.kind.kept else x.dtype)


def apply(header: Any, data: Any) -> dict[str, NDArray[Any] | list[str]]:
    """Map the rows of a data frame as the rows of a pack were.

    Columns are found by name; others than the pack's are passed over.

    Parameters
    ----------
    header : Pack, Header or mapping
        A pack that was made from a table, its header, or the header's member `table`.
    data : DataFrame, Table or mapping
        A pandas or polars DataFrame, a pyarrow Table, or a dict of arrays or lists.

    Returns
    -------
    dict
        Field name -> array [n, ...] as in the pack; texts that were kept as a list. Without the columns of the label, or a kept
        column, its field is left out.

    Raises
    ------
    UsageError
        A feature's column is missing, a cell is not of its column's type, its label is none of the classes, or what a cell becomes
        does not fit the features' dtype.

    Notes
    -----
    Categories that the pack does not know are 0, as missing ones are. A number in a column of categories is the one that is this
    number, 1 or 1.0, so that whole numbers that pandas holds as floats, because cells are missing, are found again.
    """
    transform = _transform(header)
    frame = data_frames.frame(data)
    plan = transform.plan_for([TableColumn(name, "number") for name in frame.names])
    layout = plan.layout
    records = np.empty(frame.rows, layout.dtype)
    dictionaries: dict[int, list[str]] = {}
    # A pack of text files says how they were read; files that have nulls have no texts that mean missing.
    reading = transform.reading
    na = data_frames.NA | frozenset(map(str, reading["na"])) if "na" in reading else frozenset()
    marks = str(reading.get("decimal", ".")), str(reading.get("thousands", ""))
    blob = bytearray()
    for w in layout.members:
        cells = frame.get(w.column.name)
        if w.column.type == "category":
            known = transform.column(w.column.name).categories or ()
            records[w.name], dictionaries[w.index] = data_frames.codes(cells, na, known)
        elif w.column.type == "text":
            records[w.name] = _texts(data_frames.texts(cells, na), blob)
        else:
            raw = data_frames.numbers(cells, w.column, na or data_frames.NA, marks)
            with np.errstate(over="ignore"):
                records[w.name] = raw
            beyond = np.isinf(records[w.name]) if w.single else np.zeros(0, np.bool_)  # raw values are finite
            if beyond.any():
                row = int(np.argmax(beyond))
                raise _unfit(row, w.column.name, f"{float(raw[row])!r} {CellFault.BEYOND_SINGLE}", _MEND)
    mask, bad = plan.bad_rows(records, 1)
    if mask is not None:
        name = plan.columns[bad[0].column or 0].name
        shown = f"{bad[0].value!r} " if bad[0].value else ""
        raise _unfit(bad[0].line, name, shown + bad[0].reason, _MEND)
    mapped = RowMapper(transform, layout, dictionaries).map(records, bytes(blob))
    if mapped.bad is not None:
        row = int(np.argmax(mapped.bad))
        name = transform.label[0]
        shown = str(data_frames.texts(frame.get(name))[row])
        raise _unfit(
            row, name, f"{shown!r} is none of the label's classes", "Leave the row, or the column, out."
        )
    if mapped.beyond is not None:
        row, name = mapped.beyond
        what = f"becomes a number beyond {np.dtype(transform.dtype).name} once it is mapped"
        raise _unfit(row, name, what, "Mend the cell, or leave the row out.")
    return {
        name: [text.decode("utf-8", "surrogateescape") for text in rows] if isinstance(rows, list) else rows
        for name, rows in mapped.fields.items()
    }


_MEND = "Mend it, or leave the row out."


def _unfit(row: int, name: str, what: str, remedy: str) -> UsageError:
    return UsageError(f"row {row:,}, column {name!r}: {what}. {remedy}")


def _transform(header: Any) -> TableTransform:
    try:
        if isinstance(header, Mapping):
            check_table(header)
            return TableTransform.from_json(header)
        table = getattr(getattr(header, "header", header), "table", None)
        if isinstance(table, Mapping):
            return TableTransform.from_json(table)
    except ValueError as error:
        raise UsageError(f"header: {error}. Convert the table again.") from None
    raise UsageError(
        f"header: the {type(header).__name__} holds no mapping of a table; packs that were converted from tables do."
        " Pass one, or its header."
    )


def _texts(cells: list[str | None], blob: bytearray) -> NDArray[Any]:
    """Append the texts to the blob. Returns: where each lies in it."""
    places = []
    for text in cells:
        data = (text or "").encode("utf-8", "surrogateescape")
        places.append((len(blob), len(data)))
        blob += data
    return np.array(places, TEXT)
