"""The labels.csv and classes.txt of an export: labels, boxes and keypoints in the form that packer convert reads.

labels.csv has one row an image, or one a box: ``file``, then the columns of the label, the boxes and the keypoints, whichever the pack
has. Coordinates are pixels of the pack's rows, at whose size the images are written. classes.txt lists the classes, one a line.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.export_files import ExportRows
from packer.errors import FormatError
from packer.format.header import Field
from packer.orders.runs import consecutive
from packer.path_text import safe_name
from packer.read.row_reader import decode_ragged

LABELS_FILE, CLASSES_FILE = "labels.csv", "classes.txt"
_CORNERS = ["xmin", "ymin", "xmax", "ymax"]
_AT_ONCE = 4096
_FORMULA = "=+-@"
"""Characters that begin a formula, for a spreadsheet."""


class LabelFiles:
    """The labels.csv and classes.txt of some rows of a pack.

    fields: names of those that they hold; notes: a sentence for each thing that they do not hold.
    """

    def __init__(self, rows: ExportRows) -> None:
        """Raises FormatError for names of classes that no file can hold."""
        self._pack, self._reader, self._rows = rows.pack, rows.reader, rows.rows
        self.notes: list[str] = []
        fields = {f.name: f for f in self._pack.fields}
        self._boxes = _ragged(fields.get("boxes"), "<f4", [4])
        self._box_label = self._boxes and _ragged(fields.get("box_label"), "<i8", [])
        label, points = fields.get("label"), fields.get("keypoints")
        if self._boxes is not None or label is None or label.ragged or len(label.shape or ()) > 1:
            label = None
        if points is not None and (points.dtype[1] != "f" or (points.shape or ())[1:] != (2,)):
            points = None
        self.fields = [f.name for f in (label, self._boxes, self._box_label, points) if f is not None]
        runs = consecutive(self._rows)
        self._label = None if label is None else self._reader.array(label, runs)
        self._points = (
            None if points is None else self._reader.array(points, runs).reshape(len(self._rows), -1)
        )
        count = 0 if self._points is None else self._points.shape[1] // 2
        point_columns = [f"{axis}{number}" for number in range(1, count + 1) for axis in "xy"]
        self._label_columns = ["label"] if self._box_label or (label and not label.shape) else []
        if label is not None and label.shape:
            self._label_columns = _label_columns(label, {"file", *point_columns})
        corners = [] if self._boxes is None else _CORNERS
        self._columns = [*self._label_columns, *corners, *point_columns]
        named = self._box_label or (label is not None and label.dtype[1] in "iu" and not label.shape)
        self._classes = self._safe_classes() if named else ()

    def files(self, names: Sequence[str]) -> dict[str, Callable[[str], int]]:
        """Return the files that are needed, and what writes each of them under a path, and returns its bytes.

        names: of the images' files, in the order of the rows. It raises OSError; FormatError for a name that no file can hold.
        """
        found: dict[str, Callable[[str], int]] = {}
        if self._columns:
            found[LABELS_FILE] = partial(self._write, lines=self._lines(names))
        if any(name != name.strip() for name in self._classes):
            self.notes.append(
                f"{CLASSES_FILE} is not written, as some class names do not fit on lines; the order of the classes is lost."
            )
        elif self._classes:
            found[CLASSES_FILE] = partial(self._write, lines=None)
        return found

    def _write(self, path: str, lines: Iterator[list[str]] | None) -> int:
        """Write a CSV of lines, or the classes, one a line; returns the bytes."""
        with open(path, "x", encoding="utf-8", errors="surrogateescape", newline="") as file:
            try:
                if lines is None:
                    file.writelines(f"{name}\n" for name in self._classes)
                else:
                    csv.writer(file).writerows(lines)
            except UnicodeEncodeError as error:
                raise FormatError(
                    f"{self._pack.path}: {error.object[error.start : error.end]!r} stands in the name of a class or column;"
                    " no file can hold it. Nothing was written."
                ) from None
        return os.path.getsize(path)

    def _safe_classes(self) -> tuple[str, ...]:
        """Return class names that neither a terminal obeys nor a spreadsheet computes. Raises FormatError if two become equal."""
        classes = self._pack.header.classes or ()
        found = tuple(f"'{name}" if _is_formula(name) else name for name in map(safe_name, classes))
        if len(set(found)) < len(set(classes)):
            raise FormatError(
                f"{self._pack.path}: two of its class names differ only in control characters, which no file of names can hold."
                " Nothing was written."
            )
        if changed := sum(map(str.__ne__, found, classes)):
            self.notes.append(
                f"In {changed:,} of the class names _ stands for control characters and ends of lines, and ' before = + - @."
            )
        return found

    def _lines(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield the lines of labels.csv."""
        yield ["file", *self._columns]
        for start in range(0, len(self._rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            boxes = self._decoded(self._boxes, part)
            numbers = self._decoded(self._box_label, part)
            for i, name in enumerate(names[part]):
                # Cells are stripped of blanks when they are read, and a spreadsheet computes what begins as a formula.
                called = f"./{name}" if name[0].isspace() or _is_formula(name) else name
                points = [] if self._points is None else _texts(self._points[start + i])
                if boxes is None:
                    label = [] if self._label is None else self._label_cells(self._label[start + i])
                    yield [called, *label, *points]
                    continue
                own: Any = [None] * len(boxes[i]) if numbers is None else numbers[i]
                if len(own) != len(boxes[i]):
                    raise FormatError(
                        f"{self._pack.path}: row {self._rows[start + i]} has {len(boxes[i])} boxes and {len(own)} labels"
                        " of boxes; each box has one. Convert the images again."
                    )
                for box, number in zip(boxes[i], own, strict=True):
                    yield [
                        called,
                        *([] if number is None else self._label_cells(number)),
                        *_texts(box),
                        *points,
                    ]
                if not len(boxes[i]):
                    yield [called, *[""] * (len(self._label_columns) + 4), *points]

    def _label_cells(self, label: Any) -> list[str]:
        if self._classes and 0 <= label < len(self._classes):
            return [self._classes[label]]
        return _texts(np.atleast_1d(label))

    def _decoded(self, f: Field | None, part: slice) -> list[NDArray[Any]] | None:
        if f is None:
            return None
        rows = self._rows[part]
        return decode_ragged(
            self._pack, f, self._reader.read_ragged(f.name, consecutive(rows)), rows.tolist()
        )


def _label_columns(label: Field, taken: set[str]) -> list[str]:
    """Return the names of columns of several labels: the pack's where a CSV can hold them, else numbers."""
    (count,) = label.shape or ()
    given = label.about.get("columns")
    names = [str(name) for name in given] if isinstance(given, list) else []
    fits = len(names) == len(set(names)) == count and taken.isdisjoint(names)
    if fits and all(
        name and "," not in name and name == safe_name(name.strip()) and not _is_formula(name)
        for name in names
    ):
        return names
    return [f"label{number}" for number in range(1, count + 1)]


def _is_formula(text: str) -> bool:
    """Return True if a spreadsheet would compute a cell of that text, which is no number."""
    return text[:1] in tuple(_FORMULA) and re.fullmatch(r"[+-]?[\d.eE+-]+", text) is None


def _ragged(f: Field | None, dtype: str, row_shape: list[int]) -> Field | None:
    """Return the field if its rows are arrays of that kind, else None."""
    fits = (
        f is not None and f.ragged and (f.about.get("dtype"), f.about.get("row_shape")) == (dtype, row_shape)
    )
    return f if fits else None


def _texts(values: NDArray[Any]) -> list[str]:
    """Return numbers as the shortest texts that read back as they are; nothing for NaN."""
    if values.dtype.kind == "f":
        return ["" if np.isnan(value) else str(value) for value in values]
    return [str(int(value)) for value in values]
