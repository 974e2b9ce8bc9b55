"""What a CSV says of each image: labels, boxes, keypoints.

The file column is the first, or the one that is chosen. Without a choice of columns the CSV has two, file and label, and needs no
header (label_csv.py).

    chosen                                 fields, per image
    one label column                       label: int64 or float32 by the rules of label_values.py, classes where it holds names
    several label columns                  label: float32 [C], or uint8 [C] if all values are 0 or 1
    one label column, label_separator      label: uint8 [C], cells hold class names with that between them
    boxes (left, top, right, bottom)       boxes: ragged float32 [n, 4], a row of the CSV each; rows whose four cells are empty,
                                           and images without rows, have none
    boxes and one label column             boxes, box_label: ragged int64 [n]
    keypoints (x, y, x, y ...)             keypoints: float32 [K, 2], NaN where both cells are empty or the point is not seen

Coordinates are continuous pixels of the upright image, or shares of its width and height, and end up in the row's pixels, as
decode_resize.py says. Boxes are clipped to what is seen of the image, and dropped, with their labels, where nothing is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import ImageError, SourceError, UsageError
from packer.format.header import Field
from packer.inputs.file_names import notes_on_classes
from packer.inputs.label_csv import LabelTable
from packer.inputs.label_values import (
    check_label_as,
    finite_numbers,
    multi_hot,
    number_columns,
    number_labels,
)
from packer.pixels.coordinate_units import check_unit
from packer.pixels.decode_resize import ImagePlacement
from packer.sentence import Option

_SIZES = frozenset(("w", "width", "h", "height"))
_SEPARATORS = {"space": " ", "tab": "\t", "comma": ",", "semicolon": ";", "bar": "|"}
_UNIT = "Labels.boxes_unit"
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
        *,
        unit: str = "line",
        sizes: NDArray[np.int64] | None = None,
    ) -> None:
        """Sort them by image.

        xyxy: [R, 4] in the images' pixels; owners: their images; lines: of the file ``subject``, or other units of it.
        sizes: [images, 2], height and width that the images should have, 0 where that is not known.
        """
        self._unit, self._sizes = unit, sizes
        self.relative = False
        """True if coordinates are shares of the image's width and height."""
        order = np.argsort(owners, kind="stable")
        self._subject = os.path.basename(subject)  # reasons go into packs, and paths of the machine do not
        self._xyxy, self._lines = xyxy[order], lines[order]
        self.labels = None if labels is None else labels[order].astype("<i8", copy=False)
        """int64 [R], sorted by image, or None."""
        self._starts = np.searchsorted(owners[order], np.arange(images + 1))

    def place(self, index: int, geometry: ImagePlacement) -> dict[str, bytes]:
        """Move the boxes of image ``index``. Returns: field -> its row's bytes. Raises: ImageError."""
        own = slice(int(self._starts[index]), int(self._starts[index + 1]))
        xyxy = self._xyxy[own]
        height, width = geometry.source
        if (
            self._sizes is not None
            and self._sizes[index].all()
            and tuple(self._sizes[index]) != (height, width)
        ):
            said = f"{self._sizes[index][1]:,} x {self._sizes[index][0]:,}"
            raise ImageError(
                f"has {width:,} x {height:,} pixels, and {said} in {self._subject}; its boxes are of those."
            )
        if self.relative:
            xyxy = xyxy * (width, height, width, height)
        outside = (xyxy[:, 2:] <= 0).any(axis=1) | (xyxy[:, :2] >= (width, height)).any(axis=1)
        if outside.any():
            first = int(outside.argmax())
            corners = ",".join(f"{value:.10g}" for value in xyxy[first])
            raise ImageError(
                f"its box {corners} ({self._subject} {self._unit} {self._lines[own][first]}) lies "
                f"outside its {width:,} x {height:,} pixels."
            )
        moved, keep = geometry.boxes(xyxy)
        placed = {"boxes": moved[keep].astype("<f4", copy=False).tobytes()}
        if self.labels is not None:
            placed["box_label"] = self.labels[own][keep].tobytes()
        return placed

    def owners(self) -> NDArray[np.int64]:
        """Return the image of each box, int64 [R], in the order of ``labels``."""
        return np.repeat(np.arange(len(self._starts) - 1), np.diff(self._starts))

    def relabelled(self, labels: NDArray[np.int64]) -> Boxes:
        """Return the same boxes with other labels, int64 [R] in the order of ``labels``."""
        boxes = copy(self)
        boxes.labels = labels
        return boxes

    @property
    def coordinates(self) -> NDArray[np.float64]:
        """Left, top, right and bottom of each box as they were read, [R, 4]."""
        return self._xyxy

    def arrays(self) -> list[NDArray[Any]]:
        """Return everything that decides the rows."""
        return [self._xyxy, self._starts, *([] if self.labels is None else [self.labels])]


