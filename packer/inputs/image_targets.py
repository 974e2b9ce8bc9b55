"""Targets of images, read from a CSV: labels, boxes, keypoints.

The first column names the files, unless `file_column` chooses another. Without chosen columns the CSV has two
columns, file and label, and needs no header (label_csv.py).

    chosen columns                      fields, per image
    a label column                      label: int64 or float32, see label_values.py; names become classes
    several label columns               label: float32 [C], or uint8 [C] if all values are 0 or 1
    a label column, label_separator     label: uint8 [C]; each cell holds class names with this separator
    boxes (left, top, right, bottom)    boxes: ragged float32 [n, 4], one per CSV row; a row with four empty
                                        cells adds no box, and neither does an image without rows
    boxes and a label column            boxes, box_label: ragged int64 [n]
    keypoints (x, y, x, y ...)          keypoints: float32 [K, 2]; NaN for empty cells and invisible points

Input coordinates are continuous pixels of the upright image, or fractions of its width and height; stored
coordinates are pixels of the row (decode_resize.py). Boxes are clipped to the visible part of the image;
boxes outside it are dropped with their labels.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import ImageError, SourceError, UsageError
from packer.format.header import Field
from packer.inputs.file_names import UNLABELED
from packer.inputs.findings import Findings
from packer.inputs.label_csv import LabelTable
from packer.inputs.label_options import Labels
from packer.inputs.label_values import finite_numbers, multi_hot, number_columns, number_labels
from packer.pixels.coordinate_units import check_unit
from packer.pixels.decode_resize import ImagePlacement
from packer.sentence import Option

_SEPARATORS = {"space": " ", "tab": "\t", "comma": ",", "semicolon": ";", "bar": "|"}
_UNIT = "Labels.boxes_unit"


class Boxes:
    """The boxes of all images in one array: ten million boxes take 480 MB."""

    xyxy: NDArray[np.float64]

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
        """Sort the boxes by image.

        xyxy: [R, 4] in pixels of the images. owners: image of each box, int64 [R]. lines: position of each
        box in the file ``subject``, counted in `unit`. sizes: expected height and width of each image,
        [images, 2]; 0: unknown.
        """
        self._unit, self._sizes = unit, sizes
        order = np.argsort(owners, kind="stable")
        self._subject = os.path.basename(subject)  # packs record reasons, but no paths of the machine
        self.xyxy, self._lines = xyxy[order], lines[order]
        """Left, top, right and bottom of each box as read, float64 [R, 4], sorted by image."""
        self.labels: NDArray[Any] | None = None if labels is None else labels[order].astype("<i8", copy=False)
        """Class of each box, int64 [R], sorted by image, or None."""
        self._starts = np.searchsorted(owners[order], np.arange(images + 1))

    def place(self, index: int, geometry: ImagePlacement, scale: tuple[float, float]) -> dict[str, bytes]:
        """Transform the boxes of image ``index`` with its pixels.

        scale: pixels per unit of x and y. Returns: field -> bytes of its row. Raises: ImageError.
        """
        rows = slice(int(self._starts[index]), int(self._starts[index + 1]))
        height, width = geometry.source
        known = (height, width) if self._sizes is None else tuple(self._sizes[index].tolist())
        if known != (height, width) and all(known):
            raise ImageError(
                f"has {width:,} x {height:,} pixels, but its boxes in {self._subject} are for "
                f"{known[1]:,} x {known[0]:,}."
            )
        xyxy = self.xyxy[rows] * (*scale, *scale)
        outside = (xyxy[:, 2:] <= 0).any(axis=1) | (xyxy[:, :2] >= (width, height)).any(axis=1)
        if outside.any():
            first = int(outside.argmax())
            corners = ",".join(f"{value:.10g}" for value in xyxy[first])
            raise ImageError(
                f"its box {corners} ({self._subject} {self._unit} {self._lines[rows][first]}) lies "
                f"outside its {width:,} x {height:,} pixels."
            )
        moved, keep = geometry.boxes(xyxy)
        placed = {"boxes": moved[keep].astype("<f4", copy=False).tobytes()}
        if self.labels is not None:
            placed["box_label"] = self.labels[rows][keep].tobytes()
        return placed

    @property
    def images(self) -> int:
        """Number of images, with or without boxes."""
        return len(self._starts) - 1

    def owners(self) -> NDArray[np.int64]:
        """Return the image of each box, int64 [R], in the order of ``labels``."""
        return np.repeat(np.arange(self.images), np.diff(self._starts))

    def arrays(self) -> list[NDArray[Any]]:
        """Return the arrays that determine the rows, for a fingerprint."""
        return [self.xyxy, self._starts, *([] if self.labels is None else [self.labels])]


class ImageTargets:
    """Labels, boxes and keypoints of each image, from `read_targets` or from folders."""

    def __init__(
        self,
        label: NDArray[Any] | None = None,
        classes: list[str] | None = None,
        *,
        about: dict[str, Any] | None = None,
        boxes: Boxes | None = None,
        keypoints: NDArray[np.float64] | None = None,
        findings: Findings | None = None,
    ) -> None:
        """label: [N, ...], described by ``about``; keypoints: [N, K, 2] in the images' pixels."""
        self.findings: Findings = findings or Findings()
        """Values of refused images are placeholders."""
        self.classes = classes
        """Class names, indexed by labels, box labels or columns of a multi-hot label, or None."""
        self.fixed: dict[str, NDArray[Any]] = {}
        """Fields that do not depend on cropping and resizing: name -> [N, *shape], little-endian."""
        self.beside: dict[str, list[str]] = {}
        """Columns that are read but not stored: name -> the cell of each image."""
        self._boxes, self._keypoints = boxes, keypoints
        self._relative = False
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
        """The stored fields, in order."""

    @property
    def needs_geometry(self) -> bool:
        """True if `place` returns fields: there are boxes or keypoints."""
        return self._boxes is not None or self._keypoints is not None

    @property
    def labelled(self) -> bool:
        """True if images, or their boxes, have labels."""
        return "label" in self.fixed or (self._boxes is not None and self._boxes.labels is not None)

    @property
    def strata(self) -> NDArray[np.int64] | None:
        """Class of each image, int64 [N], for a stratified split; None unless each image has exactly one."""
        label = self.fixed.get("label")
        if label is None or label.dtype != np.int64 or label.ndim != 1:
            return None
        if self.findings.refused:  # a separate stratum: their labels are placeholders
            label = label.copy()
            label[list(self.findings.refused)] = np.iinfo(np.int64).min
        return label

    @property
    def rarest(self) -> NDArray[np.int64] | None:
        """Rarest class of each image, int64 [N], UNLABELED for none; None if images and boxes have no classes.

        Boxes without labels count as one class.
        """
        label, boxes = self.fixed.get("label"), self._boxes
        if boxes is not None:
            images = boxes.owners()
            count, found = boxes.images, np.zeros_like(images) if boxes.labels is None else boxes.labels
        elif label is not None and label.ndim == 2 and label.dtype == np.uint8:
            (images, found), count = np.nonzero(label), len(label)
        else:
            return self.strata
        rarest = np.full(count, UNLABELED)
        order = np.argsort(-np.bincount(found)[found], kind="stable")
        rarest[images[order]] = found[order]  # the last assignment to an image counts
        return rarest

    def place(self, index: int, geometry: ImagePlacement) -> dict[str, NDArray[np.float32] | bytes]:
        """Transform boxes and keypoints of image ``index`` with its pixels.

        Returns: field -> float32 [K, 2], or bytes of a ragged field's row; {} without boxes and keypoints.
        Raises: ImageError, without the image's name, for a box entirely outside the image.
        """
        placed: dict[str, NDArray[np.float32] | bytes] = {}
        scale = geometry.source[::-1] if self._relative else (1, 1)
        if self._boxes is not None:
            placed.update(self._boxes.place(index, geometry, scale))
        if self._keypoints is not None:
            placed["keypoints"] = geometry.keypoints(self._keypoints[index] * scale)
        return placed

    def measured_in(self, unit: str | None, subject: str) -> None:
        """Set the unit of boxes and keypoints: pixels, or fractions of the image's sides ("relative").

        unit: None for pixels. subject: name of the images in messages.
        Raises: UsageError, also if the unit is None and all coordinates look like fractions.
        """
        if unit is not None and not self.needs_geometry:
            raise UsageError(
                f"{Option(_UNIT)}: applies to boxes and keypoints, but there are none. Pass "
                f"{Option('Labels.boxes')} or {Option('Labels.keypoints')}, or leave it out."
            )
        if self._boxes is not None:
            check_unit(subject, "boxes", [self._boxes.xyxy], unit, _UNIT)
        if self._keypoints is not None:
            check_unit(subject, "keypoints", [self._keypoints], unit, _UNIT)
        self._relative = unit == "relative"

    def renumbered(self, classes: Sequence[str], subject: str) -> ImageTargets:
        """Return the targets with labels that number `classes`, such as those of a pack that is extended.

        classes: class names; images of other classes are refused. Labels that are whole numbers match class
        names of the same digits. subject: name of the images in messages.
        Raises: UsageError for a class that is missing in `classes`, and for labels that are not classes.
        """
        boxes = self._boxes
        numbers = self.fixed.get("label") if boxes is None else boxes.labels
        if numbers is None:
            return self
        names, values = self.classes, numbers
        if names is None and numbers.dtype == np.int64:
            found, values = np.unique(numbers, return_inverse=True)
            names = [str(number) for number in found]
        allowed = f"{units.count(len(classes), 'class')}, {_shown(classes)}, are allowed"
        if names is None:
            raise UsageError(
                f"{subject}: holds labels that are not classes; {allowed}. Leave out the classes."
            )
        place = {name: number for number, name in enumerate(classes)}
        # Without classes every label is refused.
        places = np.array([place.get(name, -1) for name in names] or [-1], np.int64)
        images, found = np.nonzero(values) if values.ndim > 1 else (np.arange(len(values)), values)
        if values.ndim == 1 and boxes is None:
            images, found = images[values != UNLABELED], values[values != UNLABELED]
        targets = copy(self)
        targets.classes, targets.fixed = list(classes), dict(self.fixed)
        if boxes is not None:
            images, targets._boxes = boxes.owners(), copy(boxes)
            targets._boxes.labels = np.maximum(places, 0)[values]
        elif values.ndim == 1:
            targets.fixed["label"] = np.where(values == UNLABELED, UNLABELED, np.maximum(places, 0)[values])
        else:
            held = places >= 0
            targets.fixed["label"] = np.zeros((len(values), len(classes)), values.dtype)
            targets.fixed["label"][:, places[held]] = values[:, held]
            field = Field("label", values.dtype.str, (len(classes),), {"columns": list(classes)})
            targets.fields = (field, *self.fields[1:])
        strange = places[found] < 0
        for image, number in zip(images[strange].tolist(), found[strange].tolist(), strict=True):
            if image in self.findings.refused:
                continue
            if not self.findings.skip:
                how = f"Leave its images out, add it, or pass {Option('on_error', 'skip')}."
                if self.classes is None and not (places >= 0).any():
                    how = "Write names for the numbers; of WebDataset tars, in a classes.txt beside them."
                raise UsageError(f"{subject}: holds the class {names[number]}; {allowed}. {how}")
            reason = f"its class is {names[number]}, which is not one of the {len(classes):,} given classes."
            self.findings.refused[image] = reason
        return targets

    def fingerprint(self) -> bytes:
        """Return 16 bytes that change with any stored value."""
        arrays = list(self.fixed.values())
        arrays += [] if self._boxes is None else self._boxes.arrays()
        arrays += [] if self._keypoints is None else [self._keypoints]
        refused = self.findings.refused
        record = repr((self.fields, self.classes)) + (repr(sorted(refused.items())) if refused else "")
        record += repr(self.beside) if self.beside else ""
        state = blake2b(record.encode("utf-8", "surrogateescape"), digest_size=16)
        for values in arrays:
            state.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        return state.digest()


