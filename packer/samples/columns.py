"""Columns: all values of a field (in memory, in a file, or as a list), and rows of a pack from columns."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.row_maker import RowMaker
from packer.errors import SourceError, UsageError
from packer.format.checksums import digest
from packer.format.fields import (
    COORDINATES,
    Extent,
    Field,
)
from packer.format.header import Header
from packer.format.part_files import Rows
from packer.orders.runs import consecutive
from packer.packs.hdf5_arrays import read_rows
from packer.packs.pack import Pack
from packer.pixels.coordinate_units import check_unit
from packer.read.array_store import PackStore
from packer.samples.field_plan import (
    IMAGE,
    LABEL,
    Declared,
    FieldPlan,
    plan_field,
    plan_rows,
)
from packer.samples.values import ValueRefusedError, plain, shown

_DIGEST_BYTES = 8 << 20
_FEW = 20  # texts that may all differ and still be classes
_VALUES_AT_ONCE = 1 << 16


class Column:
    """All values of an array. dtype, shape, name: of the array [N, ...]; where: its name in messages.

    The base class itself is an array whose values cannot be read. path: the file that holds it, or "".
    classes: names of its numbers. encoded: its values, or it itself, are the bytes of image files. slab: rows
    to read at once, in order, if reading is decoding; 0: rows are read in any order.
    """

    name: str
    where: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    path: str = ""
    classes: tuple[str, ...] = ()
    encoded: bool = False
    slab: int = 0

    def __init__(self, name: str, where: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.name, self.where, self.dtype, self.shape = name, where, dtype, shape

    @property
    def row_bytes(self) -> int:
        """Bytes of a value."""
        return self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def described(self) -> str:
        """Name, dtype and shape, for messages."""
        kind = "text" if isinstance(self, ListColumn) else self.dtype.name
        return f"{shown(self.name)} {kind}{list(self.shape)}"

    def take(self, samples: NDArray[np.int64]) -> Any:
        """Return the values of some samples, [len(samples), ...]."""
        raise NotImplementedError

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield all values in order, in pieces."""
        rows, step = self.shape[0], self.slab or max(1, _DIGEST_BYTES // max(1, self.row_bytes))
        return (self.part(start, min(rows, start + step)) for start in range(0, rows, step))

    def part(self, start: int, stop: int) -> Any:
        """Return the values from `start` to `stop`."""
        return self.take(np.arange(start, stop))


class ListColumn(Column):
    """A column that is a list of values, for example of text."""

    def __init__(self, name: str, where: str, values: Sequence[Any]) -> None:
        numbers = all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in values)
        super().__init__(name, where, np.dtype(np.int64 if numbers else object), (len(values),))
        self.values = values

    def take(self, samples: NDArray[np.int64]) -> list[Any]:
        """See Column."""
        return [self.values[sample] for sample in samples.tolist()]


class ArrayColumn(Column):
    """A column that is an array in memory, or a memory map."""

    def __init__(self, name: str, where: str, array: NDArray[Any]) -> None:
        super().__init__(name, where, array.dtype, array.shape)
        self._array = array

    def take(self, samples: NDArray[np.int64]) -> NDArray[Any]:
        """See Column."""
        first, count = int(samples[0]) if len(samples) else 0, len(samples)
        if count and int(samples[-1]) - first == count - 1 and (np.diff(samples) == 1).all():
            return self._array[first : first + count]
        return self._array[samples]


class FileColumn(Column):
    """A column of raw rows in a file, in one or several extents, read by the same reader as packs."""

    def __init__(
        self,
        name: str,
        where: str,
        path: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        extents: tuple[Extent, ...],
    ) -> None:
        super().__init__(name, where, dtype, shape)
        self._field = Field("data", dtype.str, shape[1:])
        pack = Pack(path, Header(shape[0], 1, (self._field,), {"data": extents}), b"")
        self._reader = PackStore(pack, [self._field])

    def take(self, samples: NDArray[np.int64]) -> Any:
        """See Column."""
        runs = consecutive(samples)
        if len(runs.starts) > 1:
            self._reader.prefetch(runs)
        return self._reader.array(self._field.name, runs)


