"""The labels.csv and classes.txt of an export: labels, boxes and keypoints in the form that packer convert reads.

labels.csv has one row an image, or one a box: ``file``, then the columns of the label, the boxes and the keypoints, whichever the pack
has. Coordinates are pixels of the pack's rows, at whose size the images are written. classes.txt lists the classes, one a line.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.orders.runs import consecutive
from packer.path_text import safe_name
from packer.read.row_reader import RowReader, decode_ragged

LABELS_FILE, CLASSES_FILE = "labels.csv", "classes.txt"
_CORNERS = ["xmin", "ymin", "xmax", "ymax"]
_AT_ONCE = 4096
_FORMULA = "=+-@"
"""Characters that begin a formula, for a spreadsheet."""


class TargetFields(NamedTuple):
    """The fields that labels.csv can hold; None for those that the pack lacks, or has in another form."""

    label: Field | None
    boxes: Field | None
    box_label: Field | None
    keypoints: Field | None

    @classmethod
    def of(cls, pack: Pack) -> TargetFields:
        """Find the fields of a pack."""
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
        """Names of the fields found."""
        return [f.name for f in self if f is not None]


class LabelFiles:
    """The labels.csv and classes.txt of some rows of a pack."""

    def __init__(self, pack: Pack, reader: RowReader, fields: TargetFields, rows: NDArray[np.int64]) -> None:
        """rows: int64 [N], rising; reader: of the pack's fields."""
        self._pack, self._reader, self._fields, self._rows = pack, reader, fields, rows
        self._label = None if fields.label is None else reader.array(fields.label, consecutive(rows))
        points = None if fields.keypoints is None else reader.array(fields.keypoints, consecutive(rows))
        self._points = None if points is None else points.reshape(len(rows), -1)
        count = 0 if self._points is None else self._points.shape[1] // 2
        self._point_columns = [f"{axis}{number}" for number in range(1, count + 1) for axis in "xy"]
        self._corners = [] if fields.boxes is None else _CORNERS
        self._label_columns = self._name_label_columns()
        self._classes = None if pack.header.classes is None else self._safe_classes(pack.header.classes)
        used: set[str] | None = None  # unknown
        if self._classes is not None and fields.box_label is None:
            used = self._used_classes(self._classes)
            self._classes = None if used is None else self._classes
        self._listed = self._classes is not None and (used is None or list(self._classes) != sorted(used))

    def write_labels(self, path: str, names: Sequence[str]) -> int:
        """Write a row, or several, for each image, and return the bytes; names: of the files, in the order of the rows.

        Raises OSError; FormatError for a class name that no file can hold.
        """
        with open(path, "x", encoding="utf-8", errors="surrogateescape", newline="") as file:
            writer = csv.writer(file)
            try:
                writer.writerow(["file", *self._label_columns, *self._corners, *self._point_columns])
                for name, cells in zip(names, self._cells(), strict=True):
                    # Cells are stripped of blanks when they are read, and a spreadsheet computes what begins as a formula.
                    called = f"./{name}" if name[0].isspace() or _is_formula(name) else name
                    writer.writerows([called, *row] for row in cells)
            except UnicodeEncodeError as error:
                raise self._unwritable(error) from None
        return os.path.getsize(path)

    def write_classes(self, path: str) -> int:
        """Write the classes, one a line, and return the bytes. Raises OSError, FormatError."""
        try:
            with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
                file.writelines(f"{name}\n" for name in self._classes or ())
        except UnicodeEncodeError as error:
            raise self._unwritable(error) from None
        return os.path.getsize(path)

    @property
    def classes_listed(self) -> bool:
        """True if classes.txt is needed: the classes are not the sorted names of the rows' labels, and fit on lines."""
        return self._listed and all(
            name == name.strip() and not set(name) & {"\n", "\r"} for name in self._classes or ()
        )

    def told_by_folders(self, folders: Sequence[str]) -> bool:
        """True if labels.csv would say no more than the class folders of the files, one each."""
        label, classes = self._label, self._classes
        if self._fields.names != ["label"] or label is None or classes is None or label.dtype != np.int64:
            return False
        return folders == [classes[number] for number in label]

    def notes(self) -> list[str]:
        """Return a sentence for each kind of label that the files do not hold."""
        notes = []
        if self._listed and not self.classes_listed:
            notes.append(
                f"{CLASSES_FILE} is not written, as some class names do not fit on lines; the order of the classes is lost."
            )
        changed = sum(map(str.__ne__, self._classes or (), self._pack.header.classes or ()))
        if changed:
            notes.append(
                f"In {changed:,} of the class names _ stands for control characters and ends of lines, and ' before = + - @."
            )
        if self._pack.header.classes is not None and self._classes is None:
            notes.append(f"The names of the classes are not written; {LABELS_FILE} holds numbers.")
        return notes

    def _safe_classes(self, classes: Sequence[str]) -> tuple[str, ...]:
        """Return class names that neither a terminal obeys nor a spreadsheet computes. Raises FormatError if two become equal."""
        found = tuple(f"'{name}" if _is_formula(name) else name for name in map(safe_name, classes))
        if len(set(found)) < len(set(classes)):
            raise FormatError(
                f"{self._pack.path}: two of its class names differ only in control characters, which no file of names can hold."
                " Nothing was written."
            )
        return found

    def _used_classes(self, classes: Sequence[str]) -> set[str] | None:
        """Return the classes of the rows' labels, or None where labels are not numbers of classes."""
        label = self._label
        if label is None or label.ndim > 1 or label.dtype.kind not in "iu":
            return None
        numbers = np.unique(label).tolist()
        return {classes[n] for n in numbers} if numbers[0] >= 0 and numbers[-1] < len(classes) else None

    def _unwritable(self, error: UnicodeEncodeError) -> FormatError:
        return FormatError(
            f"{self._pack.path}: {error.object[error.start : error.end]!r} stands in the name of a class or column;"
            " no file can hold it. Nothing was written."
        )

    def _name_label_columns(self) -> list[str]:
        if self._fields.box_label is not None or (self._label is not None and self._label.ndim == 1):
            return ["label"]
        if self._label is None:
            return []
        count = self._label.shape[1]
        assert self._fields.label is not None
        given = self._fields.label.about.get("columns")
        taken = {"file", *self._point_columns}
        fits = (
            isinstance(given, list)
            and len(given) == len(set(map(str, given))) == count
            and all(
                isinstance(name, str) and name and name == name.strip() and "," not in name for name in given
            )
            and taken.isdisjoint(given)
            and not any(name != safe_name(name) or _is_formula(name) for name in given)
        )
        return given if fits else [f"label{number}" for number in range(1, count + 1)]  # type: ignore[return-value]

    def _cells(self) -> Iterator[list[list[str]]]:
        """Yield, for each image, the cells of its rows without the name."""
        for start in range(0, len(self._rows), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            boxes = self._ragged(self._fields.boxes, part)
            numbers = self._ragged(self._fields.box_label, part)
            for i in range(len(self._rows[part])):
                points = [] if self._points is None else _texts(self._points[start + i])
                if boxes is None:
                    label = [] if self._label is None else self._label_cells(self._label[start + i])
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
        if self._classes is not None and 0 <= label < len(self._classes):
            return [self._classes[label]]
        return _texts(np.atleast_1d(label))

    def _ragged(self, f: Field | None, part: slice) -> list[NDArray[Any]] | None:
        if f is None:
            return None
        rows = self._rows[part]
        return decode_ragged(
            self._pack, f, self._reader.read_ragged(f.name, consecutive(rows)), rows.tolist()
        )


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