def read_targets(
    labels: Labels, keys: list[str], findings: Findings, beside: Sequence[str] = (), folder: str = ""
) -> ImageTargets:
    """Read the targets of each image from a CSV, as the module's table shows.

    labels: the file, in UTF-8 with or without a byte order mark (invalid bytes are kept, as in file names),
    and columns.
    keys: paths of the images. A row names an image by its path, or by its stem if only one image has it.
    findings: refuses images with invalid labels, leaves out rows that name no image.
    beside: further columns to read as text, with one cell for each image. folder: folder of the keys.
    Raises: SourceError if a row is invalid or names no image, if two rows of an image disagree, or if an
        image has no row (unless only boxes are read).
    """
    columns, corners, points = map(labels.columns, ("column", "boxes", "keypoints"))
    path, chosen = os.fspath(labels.file or ""), (*columns, *corners, *points)
    table = LabelTable(
        path, keys, chosen, findings, file_column=labels.file_column, beside=beside, folder=folder
    )
    separator = _SEPARATORS.get(labels.separator or "", labels.separator)
    boxes, values, classes, about = None, None, None, None
    if corners:
        boxes, classes = _boxes(table, columns, corners, len(keys), labels.as_)
    moved = _keypoints(table, points) if points else None
    if not corners and (columns or not points):
        values, classes, about = _labels(table, columns, separator, labels.as_)
    if separator is not None:
        findings.notes.append(
            f"Cells hold class names: {len(classes or ()):,} classes, {_shown(classes or ())}."
        )
    targets = ImageTargets(values, classes, about=about, boxes=boxes, keypoints=moved, findings=findings)
    targets.beside = {name: _cells(table, name) for name in beside}
    return targets