class Hdf5Column(Column):
    """A compressed HDF5 dataset, decoded by HDF5 at each reading."""

    def __init__(
        self, where: str, path: str, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], slab: int
    ) -> None:
        super().__init__(name, where, dtype, shape)
        self.path, self.slab = path, slab
        self._name = name

    def take(self, samples: NDArray[np.int64]) -> NDArray[Any]:
        """See Column."""
        runs = consecutive(samples)
        ends = (runs.starts + runs.lengths).tolist()
        parts = [
            read_rows(self.path, self._name, *run) for run in zip(runs.starts.tolist(), ends, strict=True)
        ]
        return np.concatenate([np.empty((0, *self.shape[1:]), self.dtype), *parts])


class TurnedColumn(Column):
    """A column with its axes in another order; axes[0] of the column counts the samples."""

    def __init__(self, column: Column, axes: Sequence[int]) -> None:
        self.column, self.axes = column, tuple(axes)
        if isinstance(column, TurnedColumn):
            self.column, self.axes = column.column, tuple(column.axes[axis] for axis in axes)
        super().__init__(column.name, column.where, column.dtype, tuple(column.shape[a] for a in axes))
        self.path, self.classes = column.path, column.classes
        self.slab = 0 if self.axes[0] else column.slab

    def take(self, samples: NDArray[np.int64]) -> NDArray[Any]:
        """See Column."""
        if self.axes[0]:
            return self._turned[samples]
        taken: NDArray[Any] = self.column.take(samples).transpose(self.axes)
        return taken

    @cached_property
    def _turned(self) -> NDArray[Any]:
        """All values, in memory: each sample lies in pieces all over the file."""
        return np.concatenate([*self.column.pieces()]).transpose(self.axes)


class JoinedColumn(Column):
    """Columns of one dtype and shape, one after the other."""

    def __init__(self, parts: Sequence[Column]) -> None:
        first = parts[0]
        self._parts, self._stops = parts, np.cumsum([one.shape[0] for one in parts])
        super().__init__(first.name, first.where, first.dtype, (int(self._stops[-1]), *first.shape[1:]))
        self.classes, self.slab = first.classes, max(part.slab for part in parts)

    def take(self, samples: NDArray[np.int64]) -> NDArray[Any]:
        """See Column."""
        taken = np.empty((len(samples), *self.shape[1:]), self.dtype)
        owners = np.searchsorted(self._stops, samples, "right")
        for owner in np.unique(owners).tolist():
            part, at = self._parts[owner], np.flatnonzero(owners == owner)
            taken[at] = part.take(samples[at] - (self._stops[owner] - part.shape[0]))
        return taken

    def pieces(self) -> Iterator[NDArray[Any]]:
        """See Column."""
        return chain.from_iterable(part.pieces() for part in self._parts)