class ImageTargets:
    """Labels, boxes and keypoints of each image; made by `read_targets`, or of what folders say."""

    def __init__(
        self,
        label: NDArray[Any] | None = None,
        classes: list[str] | None = None,
        *,
        about: dict[str, Any] | None = None,
        boxes: Boxes | None = None,
        keypoints: NDArray[np.float64] | None = None,
        refused: Mapping[int, str] | None = None,
    ) -> None:
        """label: [N, ...], described by ``about``; keypoints: [N, K, 2] in the images' pixels; refused: see the attribute."""
        self.refused: dict[int, str] = dict(refused or {})
        """Image -> why it cannot be packed, in words that follow its name; what is stored of it means nothing."""
        self.skipped: tuple[dict[str, str], ...] = ()
        """Rows of the CSV that are about no image: ({"key", "reason"}, ...)."""
        self.notes: list[str] = []
        """What the user may not expect, a sentence each."""
        self.classes = classes
        """Names that labels, box labels or columns of a multi-hot label number; None where there are none."""
        self.fixed: dict[str, NDArray[Any]] = {}
        """Fields that do not depend on where the picture lies: name -> [N, *shape], little-endian."""
        self._boxes, self._keypoints = boxes, keypoints
        self._relative = False  # as of Boxes
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

    @property
    def needs_geometry(self) -> bool:
        """True if `place` gives anything."""
        return self._boxes is not None or self._keypoints is not None

    @property
    def labelled(self) -> bool:
        """True if images, or their boxes, have labels."""
        return "label" in self.fixed or (self._boxes is not None and self._boxes.labels is not None)

    @property
    def strata(self) -> NDArray[np.int64] | None:
        """int64 [N], the class of each image, where each has exactly one."""
        label = self.fixed.get("label")
        if label is None or label.dtype != np.int64 or label.ndim != 1:
            return None
        if self.refused:  # a stratum of their own: what they have for a label says nothing
            label = label.copy()
            label[list(self.refused)] = np.iinfo(np.int64).min
        return label

    def place(self, index: int, geometry: ImagePlacement) -> dict[str, NDArray[np.float32] | bytes]:
        """Move what belongs to image ``index`` with its picture.

        Returns: field -> float32 [K, 2], or the bytes of a ragged field's row; {} if nothing depends on the geometry.
        Raises: ImageError for a box wholly outside the picture, without the image's name.
        """
        placed: dict[str, NDArray[np.float32] | bytes] = {}
        if self._boxes is not None:
            placed.update(self._boxes.place(index, geometry))
        if self._keypoints is not None:
            points = self._keypoints[index]
            height, width = geometry.source
            placed["keypoints"] = geometry.keypoints(points * (width, height) if self._relative else points)
        return placed

    def measured_in(self, unit: str | None, subject: str) -> None:
        """Take boxes and keypoints for pixels, or for shares of the image's width and height ("relative").

        unit: None for pixels, unless the coordinates look like shares. subject: what to call the images in messages.
        Raises: UsageError.
        """
        if unit is not None and not self.needs_geometry:
            raise UsageError(
                f"{Option(_UNIT)}: is about boxes and keypoints, and there are none. Pass "
                f"{Option('Labels.boxes')} or {Option('Labels.keypoints')}, or leave it out."
            )
        if self._boxes is not None:
            check_unit(subject, "boxes", [self._boxes.coordinates], unit, _UNIT)
            self._boxes.relative = unit == "relative"
        if self._keypoints is not None:
            check_unit(subject, "keypoints", [self._keypoints], unit, _UNIT)
        self._relative = unit == "relative"

    def renumbered(self, classes: Sequence[str], subject: str, *, skip: bool = False) -> ImageTargets:
        """Number the labels by other classes, such as those of a pack that is to grow.

        classes: that hold all of these; whole numbers stand for classes called so. subject: what to call the images in messages.
        skip: refuse the images of other classes, instead of raising.
        Raises: UsageError for a class that is not among them, and for labels that are no classes.
        """
        boxes = self._boxes
        numbers = self.fixed.get("label") if boxes is None else boxes.labels
        if numbers is None:
            return self
        own, values = self.classes, numbers
        if own is None and numbers.dtype == np.int64:
            found, values = np.unique(numbers, return_inverse=True)
            own = [str(number) for number in found]
        allowed = f"{units.count(len(classes), 'class')}, {_shown(classes)}, are allowed"
        if own is None:
            raise UsageError(
                f"{subject}: holds labels that are no classes; {allowed}. Leave the classes out."
            )
        made, place = copy(self), {name: number for number, name in enumerate(classes)}
        places = np.array([place.get(name, -1) for name in own], np.int64)
        made.classes, made.fixed, made.refused = list(classes), dict(self.fixed), dict(self.refused)
        images, found = np.nonzero(values) if values.ndim > 1 else (np.arange(len(values)), values)
        if boxes is not None:
            images = boxes.owners()
            made._boxes = boxes.relabelled(np.maximum(places, 0)[values])
        elif values.ndim == 1:
            made.fixed["label"] = np.maximum(places, 0)[values]
        else:
            held = places >= 0
            made.fixed["label"] = np.zeros((len(values), len(classes)), values.dtype)
            made.fixed["label"][:, places[held]] = values[:, held]
            about = {"columns": list(classes)}
            field = Field("label", values.dtype.str, (len(classes),), about)
            made.fields = (field, *self.fields[1:])
        strange = places[found] < 0
        for image, number in zip(images[strange].tolist(), found[strange].tolist(), strict=True):
            if image in made.refused:
                continue
            if not skip:
                raise UsageError(
                    f"{subject}: holds the class {own[number]}; {allowed}. Leave its images out, add it, or pass "
                    f"{Option('on_error', 'skip')}."
                )
            made.refused[image] = (
                f"its class is {own[number]}, which is not among the {len(classes):,} given."
            )
        return made

    def fingerprint(self) -> bytes:
        """Return sixteen bytes that differ if anything that is stored does."""
        arrays = list(self.fixed.values())
        arrays += [] if self._boxes is None else self._boxes.arrays()
        arrays += [] if self._keypoints is None else [self._keypoints]
        said = repr((self.fields, self.classes)) + (
            repr(sorted(self.refused.items())) if self.refused else ""
        )
        state = blake2b(said.encode("utf-8", "surrogateescape"), digest_size=16)
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
    label_as: str | None = None,
    label_separator: str | None = None,
    label_file_column: str | None = None,
    skip: bool = False,
) -> ImageTargets:
    """Read what a CSV says of each image, as the module's table tells.

    path: the CSV, UTF-8 with or without a byte order mark; other bytes stand for themselves, as in file names.
    keys: paths of the images. A row names one by its path, or by its stem, where only one image has that.
    label, boxes, keypoints: names of columns in the first row; None for all three: the second of two columns is the label.
    label_as: as label_values.py tells, default "auto"; label_separator: what stands between the names of a cell (also "space", "tab",
        "comma", "semicolon" or "bar"); label_file_column: the column that names files.
    skip: refuse images whose labels cannot be used, and leave rows out that are about no image, instead of raising.
    Raises: UsageError for a choice of columns that makes no sense; SourceError when a row cannot be understood or names no
        image, when two rows of an image disagree, and when an image has no row (unless only boxes are read).
    """
    labels, corners, points = _split("column", label), _split("boxes", boxes), _split("keypoints", keypoints)
    label_as = label_as or "auto"
    check_label_as(label_as)
    _check_choice(labels, corners, points, label_as, label_separator)
    table = LabelTable(path, keys, (*labels, *corners, *points), file_column=label_file_column, skip=skip)
    boxes_of, values, classes, about = None, None, None, None
    if corners:
        boxes_of, classes = _boxes(table, labels, corners, len(keys), label_as)
    moved = _keypoints(table, points) if points else None
    separator = _SEPARATORS.get(label_separator or "", label_separator)
    if not corners and (labels or not points):
        values, classes, about = _labels(table, labels, separator, label_as)
    targets = ImageTargets(
        values, classes, about=about, boxes=boxes_of, keypoints=moved, refused=table.refused
    )
    targets.skipped = tuple(table.skipped)
    targets.notes += table.notes
    if separator is not None:
        targets.notes.append(
            f"Cells hold class names: {len(classes or ()):,} classes, {_shown(classes or ())}."
        )
    elif not corners:
        targets.notes += notes_on_classes(classes or ())
    return targets