def _cells(table: LabelTable, name: str) -> list[str]:
    """Return the cell of each image in a column."""
    texts = table.columns[name]
    rows = table.one_an_image([texts], name).tolist()
    for row in rows:
        if not texts[row] and row not in table.refused:
            table.refuse(row, f"{name} is empty", "each image has one. Correct it")
    return [texts[row] for row in rows]


def _shown(classes: Sequence[str]) -> str:
    return ", ".join(classes[:3]) + (" ..." if len(classes) > 3 else "")


def _labels(
    table: LabelTable, names: list[str], separator: str | None, label_as: str
) -> tuple[NDArray[Any], list[str] | None, dict[str, Any]]:
    """Return the label of each image, the classes, and the field's description (`Field.about`)."""
    columns = {name: table.columns[name] for name in names} or {"": table.columns[""]}
    texts, called = next(iter(columns.values())), names[0] if names else "the label"
    rows = table.one_an_image(list(columns.values()), "label")
    if len(columns) > 1:
        return number_columns(table, columns, label_as=label_as)[rows], None, {"columns": names}
    if separator is not None:
        hot, numbered = multi_hot(table.subject, texts, called, separator)
        return hot[rows], numbered, {"columns": numbered}
    values, found = number_labels(table, texts, column=called, label_as=label_as)
    return values[rows], found, {}