class ColumnField:
    """A field from a column or from a list of rows: its plan, its rows, a digest of its values.

    column: None if `values` holds the rows already. row_bytes: mean bytes of these rows, else 0.
    """

    plan: FieldPlan
    column: Column | None

    def __init__(self, plan: FieldPlan, column: Column | None, values: Sequence[bytes] = ()) -> None:
        self.plan, self.column, self._values = plan, column, values
        self.row_bytes: float = sum(map(len, values)) / max(1, len(values))

    @classmethod
    def from_column(cls, name: str, column: Column, declared: Declared) -> ColumnField:
        """Return the field of a column. Raises UsageError for unsupported dtypes and shapes, SourceError."""
        form, sized = declared.form(name), declared.sized
        values: Sequence[Any]
        try:
            if isinstance(column, ListColumn):
                values = column.values
            elif column.dtype.kind in "OUST":
                values = np.concatenate([*column.pieces()]).tolist()
            elif form is not None and form.ragged:
                if form.dtype is None or form.shape is None or len(column.shape) < 2:
                    raise ValueRefusedError(
                        f"holds {column.dtype.name}{list(column.shape[1:])} per row, but {form.text} is "
                        "declared. Declare its dtype"
                    )
                values = [row for part in column.pieces() for row in part]
            else:
                dtype = plain(np.empty(0, column.dtype)).dtype
                shape = None if form is None or sized is not None else form.shape
                if form is not None and form.dtype is not None:
                    dtype = form.dtype
                plan = plan_rows(name, dtype, column.shape[1:], declared=shape)
                plan = replace(plan, rounds=form is not None)
                return cls(plan if sized is None or name != IMAGE else sized.plan(plan), column)
            plan = plan_field(name, values, declared)
        except ValueRefusedError as error:
            raise UsageError(f"{column.where}: {error}.") from None
        rows: list[Any] = []
        for number, value in enumerate(values):
            try:
                rows.append(plan.row(value))
            except ValueRefusedError as error:
                raise SourceError(f"{column.where}: sample {number} {error}.") from None
        if plan.field.ragged:
            return cls(plan, None, rows)
        return cls(FieldPlan(plan.field), ArrayColumn(name, column.where, np.stack(rows)))

    def rows(self, samples: NDArray[np.int64]) -> Rows:
        """Return the rows of some samples, for PackWriter. Raises SourceError."""
        if self.column is None:
            return [self._values[sample] for sample in samples.tolist()]
        if not len(samples):
            return np.empty((0, *(self.plan.field.shape or ())), self.plan.field.dtype)
        if self.plan.field.ragged:
            return list(self.column.take(samples))
        try:
            return np.ascontiguousarray(self.plan.stored(self.column.take(samples)))
        except ValueRefusedError as error:
            raise SourceError(f"{self.column.where}: {error}.") from None

    def digest(self) -> str:
        """Return a digest of all values."""

        def pieces() -> Iterator[Any]:
            for part in () if self.column is None else self.column.pieces():
                yield np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            for value in self._values:
                yield len(value).to_bytes(8, "little")
                yield value

        return digest(pieces()).hex()


class SampleRows(RowMaker):
    """Samples as rows of a pack.

    plans: field -> its plan. count: their number, 0 if unknown. notes: notes on the input. named: class names
    of the input. classes: class names to check labels against; None: no check. spans: rows of each split, if
    the input tells them. nbytes: bytes of all values, 0 if unknown. once: why an interrupted run cannot be
    resumed, "" if it can. forks: read some in a forked process. skipped: samples that `pieces` left out.
    """

    plans: Mapping[str, FieldPlan]
    notes: Sequence[str] = ()
    named: tuple[str, ...] | None = None
    classes: Sequence[str] | None = None
    spans: Mapping[str, range] = MappingProxyType({})
    nbytes: int = 0
    once: str = ""
    forks: bool = False
    skipped: Sequence[dict[str, str]] = ()

    def __init__(self, subject: str, plans: Mapping[str, FieldPlan], count: int, ragged_bytes: int) -> None:
        self.subject, self.plans, self.count, self.ragged_bytes = subject, plans, count, ragged_bytes
        self.fields: tuple[Field, ...] = tuple(plan.field for plan in plans.values())

    def name_classes(self, classes: Sequence[str] | None) -> None:
        """Set the class names to check labels against."""
        self.classes, self.classed = classes, classes is not None

    def pieces(self) -> Iterator[tuple[int, Mapping[str, Any]]] | None:
        """Return the number and the rows of pieces, in order, to be staged; None: read by sample numbers."""
        return None

    def identity(self) -> Mapping[str, Any] | None:
        """Return what identifies the values when a run is resumed."""
        return None

    def check_pixels(self) -> None:
        """Raise UsageError for boxes or keypoints in another unit than pixels, unless that was checked."""

    def name(self, sample: int) -> str:
        """Return the sample's number, for messages."""
        return f"sample {sample}"

    def wrong_label(self, labels: Any) -> tuple[int, str] | None:
        """Return the place of the first label outside 0 .. classes - 1, and the reason to refuse it."""
        if self.classes is None:
            return None
        values = np.atleast_1d(labels)
        places = np.flatnonzero((values < 0) | (values >= len(self.classes)))
        if not len(places):
            return None
        return int(places[0]), (
            f"its label is {values[places[0]]}; the {len(self.classes)} classes are numbered from 0. Correct "
            "it, or pass all classes."
        )


