"""What a CSV says of each image: labels, boxes, keypoints.

The file column is the first that has a name. Without a choice of columns the CSV has two, file and label, and needs no header.

    chosen                                 fields, per image
    one label column                       label: int64 or float32 by the rules of labels.py, classes where it holds names
    several label columns                  label: float32 [C], or uint8 [C] if all values are 0 or 1
    one label column, multi_label          label: uint8 [C], cells hold class names parted by "|" or ";"
    boxes (left, top, right, bottom)       boxes: ragged float32 [n, 4], a row of the CSV each; rows whose four cells are empty,
                                           and images without rows, have none
    boxes and one label column             boxes, box_label: ragged int64 [n]
    keypoints (x, y, x, y ...)             keypoints: float32 [K, 2], NaN where both cells are empty or the point is not seen

Coordinates are continuous pixels of the upright image, as geometry.py says, and end up in the row's. Boxes are clipped to what
is seen of the image, and dropped, with their labels, where nothing is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError, SourceError, UsageError
from packer.format.header import Field
from packer.inputs.labels import LabelTable, finite_numbers, multi_hot, number_columns, number_labels
from packer.pixels.geometry import Geometry

_SIZES = frozenset(("w", "width", "h", "height"))
Columns = str | Sequence[str]
"""Names of columns: a sequence, or one text in which they are parted by commas."""


class Boxes:
    """The boxes of all images in one array, so that ten million take 480 MB."""

    def __init__(
        self,
        subject: str,
        xyxy: NDArray[np.float64],
        owners: NDArray[np.int64],
        lines: NDArray[np.int64],
        labels: NDArray[np.int64] | None,
        images: int,
    ) -> None:
        """Sort them by image. xyxy: [R, 4] in the images' pixels; owners: their images; lines: of the file ``subject``."""
        order = np.argsort(owners, kind="stable")
        self._subject = os.path.basename(subject)  # reasons go into packs, and paths of the machine do not
        self._xyxy, self._lines = xyxy[order], lines[order]
        self.labels = None if labels is None else labels[order].astype("<i8", copy=False)
        """int64 [R], sorted by image, or None."""
        self._starts = np.searchsorted(owners[order], np.arange(images + 1))

    def place(self, index: int, geometry: Geometry) -> dict[str, bytes]:
        """Move the boxes of image ``index``. Returns: field -> its row's bytes. Raises: ImageError."""
        own = slice(int(self._starts[index]), int(self._starts[index + 1]))
        xyxy = self._xyxy[own]
        height, width = geometry.source
        outside = (xyxy[:, 2:] <= 0).any(axis=1) | (xyxy[:, :2] >= (width, height)).any(axis=1)
        if outside.any():
            first = int(outside.argmax())
            corners = ",".join(f"{value:.10g}" for value in xyxy[first])
            raise ImageError(
                f"its box {corners} ({self._subject} line {self._lines[own][first]}) lies outside its {width:,} x {height:,} pixels."
            )
        moved, keep = geometry.boxes(xyxy)
        placed = {"boxes": moved[keep].astype("<f4", copy=False).tobytes()}
        if self.labels is not None:
            placed["box_label"] = self.labels[own][keep].tobytes()
        return placed

    def relabelled(self, labels: NDArray[np.int64]) -> Boxes:
        """The same boxes with other labels, int64 [R] in the order of ``labels``."""
        boxes = copy(self)
        boxes.labels = labels
        return boxes

    def arrays(self) -> list[NDArray[Any]]:
        """Everything that decides the rows."""
        return [self._xyxy, self._starts, *([] if self.labels is None else [self.labels])]


