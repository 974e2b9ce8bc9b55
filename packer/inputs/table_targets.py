"""Targets of images, read from a file of rows such as a CSV: labels, boxes, keypoints.

Without chosen columns there are two, file and label (label_csv.py). Without a header the columns are called
0, 1, 2 ...

    chosen columns                      fields, per image
    a label column                      label: int64 or float32, see label_values.py; names become classes
    several label columns               label: float32 [C], or uint8 [C] if all values are 0 or 1
    a label column, label_separator     label: uint8 [C]; each cell holds class names with this separator
    boxes (left, top, right, bottom)    boxes: ragged float32 [n, 4], one per CSV row; a row with four empty
                                        cells adds no box; an image without rows is an error
    boxes and a label column            boxes, box_label: ragged int64 [n]
    keypoints (x, y, x, y ...)          keypoints: float32 [K, 2]; NaN for empty cells and invisible points;
                                        their names, and which are sides: point_names.py

coordinate_order.py finds other orders and formats of the columns, spare_columns.py the label column if none
is chosen. Input coordinates are continuous pixels of the upright image (or of the picture as stored, see
coordinate_frames.py), or fractions of its width and height; stored coordinates are pixels of the row
(row_placement.py). Boxes are clipped to the visible part of the image; boxes outside it are dropped with
their labels.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.inputs.boxes import Boxes, BoxTable
from packer.inputs.coordinate_frames import CoordinateFrames
from packer.inputs.coordinate_order import BoxColumns, read_boxes, read_points
from packer.inputs.file_names import first_few, shorten
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_csv import LabelTable
from packer.inputs.label_options import Labels
from packer.inputs.label_values import LabelColumn, finite_numbers, number_columns, number_labels, read_texts
from packer.inputs.opened_source import ImageSource
from packer.inputs.point_names import point_names, read_pairs, sides
from packer.inputs.spare_columns import whole_pixels
from packer.path_text import compose
from packer.pixels.coordinate_units import LEAST_PIXELS


def read_targets(
    labels: Labels, images: ImageSource, beside: Sequence[str] = (), content: Any = None
) -> ImageTargets:
    """Read the targets of each image from a file of rows, as the module's table shows.

    labels: the file (invalid bytes are kept, as in file names), and columns.
    images: their findings refuse images with invalid labels, and leave out rows that name no image. A row
        names an image by its path, or by its stem if only one image has it.
    beside: further columns to read as text, with one cell for each image.
    content: the parsed JSON of the file, or None.
    Raises: SourceError if a row is invalid or names no image, if two rows of an image disagree, or if an
        image has no row (unless `labels.unlisted`).
    """
    table = LabelTable(labels, images, beside, content)
    located = labels.boxes or labels.keypoints
    if located:
        targets = _located(table, images)
    elif not labels.columns("column") and "" not in table.columns:
        for option in labels.about_csv(("file_column",)):
            raise UsageError(f"{option}: is about labels, but {table.subject} has none. Leave it out.")
        targets = ImageTargets(findings=images.findings)
    else:
        targets = ImageTargets(*_labels(table, labels.columns("column")), findings=images.findings)
    columns = (targets.read_as or labels).columns("column")
    if len(columns) == 1 or "" in table.columns:
        targets.column = _origin(table, *columns)
    targets.beside = {name: _cells(table, name) for name in beside}
    return targets


def _origin(table: LabelTable, name: str = "") -> LabelColumn:
    texts, labels = table.columns[name], table.labels
    return LabelColumn.from_texts(table.subject, name or table.label_name, texts, labels.as_, labels.divider)


def _located(table: LabelTable, images: ImageSource) -> ImageTargets:
    """Return boxes or keypoints with their labels."""
    labels, spare = table.labels, table.spare
    table.findings.note(spare.note)
    found = labels if spare.label is None else replace(labels, column=[spare.label])
    columns, corners, points = map(found.columns, ("column", "boxes", "keypoints"))
    if not columns and labels.as_ != "auto":
        raise UsageError(
            f"labels=Labels(as_={labels.as_!r}): applies to labels, but {table.subject} has no column of "
            f"classes beside {first_few([*corners, *points], 4)}. Pass labels=Labels(column=), or leave "
            "it out."
        )
    boxes, moved, named, values, classes, about = (None,) * 6
    frames = CoordinateFrames(os.path.basename(table.subject), _sizes(table))
    if corners:
        boxes, classes, found = _boxes(table, columns, found, images)
    if points:
        moved, found = _points(table, found, images)
        named = _describe_points(labels, found.columns("keypoints"))
    if labels.unlisted != "empty":
        what = "boxes" if corners else "keypoints"
        empty = " (with empty cells if it has none)" if corners else ""
        how = "Add it, pass labels=Labels(unlisted='empty')"
        table.refuse_unlisted(what, f"every image needs a row{empty}. {how}")
    if columns and not corners:
        values, classes, about = _labels(table, columns)
    targets = ImageTargets(values, classes, about, boxes, moved, named, frames, findings=table.findings)
    targets.read_as = found if found != labels else None
    return targets


def _cells(table: LabelTable, name: str) -> list[str]:
    """Return the cell of each image in a column."""
    texts = list(map(compose, table.columns[name]))
    rows = table.one_an_image([texts], name).tolist()
    for row in rows:
        if not texts[row] and row not in table.refused:
            table.refuse(row, f"{name} is empty", "each image has one. Correct it")
    return [texts[row] for row in rows]


def _labels(table: LabelTable, names: list[str]) -> tuple[NDArray[Any], list[str] | None, dict[str, Any]]:
    """Return the label of each image, the classes, and the field's description (`Field.about`)."""
    columns = {name: table.columns[name] for name in names or [""]}
    rows = table.one_an_image(list(columns.values()), "label")
    if len(columns) > 1:
        return number_columns(table, columns, label_as=table.labels.as_)[rows], None, {"columns": names}
    texts, called = next(iter(columns.values())), names[0] if names else "the label"
    values, classes, about = read_texts(table, texts, _origin(table, *names), called)
    return values[rows], classes, about