def _shown(classes: Sequence[str]) -> str:
    return ", ".join(classes[:3]) + (" ..." if len(classes) > 3 else "")


def _split(name: str, columns: Columns | None) -> list[str]:
    if columns is None:
        return []
    chosen = [column.strip() for column in (columns.split(",") if isinstance(columns, str) else columns)]
    if not chosen or not all(chosen):
        raise UsageError(
            f"{Option(f'Labels.{name}')} {columns!r}: holds an empty name; names of columns are "
            f"needed. Pass for example {Option(f'Labels.{name}', 'a,b')}."
        )
    return chosen


def _check_choice(
    labels: list[str], corners: list[str], points: list[str], label_as: str, separator: str | None
) -> None:
    """Refuse columns, and ways to take labels, that do not go together. Raises: UsageError."""
    chosen = [*labels, *corners, *points]
    twice = next((name for name in chosen if chosen.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"column {twice}: chosen twice; each column is one thing. Pass it once.")
    if corners and (len(corners) != 4 or _SIZES.issuperset(name.lower() for name in corners[2:])):
        raise UsageError(
            f"boxes {','.join(corners)}: four columns are needed: left, top, right, bottom, no width and height. "
            "Pass for example xmin,ymin,xmax,ymax."
        )
    if len(points) % 2:
        raise UsageError(
            f"keypoints {','.join(points)}: {len(points)} columns; an x and a y for each point are needed. Pass both."
        )
    if len(labels) > 1 and (corners or separator is not None):
        raise UsageError(
            f"label {','.join(labels)}: {len(labels)} columns; boxes, and cells of several names, have one. Pass one."
        )
    if separator == "" or (corners and separator is not None):
        raise UsageError(
            f"{Option('Labels.separator', separator)}: stands between names in one column of labels, and of boxes each has "
            f"one label. Pass for example {Option('Labels.separator', 'space')}, or leave it out."
        )
    none = (corners or points) and not labels
    if label_as != "auto" and (separator is not None or none or (corners and label_as != "classes")):
        raise UsageError(
            f"{Option('Labels.as_', label_as)}: is about labels that are numbers, and these are not. Leave it out."
        )


def _labels(
    table: LabelTable, names: list[str], separator: str | None, label_as: str
) -> tuple[NDArray[Any], list[str] | None, dict[str, Any]]:
    """Return the label of each image, the classes, and what there is to say about the field."""
    columns = [table.columns[name] for name in names] or list(table.columns.values())
    rows, checked = table.one_an_image(columns, "label"), table.checked()
    called = names[0] if names else "the label"
    if len(columns) > 1:
        values = number_columns(checked, columns, names, label_as=label_as)
        return values[rows], None, {"columns": names}
    if separator is not None:
        hot, numbered = multi_hot(table.path, columns[0], called, separator)
        return hot[rows], numbered, {"columns": numbered}
    values, found = number_labels(checked, columns[0], column=called, label_as=label_as)
    return values[rows], found, {}


def _boxes(
    table: LabelTable,
    label: list[str],
    corners: list[str],
    images: int,
    label_as: str,
) -> tuple[Boxes, list[str] | None]:
    """Return the boxes, and the classes that their labels number."""
    texts = [table.columns[name] for name in corners]
    there = np.flatnonzero([any(cells) for cells in zip(*texts, strict=True)])
    if not len(there):
        raise SourceError(f"{table.path}: holds no boxes; some are needed. Check its columns.")
    rows = table.checked(there)
    sides = [
        finite_numbers(rows, [t[row] for row in there.tolist()], n)
        for t, n in zip(texts, corners, strict=True)
    ]
    xyxy = np.stack(sides, axis=1)
    for low, high in ((0, 2), (1, 3)):
        for row in np.flatnonzero(xyxy[:, low] >= xyxy[:, high]).tolist():
            found = f"{corners[high]} is {xyxy[row, high]:.10g}, and {corners[low]} {xyxy[row, low]:.10g}"
            rows.refuse(row, found, "boxes have a width and a height. Correct or remove the row.")
    labels, classes = None, None
    if label:
        cells = table.columns[label[0]]
        own = [cells[row] for row in there.tolist()]
        labels, classes = number_labels(rows, own, column=label[0], regression=False, label_as=label_as)
    return Boxes(table.path, xyxy, table.images[there], table.lines[there], labels, images), classes


def _keypoints(table: LabelTable, names: list[str]) -> NDArray[np.float64]:
    """Return float64 [N, K, 2], NaN where both cells are empty."""
    columns = [table.columns[name] for name in names]
    rows, checked = table.one_an_image(columns, "keypoints"), table.checked()
    points = np.empty((len(rows), len(names) // 2, 2))
    for number, (column, name) in enumerate(zip(columns, names, strict=True)):
        values = finite_numbers(checked, column, name, missing=True)
        points[:, number // 2, number % 2] = values[rows]
    for image, point in np.argwhere(np.isnan(points[..., 0]) != np.isnan(points[..., 1])).tolist():
        given, empty = names[2 * point : 2 * point + 2][:: 1 if np.isnan(points[image, point, 1]) else -1]
        found = f"{empty} is empty, and {given} is not"
        checked.refuse(int(rows[image]), found, "a point has both or neither. Correct it.")
    return points