class Targets:
    """What is known of each image beside its pixels; made by `read_targets`, or from labels by `of_labels`."""

    def __init__(
        self,
        label: NDArray[Any] | None = None,
        classes: list[str] | None = None,
        *,
        about: dict[str, Any] | None = None,
        boxes: Boxes | None = None,
        keypoints: NDArray[np.float64] | None = None,
    ) -> None:
        """label: [N, ...], described by ``about``; keypoints: [N, K, 2] in the images' pixels."""
        self.classes = classes
        """Names that labels, box labels or columns of a multi-hot label number; None where there are none."""
        self.fixed: dict[str, NDArray[Any]] = {}
        """Fields that do not depend on where the picture lies: name -> [N, *shape], little-endian."""
        self._boxes, self._keypoints = boxes, keypoints
        fields = []
        if label is not None:
            self.fixed["label"] = label.astype(label.dtype.newbyteorder("<"), copy=False)
            fields.append(Field("label", self.fixed["label"].dtype.str, label.shape[1:], about or {}))
        if boxes is not None:
            fields.append(Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4], "format": "xyxy"}))
            if boxes.labels is not None:
                fields.append(Field("box_label", "|u1", None, {"dtype": "<i8", "row_shape": []}))
        if keypoints is not None:
            fields.append(Field("keypoints", "<f4", keypoints.shape[1:], {"format": "xy", "unseen": "nan"}))
        self.fields: tuple[Field, ...] = tuple(fields)
        """As they are stored, in order."""

    @classmethod
    def of_labels(cls, labels: NDArray[Any] | None, classes: list[str] | None) -> Targets:
        """What folders or a list say: labels [N] and the classes they number, or None for either."""
        return cls(labels, classes)

    @property
    def needs_geometry(self) -> bool:
        """Whether `place` gives anything."""
        return self._boxes is not None or self._keypoints is not None

    @property
    def strata(self) -> NDArray[np.int64] | None:
        """int64 [N], the class of each image, where each has exactly one."""
        label = self.fixed.get("label")
        return label if label is not None and label.dtype == np.int64 and label.ndim == 1 else None

    def place(self, index: int, geometry: Geometry) -> dict[str, NDArray[np.float32] | bytes]:
        """Move what belongs to image ``index`` with its picture.

        Returns: field -> float32 [K, 2], or the bytes of a ragged field's row; {} if nothing depends on the geometry.
        Raises: ImageError for a box wholly outside the picture, without the image's name.
        """
        placed: dict[str, NDArray[np.float32] | bytes] = {}
        if self._boxes is not None:
            placed.update(self._boxes.place(index, geometry))
        if self._keypoints is not None:
            placed["keypoints"] = geometry.keypoints(self._keypoints[index])
        return placed

    def renumbered(self, classes: Sequence[str], subject: str) -> Targets:
        """Number the labels by other classes, such as those of a pack that is to grow.

        classes: that hold all of these; whole numbers stand for classes called so. subject: what to call the images in messages.
        Raises: UsageError for a class that is not among them, and for labels that are no classes.
        """
        label, boxes = self.fixed.get("label"), self._boxes
        numbers = label if boxes is None else boxes.labels
        if numbers is None:
            return self
        own, values = self.classes, numbers
        if own is None and numbers.dtype == np.int64:
            found, values = np.unique(numbers, return_inverse=True)
            own = [str(number) for number in found]
        other = None if own is None else next((name for name in own if name not in classes), None)
        if own is None or other is not None:
            found_ones = f"the class {other}" if own is not None else "labels that are no classes"
            raise UsageError(
                f"{subject}: holds {found_ones}; {len(classes):,} classes, {_shown(classes)}, are allowed. Leave it out."
            )
        place = {name: number for number, name in enumerate(classes)}
        places = np.array([place[name] for name in own], np.int64)
        if boxes is not None:
            return Targets(
                None, list(classes), boxes=boxes.relabelled(places[values]), keypoints=self._keypoints
            )
        if values.ndim == 1:
            return Targets(places[values], list(classes), keypoints=self._keypoints)
        hot = np.zeros((len(values), len(classes)), values.dtype)
        hot[:, places] = values
        return Targets(hot, list(classes), about={"columns": list(classes)}, keypoints=self._keypoints)

    def fingerprint(self) -> bytes:
        """Sixteen bytes that differ if anything that is stored does."""
        arrays = list(self.fixed.values())
        arrays += [] if self._boxes is None else self._boxes.arrays()
        arrays += [] if self._keypoints is None else [self._keypoints]
        state = blake2b(repr((self.fields, self.classes)).encode(), digest_size=16)
        for values in arrays:
            state.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        return state.digest()


def read_targets(
    path: str,
    keys: list[str],
    *,
    label: Columns | None = None,
    boxes: Columns | None = None,
    keypoints: Columns | None = None,
    multi_label: bool = False,
) -> Targets:
    """Read what a CSV says of each image, as the module's table tells.

    path: the CSV, UTF-8 with or without a byte order mark; other bytes stand for themselves, as in file names.
    keys: paths of the images. A row names one by its path, or by its name without folder and extension where only one image
        has it.
    label, boxes, keypoints: names of columns in the first row; None for all three: the second of two columns is the label.
    Raises: UsageError for a choice of columns that makes no sense; SourceError when a row cannot be understood or names no
        image, when two rows of an image disagree, and when an image has no row (unless only boxes are read).
    """
    labels, corners, points = _split("label", label), _split("boxes", boxes), _split("keypoints", keypoints)
    _check_choice(labels, corners, points, multi_label)
    table = LabelTable(path, keys, (*labels, *corners, *points))
    found = None if not corners else _boxes(table, labels, corners, len(keys))
    moved = None if not points else _keypoints(table, points)
    values: NDArray[Any] | None = None
    classes: list[str] | None = None
    about: dict[str, Any] = {}
    if found is not None:
        boxes_of, classes = found
        return Targets(None, classes, boxes=boxes_of, keypoints=moved)
    if labels or not points:
        values, classes, about = _labels(table, labels, multi_label)
    return Targets(values, classes, about=about, keypoints=moved)