def _describe_points(labels: Labels, columns: Sequence[str]) -> dict[str, Any]:
    """Return names and sides of points, for their field's description."""
    names, given = point_names(columns), labels.flip_pairs
    pairs = sides(names) if given is None else read_pairs(given, names)
    if given is None and not pairs:  # unknown: the loader warns of mirrored points that may be sides
        return {"points": list(names)}
    return {"points": list(names), "flip_pairs": [*map(list, pairs)]}


def _sizes(table: LabelTable) -> NDArray[np.int64] | None:
    """Return the height and width of each image that two columns hold, int64 [N, 2], 0: unknown."""
    names = table.spare.sizes
    if not names:
        return None
    sizes = np.zeros((table.count, 2), np.int64)
    for place, name in zip((1, 0), names, strict=True):
        sizes[table.images, place] = list(map(whole_pixels, table.columns[name]))
    return sizes


def _sides(
    source: ImageSource, labels: Labels, images: NDArray[np.int64], relative: bool
) -> NDArray[np.float64]:
    """Return the width and height of each of `images`, float64 [R, 2]; 1 if `relative`.

    NaN for images that are not in the sample, and for those whose frame is not known.
    """
    if relative:
        return np.ones((len(images), 2))
    sides = np.full((len(images), 2), np.nan)
    for index, size in source.sample_sizes(np.unique(images)).items():
        if labels.boxes_frame is not None or not size.swapped:
            stored = labels.boxes_frame == "stored"
            sides[images == index] = (size.stored if stored else size.upright)[::-1]
    return sides


