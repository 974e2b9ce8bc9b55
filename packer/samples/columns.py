"""Columns: all values of a field (in memory, in a file, or as a list), and rows of a pack from columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.row_maker import RowMaker
from packer.errors import SourceError, UsageError
from packer.format.checksums import digest
from packer.format.hdf5_arrays import read_slabs
from packer.format.header import COORDINATES, Extent, Field, Header
from packer.format.pack import Pack
from packer.format.part_files import Rows
from packer.orders.runs import consecutive, one_run
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
    classes: names of its numbers. encoded: its values, or it itself, are the bytes of image files.
    """

    name: str
    where: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    path: str = ""
    classes: tuple[str, ...] = ()
    encoded: bool = False

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

    @property
    def decoded(self) -> Sequence[DecodedColumn]:
        """The compressed datasets, which must be decoded in order."""
        return ()

    def take(self, samples: NDArray[np.int64]) -> Any:
        """Return the values of some samples, [len(samples), ...]."""
        raise NotImplementedError

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield all values in order, in pieces."""
        rows, step = self.shape[0], max(1, _DIGEST_BYTES // max(1, self.row_bytes))
        return (self.part(start, min(rows, start + step)) for start in range(0, rows, step))

    def part(self, start: int, stop: int) -> NDArray[Any]:
        """Return the values from `start` to `stop`."""
        raise NotImplementedError


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

    def part(self, start: int, stop: int) -> NDArray[Any]:
        """See Column."""
        return self._array[start:stop]


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

    def part(self, start: int, stop: int) -> NDArray[Any]:
        """See Column."""
        return self._reader.array(self._field.name, one_run(start, stop))


class DecodedColumn(Column):
    """A compressed HDF5 dataset, decoded once into an unnamed file, from which rows are read."""

    def __init__(
        self, where: str, path: str, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> None:
        super().__init__(name, where, dtype, shape)
        self.path = path
        self._column: Column = self

    @property
    def decoded(self) -> Sequence[DecodedColumn]:
        """See Column."""
        return (self,)

    def decode(self, file: IO[bytes]) -> None:
        """Write the values to an unnamed file, which must stay open. Raises SourceError, OSError."""
        for piece in self.pieces():
            file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        file.flush()
        extent = Extent("", 0, self.shape[0], self.row_bytes)
        place = f"/dev/fd/{file.fileno()}"  # also available on macOS
        self._column = FileColumn(self.name, self.where, place, self.dtype, self.shape, (extent,))

    def pieces(self) -> Iterator[NDArray[Any]]:
        """See Column; before `decode`, each call decodes all values."""
        if self._column is not self:
            return super().pieces()
        return (slab[self.name] for slab in read_slabs(self.path, [self.name]))

    def take(self, samples: NDArray[np.int64]) -> Any:
        """See Column."""
        return self._column.take(samples)

    def part(self, start: int, stop: int) -> NDArray[Any]:
        """See Column."""
        return self._column.part(start, stop)


class TurnedColumn(Column):
    """A column with its axes in another order; axes[0] of the column counts the samples."""

    def __init__(self, column: Column, axes: Sequence[int]) -> None:
        self.column, self.axes = column, tuple(axes)
        if isinstance(column, TurnedColumn):
            self.column, self.axes = column.column, tuple(column.axes[axis] for axis in axes)
        super().__init__(column.name, column.where, column.dtype, tuple(column.shape[a] for a in axes))
        self.path, self.classes = column.path, column.classes

    @property
    def decoded(self) -> Sequence[DecodedColumn]:
        """See Column."""
        return self.column.decoded

    def take(self, samples: NDArray[np.int64]) -> NDArray[Any]:
        """See Column."""
        if self.axes[0]:
            return self._turned[samples]
        taken: NDArray[Any] = self.column.take(samples).transpose(self.axes)
        return taken

    def part(self, start: int, stop: int) -> NDArray[Any]:
        """See Column."""
        if self.axes[0]:
            return self._turned[start:stop]
        return self.column.part(start, stop).transpose(self.axes)

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
        self.classes = first.classes

    @property
    def decoded(self) -> Sequence[DecodedColumn]:
        """See Column."""
        return [one for part in self._parts for one in part.decoded]

    def take(self, samples: NDArray[np.int64]) -> NDArray[Any]:
        """See Column."""
        taken = np.empty((len(samples), *self.shape[1:]), self.dtype)
        owners = np.searchsorted(self._stops, samples, "right")
        for owner in np.unique(owners).tolist():
            part, at = self._parts[owner], np.flatnonzero(owners == owner)
            taken[at] = part.take(samples[at] - (self._stops[owner] - part.shape[0]))
        return taken

    def part(self, start: int, stop: int) -> NDArray[Any]:
        """See Column."""
        return self.take(np.arange(start, stop))

    def pieces(self) -> Iterator[NDArray[Any]]:
        """See Column."""
        return chain.from_iterable(part.pieces() for part in self._parts)


class ColumnField:
    """A field from a column or from a list of rows: its plan, its rows, a digest of its values.

    column: None if `values` holds the rows already. row_bytes: mean bytes of a ragged row, 0 for a fixed
    field.
    """

    plan: FieldPlan
    column: Column | None

    def __init__(
        self, plan: FieldPlan, column: Column | None, values: Sequence[bytes] = (), row_bytes: float = 0
    ) -> None:
        self.plan, self.column, self._values = plan, column, values
        self.row_bytes: float = row_bytes or sum(map(len, values)) / max(1, len(values))

    @classmethod
    def of(cls, name: str, column: Column, declared: Declared) -> ColumnField:
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
            plan = plan_field(name, values, form, declared.channels, sized)
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

    def values(self, count: int) -> Iterator[NDArray[Any]]:
        """Yield the values of all rows, in pieces."""
        field = self.plan.field
        for start in range(0, count, _VALUES_AT_ONCE):
            rows = self.rows(np.arange(start, min(count, start + _VALUES_AT_ONCE)))
            if field.ragged:
                yield np.frombuffer(b"".join(map(bytes, rows)), field.about.get("dtype", field.dtype))
            else:
                yield np.asarray(rows)

    def digest(self, progress: Callable[[int], None]) -> str:
        """Return a digest of all values. progress: called with the number of bytes read so far."""

        def pieces() -> Iterator[Any]:
            done = 0
            for part in () if self.column is None else self.column.pieces():
                done += part.nbytes
                progress(done)
                yield np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            for value in self._values:
                yield len(value).to_bytes(8, "little")
                yield value

        return digest(pieces()).hex()


class ColumnSamples(RowMaker):
    """Rows from columns of equal length, without a call per row."""

    count: int

    def __init__(self, fields: Mapping[str, ColumnField], count: int, classes: Sequence[str] | None) -> None:
        """count: number of samples. classes: class names to check labels against; None: no check."""
        self._columns, self.count, self._classes = dict(fields), count, classes
        self.fields: tuple[Field, ...] = tuple(column.plan.field for column in fields.values())
        self.ragged_bytes: int = round(sum(column.row_bytes for column in fields.values()))

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the rows of all fields, with labels checked. Raises SourceError."""
        rows = self.taken(samples)
        if self._classes is not None and LABEL in rows:
            check_labels(np.asarray(rows[LABEL]), samples, len(self._classes))
        return rows

    def taken(self, samples: NDArray[np.int64]) -> dict[str, Rows]:
        """Return the rows of some samples, without checking labels."""
        return {name: column.rows(samples) for name, column in self._columns.items()}

    def name(self, sample: int) -> str:
        """Return the sample's number, for messages."""
        return f"sample {sample}"

    def labels(self) -> NDArray[np.int64] | None:
        """Return the label of each sample, if labels are single integers or booleans; else None."""
        column = self._columns.get(LABEL)
        if (
            column is None
            or column.plan.field.shape != ()
            or np.dtype(column.plan.field.dtype).kind not in "iub"
        ):
            return None
        return np.asarray(column.rows(np.arange(self.count))).astype(np.int64)

    def check_pixels(self, subject: str) -> None:
        """Raise UsageError for boxes or keypoints of images that look like fractions of the images' sides."""
        for name in COORDINATES if IMAGE in self._columns else ():
            if name in self._columns:
                check_unit(subject, name, self._columns[name].values(self.count), None, None)

    def fingerprint(self, progress: Callable[[int], None] = lambda nbytes: None) -> dict[str, Any]:
        """Return the columns' identity for resuming: the number of rows and a digest of all values.

        progress: called with the bytes read of the current column.
        """
        found = {name: column.digest(progress) for name, column in self._columns.items()}
        return {"rows": self.count, "digest of the values": found}


def check_labels(labels: NDArray[Any], samples: NDArray[np.int64], classes: int) -> None:
    """Raise SourceError for a label outside 0 .. classes - 1."""
    wrong = (labels < 0) | (labels >= classes)
    if wrong.any():
        at = int(np.argmax(wrong.reshape(len(labels), -1).any(1)))
        raise SourceError(
            f"sample {samples[at]}: its label is {labels[at]}; the {classes} classes are numbered from 0. "
            "Correct it, or pass all classes."
        )


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