def _shown(classes: Sequence[str]) -> str:
    return ", ".join(classes[:3]) + (" ..." if len(classes) > 3 else "")


def _split(name: str, columns: Columns | None) -> list[str]:
    if columns is None:
        return []
    chosen = [column.strip() for column in (columns.split(",") if isinstance(columns, str) else columns)]
    if not chosen or not all(chosen):
        raise UsageError(
            f"{name} {columns!r}: holds an empty name; names of columns are needed. Pass for example {name}=a,b."
        )
    return chosen


def _check_choice(labels: list[str], corners: list[str], points: list[str], multi_label: bool) -> None:
    chosen = [*labels, *corners, *points]
    twice = next((name for name in chosen if chosen.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"column {twice}: chosen twice; each column is one thing. Pass it once.")
    if corners and len(corners) != 4:
        raise UsageError(
            f"boxes {','.join(corners)}: {len(corners)} columns; four are needed: left, top, right, bottom. "
            "Pass for example xmin,ymin,xmax,ymax."
        )
    if corners and _SIZES.issuperset(name.lower() for name in corners[2:]):
        raise UsageError(
            f"boxes {','.join(corners)}: ends in a width and a height; corners are needed: left, top, right, bottom. "
            "Add columns that hold right and bottom."
        )
    if len(points) % 2:
        raise UsageError(
            f"keypoints {','.join(points)}: {len(points)} columns; an x and a y for each point are needed. Pass both."
        )
    if corners and len(labels) > 1:
        raise UsageError(
            f"label {','.join(labels)}: {len(labels)} columns; boxes have one label each. Pass one."
        )
    if multi_label and (len(labels) > 1 or corners):
        raise UsageError(
            "multi_label: goes with one label column and no boxes, as its cells hold several names. Drop one."
        )


def _labels(
    table: LabelTable, names: list[str], multi_label: bool
) -> tuple[NDArray[Any], list[str] | None, dict[str, Any]]:
    """The label of each image, the classes, and what there is to say about the field."""
    columns = [table.columns[name] for name in names] or list(table.columns.values())
    rows = table.one_an_image(columns, "label")
    if len(columns) > 1:
        return number_columns(table.path, columns, table.lines, names)[rows], None, {"columns": names}
    called = names[0] if names else "the label"
    if multi_label:
        hot, classes = multi_hot(table.path, columns[0], table.lines, called)
        return hot[rows], classes, {"columns": classes}
    values, numbered = number_labels(table.path, columns[0], table.lines, column=called)
    return values[rows], numbered, {}


def _boxes(
    table: LabelTable, label: list[str], corners: list[str], images: int
) -> tuple[Boxes, list[str] | None]:
    """The boxes, and the classes that their labels number."""
    texts = [table.columns[name] for name in corners]
    there = np.flatnonzero(np.any([text.filled() for text in texts], axis=0))
    if not len(there):
        raise SourceError(f"{table.path}: holds no boxes; some are needed. Check its columns.")
    lines = table.lines[there]
    sides = [finite_numbers(table.path, t.only(there), lines, n) for t, n in zip(texts, corners, strict=True)]
    xyxy = np.stack(sides, axis=1)
    for low, high in ((0, 2), (1, 3)):
        wrong = xyxy[:, low] >= xyxy[:, high]
        if wrong.any():
            row = int(wrong.argmax())
            raise SourceError(
                f"{table.path} line {lines[row]}: {corners[high]} is {xyxy[row, high]:.10g}, and {corners[low]} "
                f"{xyxy[row, low]:.10g}; boxes have a width and a height. Correct or remove the row."
            )
    labels, classes = None, None
    if label:
        own = table.columns[label[0]].only(there)
        labels, classes = number_labels(table.path, own, lines, column=label[0], regression=False)
    return Boxes(table.path, xyxy, table.images[there], lines, labels, images), classes


def _keypoints(table: LabelTable, names: list[str]) -> NDArray[np.float64]:
    """float64 [N, K, 2], NaN where both cells are empty."""
    columns = [table.columns[name] for name in names]
    rows = table.one_an_image(columns, "keypoints")
    points = np.empty((len(rows), len(names) // 2, 2))
    for number, (column, name) in enumerate(zip(columns, names, strict=True)):
        values = finite_numbers(table.path, column, table.lines, name, missing=True)
        points[:, number // 2, number % 2] = values[rows]
    half = np.argwhere(np.isnan(points[..., 0]) != np.isnan(points[..., 1]))
    if len(half):
        image, point = map(int, half[0])
        given, empty = names[2 * point : 2 * point + 2][:: 1 if np.isnan(points[image, point, 1]) else -1]
        raise SourceError(
            f"{table.path} line {table.lines[rows[image]]}: {empty} is empty, and {given} is not; a point has both or neither. "
            "Correct it."
        )
    return points