def _boxes(
    table: LabelTable, label: list[str], chosen: Labels, images: ImageSource
) -> tuple[Boxes, list[str] | None, Labels]:
    """Return the boxes, the classes of their labels, and the options with the columns as they are read."""
    names = chosen.columns("boxes")
    if listed := len(names) == 1:
        names = _split_lists(table, names[0])
    there = [any(cells) for cells in zip(*(table.columns[name] for name in names), strict=True)]
    if not any(there):
        raise SourceError(f"{table.subject}: holds no boxes; some are needed. Check its columns.")
    table = table if all(there) else table.taken(np.flatnonzero(there))
    values = finite_numbers(table, {name: table.columns[name] for name in names})
    valid = np.delete(np.arange(len(values)), list(table.refused))
    unit = chosen.boxes_unit
    relative = unit == "relative" or (unit is None and values.max(initial=0) < LEAST_PIXELS)
    sides = _sides(images, chosen, table.images[valid], relative)
    columns = BoxColumns(table.subject, () if listed else names, values[valid], sides, relative)
    reading, note = read_boxes(columns, chosen.boxes_format)
    if note:
        table.findings.note(note)
        boxes = chosen.boxes if listed else reading.named(names)
        chosen = replace(chosen, boxes=boxes, boxes_format=reading.format)
    xyxy = reading.corners(values)
    for axis in (0, 1):
        low, high = reading.order[axis], reading.order[axis + 2]
        flat = np.flatnonzero(xyxy[:, axis] >= xyxy[:, axis + 2]).tolist()
        for row in [row for row in flat if row not in table.refused]:
            found = f"{names[high]} is {values[row, high]:.10g}"
            found += f", and {names[low]} {values[row, low]:.10g}" if reading.format == "xyxy" else ""
            table.refuse(row, found, "boxes have a width and a height. Correct or remove the row")
    labels, classes = None, None
    if label:
        texts, as_ = table.columns[label[0]], chosen.as_
        labels, classes = number_labels(table, texts, column=label[0], regression=False, label_as=as_)
    read = BoxTable(xyxy, table.images, labels, table.lines, table.subject)
    return Boxes(read, table.count), classes, chosen


def _split_lists(table: LabelTable, name: str) -> list[str]:
    """Add a column for each number of a column of lists, such as [12, 5, 40, 30]; return their names."""
    names, parts = [f"{name}[{place}]" for place in range(4)], []
    for row, cell in enumerate(table.columns[name]):
        numbers = cell.strip("[]() ").replace(",", " ").split()
        if numbers and len(numbers) != 4:
            found = f"{name} is {shorten(cell)}"
            table.refuse(row, found, "a list of four numbers is needed, such as [12, 5, 40, 30]. Correct it")
        parts.append(numbers if len(numbers) == 4 else [""] * 4)
    table.columns |= zip(names, map(list, zip(*parts, strict=True)), strict=True)
    return names


def _points(table: LabelTable, chosen: Labels, images: ImageSource) -> tuple[NDArray[np.float64], Labels]:
    """Return the keypoints, float64 [N, K, 2], NaN where both cells are empty; and the options as read."""
    names = chosen.columns("keypoints")
    columns = {name: table.columns[name] for name in names}
    rows = table.one_an_image(list(columns.values()), "keypoints", optional=True)
    numbers = finite_numbers(table, columns, missing=True)
    sides = _sides(images, chosen, table.images, chosen.boxes_unit == "relative")
    order, note = read_points(table.subject, names, numbers, sides)
    if note:
        table.findings.note(note)
        names = [names[place] for place in order]
        chosen = replace(chosen, keypoints=names)
    points = numbers[:, order][rows].reshape(len(rows), -1, 2)
    points[rows < 0] = np.nan
    for image, point in np.argwhere(np.isnan(points[..., 0]) != np.isnan(points[..., 1])).tolist():
        given, empty = names[2 * point : 2 * point + 2][:: 1 if np.isnan(points[image, point, 1]) else -1]
        found = f"{empty} is empty, and {given} is not"
        table.refuse(int(rows[image]), found, "a point has both or neither. Correct it")
    return points, chosen
