"""labels.csv of exported images: a row per image, or per box, in the form that packer convert reads.

    file,label,split,xmin,ymin,xmax,ymax,left_eye_x,left_eye_y

Only the columns that the pack has; coordinates are pixels of the rows, at whose size images are written.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError
from packer.format.fields import Field
from packer.format.file_io import create
from packer.given_values import option_text
from packer.inputs.file_names import shorten
from packer.inputs.point_names import columns_of, point_names, sides
from packer.orders.runs import consecutive
from packer.path_text import safe_name
from packer.read.array_store import PackStore

LABELS_FILE = "labels.csv"
_CORNERS = ["xmin", "ymin", "xmax", "ymax"]
_TAKEN = {"file", "label", "split", *_CORNERS}
_FORMULA = "=+-@"
"""Characters that begin a formula, for a spreadsheet."""


class ExportedLabels:
    """The lines of labels.csv for some rows of a pack.

    columns: name -> cell of each image; box_columns: names of the columns of each box; fields: names of the
    fields in them; notes: sentences about content that they cannot hold, complete after `write`.
    """

    columns: dict[str, Iterable[str]]
    box_columns: list[str]
    fields: list[str]
    notes: list[str]

    def __init__(self, reader: PackStore, rows: NDArray[np.int64]) -> None:
        """Raises FormatError for class names that a file cannot hold."""
        self._reader, self._runs, self._pack = reader, consecutive(rows), reader.pack
        self.columns, self.box_columns, self.fields, self.notes = {}, [], [], []
        self._found: set[int] = set()
        fields = {f.name: f for f in self._pack.fields}
        points, label = fields.get("keypoints"), fields.get("label")
        if points is not None and points.dtype[1] == "f" and (points.shape or ())[1:] == (2,):
            self._add(points, self._point_columns(points))
        self._classes = self._safe_classes() if label is None or not label.shape else ()
        if _holds(fields.get("boxes"), "<f4", [4]):
            self.box_columns = _CORNERS
            self.fields.append("boxes")
            if _holds(fields.get("box_label"), "<i8", []):
                self.box_columns = [*_CORNERS, "label"]
                self.fields.append("box_label")
        elif label is not None and not label.ragged and len(label.shape or ()) <= 1:
            self._add(label, self._label_columns(label))
        if self._pack.header.splits:
            self.columns["split"] = self._splits()[rows]

    def _add(self, f: Field, names: list[str]) -> None:
        """Add the columns of a field of numbers."""
        values = self._reader.array(f.name, self._runs).reshape(self._runs.total, -1)
        cells = self._labels if names == ["label"] else _texts
        self.columns |= {name: cells(column) for name, column in zip(names, values.T, strict=True)}
        self.fields.append(f.name)

    def _splits(self) -> NDArray[np.object_]:
        """Return the split of each row of the pack; both names for a row that is in two."""
        owners = np.full(self._pack.rows, "", object)
        for name, spans in self._pack.header.splits.items():
            for start, stop in spans:
                owners[start:stop] = [_safe(f"{other},{name}".lstrip(",")) for other in owners[start:stop]]
        return owners

    def _label_columns(self, label: Field) -> list[str]:
        """Return the column of a label, or those of several: the pack's, else label1, label2 ..."""
        if not label.shape:
            return ["label"]
        names = [str(name) for name in label.about.get("columns", ())]
        numbered = [f"label{number}" for number in range(1, label.shape[0] + 1)]
        return names if _are_columns(names, label.shape[0], {"file", "split", *self.columns}) else numbered

    def _point_columns(self, points: Field) -> list[str]:
        """Return two columns for each point: left_eye_x, left_eye_y, else x1, y1 ...

        Adds a note if these do not tell the sides that the pack records.
        """
        columns, count = columns_of(points.about.get("points", ())), (points.shape or (0,))[0]
        if not _are_columns(columns, 2 * count, _TAKEN):
            columns = columns_of([str(number) for number in range(1, count + 1)])
        given = points.about.get("flip_pairs")
        if given is not None and (not given or given != [list(pair) for pair in sides(point_names(columns))]):
            pairs = option_text("Labels.flip_pairs", shorten(",".join(map(":".join, given)) or "none"))
            text = f"{LABELS_FILE} does not say which points are sides; to pack it again, pass {pairs}."
            self.notes.append(text)
        return columns

    def _safe_classes(self) -> tuple[str, ...]:
        """Return class names as cells can hold them. Raises FormatError if two become equal."""
        classes = self._pack.header.classes or ()
        names = tuple(map(_safe, classes))
        if len(set(names)) < len(set(classes)):
            raise FormatError(
                f"{self._pack.path}: two of its class names differ only in blanks or control characters,"
                " which a file of names cannot hold. Nothing was written."
            )
        if changed := sum(map(str.__ne__, names, classes)):
            self.notes.append(
                f"In {changed:,} of the class names, _ replaces control characters and line ends, blanks at"
                " the ends are left out, and ' precedes = + - @."
            )
        return names

    def write(self, path: str, files: Sequence[str]) -> int:
        """Write the table of images; return its bytes. files: their names, in the order of the rows.

        Raises OSError, and FormatError for a name that a file cannot hold.
        """
        with open(create(path), "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            try:
                csv.writer(file).writerows(self._lines(files))
            except UnicodeEncodeError as error:
                raise FormatError(
                    f"{self._pack.path}: the name of a class or column holds"
                    f" {error.object[error.start : error.end]!r}, which a file cannot hold. Nothing was"
                    " written."
                ) from None
        found = tuple(sorted(self._classes[number] for number in self._found))
        if found and (found != self._classes or all(map(_is_number, found))):
            like = option_text("like", self._pack.path)
            text = (
                f"{LABELS_FILE} holds the names of classes, not their numbers; to pack it again, pass {like}."
            )
            self.notes.append(text)
        return os.path.getsize(path)

    def _lines(self, files: Sequence[str]) -> Iterator[list[str]]:
        yield ["file", *self.columns, *self.box_columns]
        boxes = self._boxes() if self.box_columns else [[[]]] * len(files)
        for name, several, *cells in zip(files, boxes, *self.columns.values(), strict=True):
            # packer convert strips blanks from cells, and a spreadsheet computes formulas.
            called = f"./{name}" if name[0].isspace() or _is_formula(name) else name
            for box in several or [[""] * len(self.box_columns)]:
                yield [called, *cells, *box]

    def _boxes(self) -> Iterator[list[list[str]]]:
        """Yield the cells of each box of each image. Raises FormatError."""
        named = len(self.box_columns) > len(_CORNERS)
        labels = self._reader.decoded("box_label" if named else "boxes", self._runs)
        boxes = self._reader.decoded("boxes", self._runs)
        for row, corners, numbers in zip(self._runs.rows(), boxes, labels, strict=True):
            if len(corners) != len(numbers):
                raise FormatError(
                    f"{self._pack.path}: row {row} has {len(corners)} boxes and {len(numbers)} labels of"
                    " boxes; each box has one. Convert the images again."
                )
            cells = [list(_texts(box)) for box in corners]
            yield [[*a, b] for a, b in zip(cells, self._labels(numbers), strict=True)] if named else cells

    def _labels(self, values: NDArray[Any]) -> Iterator[str]:
        """Yield the cells of labels: the names of classes, "" for numbers that are none."""
        if not self._classes or values.dtype.kind not in "iu":
            yield from _texts(values)
            return
        for number in values.tolist():
            known = 0 <= number < len(self._classes)
            self._found |= {number} if known else set()
            yield self._classes[number] if known else ""


def _are_columns(names: Sequence[str], count: int, taken: set[str]) -> bool:
    """Return True if a CSV can hold these names of `count` columns, beside others that are taken."""
    distinct = len(names) == count and len({*names, *taken}) == count + len(taken)
    return distinct and all(name and "," not in name and name == _safe(name) for name in names)


def _safe(text: str) -> str:
    """Return a name without blanks at its ends and control characters, and not as a formula."""
    name = safe_name(text.strip())
    return f"'{name}" if _is_formula(name) else name


def _is_formula(text: str) -> bool:
    """Return True for text other than numbers that a spreadsheet would compute as a formula."""
    return text[:1] in tuple(_FORMULA) and not _is_number(text)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?[\d.eE+-]+", text) is not None


def _holds(f: Field | None, dtype: str, row_shape: list[int]) -> bool:
    """Return True if rows of the field are arrays of this dtype and row shape."""
    return (
        f is not None and f.ragged and (f.about.get("dtype"), f.about.get("row_shape")) == (dtype, row_shape)
    )


def _texts(values: NDArray[Any]) -> Iterator[str]:
    """Yield numbers as the shortest texts that parse to equal values; "" for NaN."""
    for value in values:
        yield str(int(value)) if values.dtype.kind != "f" else "" if np.isnan(value) else str(value)