def _boxes(
    table: LabelTable, label: list[str], corners: list[str], images: int, label_as: str
) -> tuple[Boxes, list[str] | None]:
    """Return the boxes, and the classes of their labels."""
    there = [any(cells) for cells in zip(*(table.columns[name] for name in corners), strict=True)]
    if not any(there):
        raise SourceError(f"{table.subject}: holds no boxes; some are needed. Check its columns.")
    table = table if all(there) else table.taken(np.flatnonzero(there))
    xyxy = finite_numbers(table, {name: table.columns[name] for name in corners})
    for low, high in ((0, 2), (1, 3)):
        for row in np.flatnonzero(xyxy[:, low] >= xyxy[:, high]).tolist():
            found = f"{corners[high]} is {xyxy[row, high]:.10g}, and {corners[low]} {xyxy[row, low]:.10g}"
            table.refuse(row, found, "boxes have a width and a height. Correct or remove the row")
    labels, classes = None, None
    if label:
        texts = table.columns[label[0]]
        labels, classes = number_labels(table, texts, column=label[0], regression=False, label_as=label_as)
    return Boxes(table.subject, xyxy, table.images, table.lines, labels, images), classes


def _keypoints(table: LabelTable, names: list[str]) -> NDArray[np.float64]:
    """Return the keypoints, float64 [N, K, 2], NaN where both cells are empty."""
    columns = {name: table.columns[name] for name in names}
    rows = table.one_an_image(list(columns.values()), "keypoints")
    points = finite_numbers(table, columns, missing=True)[rows].reshape(len(rows), -1, 2)
    for image, point in np.argwhere(np.isnan(points[..., 0]) != np.isnan(points[..., 1])).tolist():
        given, empty = names[2 * point : 2 * point + 2][:: 1 if np.isnan(points[image, point, 1]) else -1]
        found = f"{empty} is empty, and {given} is not"
        table.refuse(int(rows[image]), found, "a point has both or neither. Correct it")
    return points
