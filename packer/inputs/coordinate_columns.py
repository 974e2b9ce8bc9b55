"""Boxes, keypoints and image sizes from the columns of a CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.inputs.boxes import Boxes
from packer.inputs.coordinate_order import BoxColumns, read_boxes, read_points
from packer.inputs.label_csv import LabelTable
from packer.inputs.label_options import Labels
from packer.inputs.label_values import finite_numbers, number_labels
from packer.inputs.spare_columns import whole_pixels
from packer.pixels.coordinate_units import LEAST_PIXELS
from packer.pixels.stored_size import StoredSize

SizeSample = Callable[[NDArray[np.int64]], Mapping[int, StoredSize]]
"""Indices of images -> the sizes of some of them, as ImageSource.sample_sizes."""


def read_sizes(table: LabelTable, names: Sequence[str]) -> NDArray[np.int64] | None:
    """Return the height and width of each image that two columns hold, int64 [N, 2], 0: unknown."""
    if not names:
        return None
    sizes = np.zeros((table.count, 2), np.int64)
    for place, name in zip((1, 0), names, strict=True):
        sizes[table.images, place] = list(map(whole_pixels, table.columns[name]))
    return sizes


def _sides(
    sample: SizeSample, labels: Labels, images: NDArray[np.int64], relative: bool
) -> NDArray[np.float64]:
    """Return the width and height of each of `images`, float64 [R, 2]; 1 if `relative`.

    NaN for images that are not in the sample, and for those whose frame is not known.
    """
    if relative:
        return np.ones((len(images), 2))
    sides = np.full((len(images), 2), np.nan)
    for index, size in sample(np.unique(images)).items():
        if labels.boxes_frame is not None or not size.swapped:
            stored = labels.boxes_frame == "stored"
            sides[images == index] = (size.stored if stored else size.upright)[::-1]
    return sides


def boxes_of_table(
    table: LabelTable, label: list[str], chosen: Labels, sample: SizeSample
) -> tuple[Boxes, list[str] | None, Labels]:
    """Return the boxes, the classes of their labels, and the options with the columns as they are read."""
    names = chosen.columns("boxes")
    there = [any(cells) for cells in zip(*(table.columns[name] for name in names), strict=True)]
    if not any(there):
        raise SourceError(f"{table.subject}: holds no boxes; some are needed. Check its columns.")
    table = table if all(there) else table.taken(np.flatnonzero(there))
    values = finite_numbers(table, {name: table.columns[name] for name in names})
    valid = np.delete(np.arange(len(values)), list(table.refused))
    unit = chosen.boxes_unit
    relative = unit == "relative" or (unit is None and values.max(initial=0) < LEAST_PIXELS)
    sides = _sides(sample, chosen, table.images[valid], relative)
    columns = BoxColumns(table.subject, names, values[valid], sides, relative)
    reading, note = read_boxes(columns, chosen.boxes_format)
    if note:
        table.findings.note(note)
        chosen = replace(chosen, boxes=reading.named(names), boxes_format=reading.format)
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
    return Boxes(table.subject, xyxy, table.images, table.lines, labels, table.count), classes, chosen


def points_of_table(
    table: LabelTable, chosen: Labels, sample: SizeSample
) -> tuple[NDArray[np.float64], Labels]:
    """Return the keypoints, float64 [N, K, 2], NaN where both cells are empty; and the options as read."""
    names = chosen.columns("keypoints")
    columns = {name: table.columns[name] for name in names}
    rows = table.one_an_image(list(columns.values()), "keypoints", optional=True)
    numbers = finite_numbers(table, columns, missing=True)
    sides = _sides(sample, chosen, table.images, chosen.boxes_unit == "relative")
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
