"""What a pack says of its images beside their pixels, as the CSV from which packer convert reads it again.

One row an image, or one a box: ``file``, then the columns of the label, the boxes' and the keypoints', whichever there are.
Coordinates are those of the pack's rows, and the images are written at that size. What was written is read again with convert's own
reader, so that whatever would come back differently is known.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, SourceError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.inputs.targets import read_targets
from packer.orders.runs import Runs
from packer.read.fields import decode_ragged
from packer.read.reader import Reader

LABELS_FILE = "labels.csv"
_CORNERS = ["xmin", "ymin", "xmax", "ymax"]
_AT_ONCE = 4096


class Known(NamedTuple):
    """The fields that a CSV can hold; None for those that are not there, or are of another kind."""

    label: Field | None
    boxes: Field | None
    box_label: Field | None
    keypoints: Field | None

    @classmethod
    def of(cls, pack: Pack) -> Known:
        """Find them."""
        fields = {f.name: f for f in pack.fields}
        label, points = fields.get("label"), fields.get("keypoints")
        boxes = _ragged(fields.get("boxes"), "<f4", [4])
        if boxes is not None or label is None or label.ragged or len(label.shape or ()) > 1:
            label = None
        shape = () if points is None else points.shape or ()
        if points is not None and (points.dtype[1] != "f" or len(shape) != 2 or shape[1] != 2):
            points = None
        return cls(
            label, boxes, None if boxes is None else _ragged(fields.get("box_label"), "<i8", []), points
        )

    @property
    def names(self) -> list[str]:
        """Of those that are there."""
        return [f.name for f in self if f is not None]


class Table:
    """The CSV of some rows of a pack."""

    def __init__(self, pack: Pack, reader: Reader, known: Known, rows: NDArray[np.int64]) -> None:
        """rows: int64 [N], rising; reader: of the pack's fields."""
        self._pack, self._reader, self._known, self._rows = pack, reader, known, rows
        self._classes = pack.header.classes
        self.label = None if known.label is None else read_fixed(reader, known.label, rows)
        """[N] or [N, C], as the pack has it."""
        points = None if known.keypoints is None else read_fixed(reader, known.keypoints, rows)
        self._points = None if points is None else points.reshape(len(rows), -1)
        count = 0 if points is None else self._points.shape[1] // 2  # type: ignore[union-attr]
        self._point_columns = [f"{axis}{number}" for number in range(1, count + 1) for axis in "xy"]
        self._corners = [] if known.boxes is None else _CORNERS
        whole = (
            self.label is not None
            and self.label.dtype == np.float32
            and np.isfinite(self.label).all()
            and not (self.label % 1).any()
        )
        self._label_as = "float" if whole else None  # or they would come back as whole numbers
        self._label_columns = self._labels_called()

    def write(self, path: str, names: Sequence[str]) -> int:
        """Write a row, or several, for each image; names: of the files, in the order of the rows. Returns: bytes.

        Raises: OSError; FormatError for a class name that no file can hold.
        """
        with open(path, "x", encoding="utf-8", errors="surrogateescape", newline="") as file:
            writer = csv.writer(file)
            try:
                writer.writerow(["file", *self._label_columns, *self._corners, *self._point_columns])
                for name, cells in zip(names, self._cells(), strict=True):
                    # Cells are stripped of blanks when they are read.
                    called = f"./{name}" if name[0].isspace() else name
                    writer.writerows([called, *row] for row in cells)
            except UnicodeEncodeError as error:
                raise FormatError(
                    f"{self._pack.path}: {error.object[error.start : error.end]!r} stands in the name of a class or column;"
                    " no file can hold it. Nothing was written."
                ) from None
        return os.path.getsize(path)

    def options(self, path: str) -> list[str]:
        """What to pass to packer convert."""
        options = ["--labels", path]
        for option, columns in (
            ("--label", self._label_columns),
            ("--boxes", self._corners),
            ("--keypoints", self._point_columns),
        ):
            options += [option, ",".join(columns)] if columns else []
        return [*options, *(["--label-as", "float"] if self._label_as else [])]

    def differences(self, path: str, names: list[str]) -> list[str]:
        """Read it as packer convert will, and say what would not come back as it was, a sentence each."""
        label, points = self._label_columns or None, self._point_columns or None
        try:
            read = read_targets(
                path,
                names,
                label=label,
                boxes=self._corners or None,
                keypoints=points,
                label_as=self._label_as,
            )
        except SourceError as error:
            return [f"packer convert will not take {LABELS_FILE}: {error}"]
        notes = []
        found = read.fixed.get("label")
        if self.label is not None and (
            found is None or found.dtype != self.label.dtype or not np.array_equal(found, self.label)
        ):
            kind = "nothing" if found is None else f"{found.dtype.name} {list(found.shape[1:])}"
            was = f"{self.label.dtype.name} {list(self.label.shape[1:])}"
            notes.append(f"The labels ({was}) come back as others ({kind}).")
        if self._classes is not None and read.classes != list(self._classes):
            notes.append(
                f"The pack has {len(self._classes):,} classes; packer convert knows {len(read.classes or ()):,} of them,"
                f" those that are named in {LABELS_FILE}."
            )
        return notes

    def _labels_called(self) -> list[str]:
        if self._known.box_label is not None or (self.label is not None and self.label.ndim == 1):
            return ["label"]
        if self.label is None:
            return []
        count = self.label.shape[1]
        assert self._known.label is not None
        given = self._known.label.about.get("columns")
        taken = {"file", *self._point_columns}
        fits = (
            isinstance(given, list)
            and len(given) == len(set(map(str, given))) == count
            and all(
                isinstance(name, str) and name and name == name.strip() and "," not in name for name in given
            )
            and taken.isdisjoint(given)
        )
        return given if fits else [f"label{number}" for number in range(1, count + 1)]  # type: ignore[return-value]

    def _cells(self) -> Iterator[list[list[str]]]:
        """For each image, the cells of its rows without the name."""
        for start in range(0, len(self._rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            boxes = self._ragged(self._known.boxes, part)
            numbers = self._ragged(self._known.box_label, part)
            for i in range(len(self._rows[part])):
                points = [] if self._points is None else _texts(self._points[start + i])
                if boxes is None:
                    label = [] if self.label is None else self._label_cells(self.label[start + i])
                    yield [[*label, *points]]
                    continue
                corners = boxes[i]
                labels: list[list[str]] = [[]] * len(corners)
                if numbers is not None:
                    labels = [self._label_cells(number) for number in numbers[i][: len(corners)]]
                    if len(numbers[i]) != len(corners):
                        raise FormatError(
                            f"{self._pack.path}: row {self._rows[start + i]} has {len(corners)} boxes and {len(numbers[i])} labels"
                            " of boxes; each box has one. Convert the images again."
                        )
                none = [""] * (len(self._label_columns) + 4)
                yield [
                    [*label, *_texts(box), *points] for label, box in zip(labels, corners, strict=True)
                ] or [[*none, *points]]

    def _label_cells(self, label: Any) -> list[str]:
        values = np.atleast_1d(label)
        if len(values) == 1 and values.dtype.kind in "iu" and self._classes is not None:
            number = int(values[0])
            if 0 <= number < len(self._classes):
                return [self._classes[number]]
        return _texts(values)

    def _ragged(self, f: Field | None, part: slice) -> list[NDArray[Any]] | None:
        if f is None:
            return None
        rows = self._rows[part]
        return decode_ragged(self._pack, f, self._reader.read_ragged(f.name, runs_of(rows)), rows.tolist())


def runs_of(rows: NDArray[np.int64]) -> Runs:
    """Rising rows as runs."""
    firsts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    return Runs(rows[firsts], np.diff(firsts, append=len(rows)))


def read_fixed(reader: Reader, f: Field, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Rows of a fixed field, [len(rows), *shape]."""
    out = np.empty((len(rows), f.row_bytes), np.uint8)
    if len(rows):
        reader.read(f.name, runs_of(rows), out)
    return out.view(f.dtype).reshape(-1, *(f.shape or ()))


def _ragged(f: Field | None, dtype: str, row_shape: list[int]) -> Field | None:
    """The field, if its rows are arrays of that kind."""
    fits = (
        f is not None and f.ragged and (f.about.get("dtype"), f.about.get("row_shape")) == (dtype, row_shape)
    )
    return f if fits else None


def _texts(values: NDArray[Any]) -> list[str]:
    """Numbers as the shortest texts that read back as they are; nothing for NaN."""
    if values.dtype.kind == "f":
        return ["" if np.isnan(value) else str(value) for value in values]
    return [str(int(value)) for value in values]