class ColumnSamples(SampleRows):
    """Rows from columns of equal length, without a call per row. slab: rows to stage at once; 0: none."""

    slab: int = 0

    def __init__(self, subject: str, columns: Mapping[str, ColumnField], count: int) -> None:
        ragged_bytes = round(sum(column.row_bytes for column in columns.values()))
        plans = {name: column.plan for name, column in columns.items()}
        super().__init__(subject, plans, count, ragged_bytes)
        self._columns = dict(columns)

    def field_rows(self, name: str, samples: NDArray[np.int64]) -> Rows:
        """Return a field's rows of some samples."""
        return self._columns[name].rows(samples)

    def read_fields(self, samples: NDArray[np.int64]) -> dict[str, Rows]:
        """Return the rows of some samples, without checking labels."""
        return {name: self.field_rows(name, samples) for name in self.plans}

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the rows of all fields, with labels checked. Raises SourceError."""
        rows = self.read_fields(samples)
        if wrong := self.wrong_label(rows.get(LABEL)):
            raise SourceError(f"sample {samples[wrong[0]]}: {wrong[1]}")
        return rows

    def pieces(self) -> Iterator[tuple[int, Mapping[str, Any]]] | None:
        """See SampleRows."""
        parts = self._number_parts(self.slab) if self.slab else ()
        return ((len(part), self.columns(part)) for part in parts) if self.slab else None

    def _number_parts(self, step: int) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of all samples, in parts."""
        return (np.arange(at, min(self.count, at + step)) for at in range(0, self.count, step))

    def labels(self) -> NDArray[np.int64] | None:
        """Return the label of each sample, if labels are single integers or booleans; else None."""
        field = self.plans[LABEL].field if LABEL in self.plans else None
        if field is None or field.shape != () or np.dtype(field.dtype).kind not in "iub":
            return None
        return np.asarray(self.field_rows(LABEL, np.arange(self.count))).astype(np.int64)

    def check_pixels(self) -> None:
        """Raise UsageError for boxes or keypoints of images that look like fractions of the images' sides."""
        for field in self.fields if IMAGE in self.plans else ():
            if field.name in COORDINATES:
                parts = (self.field_rows(field.name, part) for part in self._number_parts(_VALUES_AT_ONCE))
                if field.ragged:
                    dtype = field.about.get("dtype", field.dtype)
                    parts = (np.frombuffer(b"".join(map(bytes, part)), dtype) for part in parts)
                check_unit(self.subject, field.name, map(np.asarray, parts), None, None)

    def identity(self) -> Mapping[str, Any]:
        """Return the number of rows and a digest of all values."""
        found = {name: column.digest() for name, column in self._columns.items()}
        return {"rows": self.count, "digest of the values": found}


def number_labels(fields: dict[str, Column], classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the class names of a label that is text or an enumeration; None for other labels.

    Texts are replaced in `fields` by their numbers: in `classes` if given, else in sorted order. Texts that
    differ in (nearly) each sample stay. Raises SourceError for a text that is not in `classes`.
    """
    column = fields.get(LABEL)
    if column is None or column.classes:
        return None if column is None else column.classes
    texts = _texts(column)
    names = tuple(classes or sorted(set(texts)))
    if not texts or (classes is None and 2 * len(names) > len(texts) > _FEW):
        return None
    numbers = {name: number for number, name in enumerate(names)}
    wrong = next((text for text in texts if text not in numbers), None)
    if wrong is not None:
        raise SourceError(
            f"{column.where}: holds the label {shown(wrong)!r}, which is not one of the {len(names):,}"
            " classes. Correct it, or pass all classes."
        )
    labels = np.array([numbers[text] for text in texts], np.int64)
    fields[LABEL] = ArrayColumn(column.name, column.where, labels)
    return names


def _texts(column: Column) -> list[str]:
    """Return the values of a column of texts, one a sample; [] for other columns."""
    if column.dtype.kind not in "OUS" or set(column.shape[1:]) > {1}:
        return []
    if isinstance(column, ListColumn):
        values = list(column.values)
    else:
        values = np.concatenate([*column.pieces()]).reshape(-1).tolist()
    if not all(isinstance(value, (str, bytes)) for value in values):
        return []
    return [os.fsdecode(value) for value in values]
