"""Boxes that are read from the annotations of a dataset: what every form of annotations has in common."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.inputs.boxes import Boxes
from packer.inputs.findings import Findings
from packer.inputs.image_targets import ImageTargets


class BoxTable(NamedTuple):
    """Boxes of images, one a row.

    xyxy: left, top, right, bottom, float64 [R, 4]. owners: image of each box; labels: its class; lines: its
    number in messages; int64 [R].
    """

    xyxy: NDArray[np.float64]
    owners: NDArray[np.int64]
    labels: NDArray[np.int64]
    lines: NDArray[np.int64]

    def taken(self, rows: NDArray[np.bool_]) -> BoxTable:
        """Return some of the boxes."""
        return BoxTable(self.xyxy[rows], self.owners[rows], self.labels[rows], self.lines[rows])


def box_targets(
    form: str,
    subject: str,
    table: BoxTable,
    classes: list[str],
    images: int,
    findings: Findings,
    *,
    unit: str,
    sizes: NDArray[np.int64] | None = None,
    relative: bool = False,
) -> ImageTargets:
    """Return the targets of images with boxes; leave out boxes without area, and say what was read.

    form: name of the annotations. subject: their file or folder. unit: name of one annotation. images, sizes,
    relative: see `Boxes` and `ImageTargets`.
    """
    flat = np.any(table.xyxy[:, 2:] <= table.xyxy[:, :2], axis=1)
    xyxy, owners, labels, lines = table.taken(~flat)
    findings.note(f"Read as {form}: {len(owners):,} boxes of {len(classes):,} classes.")
    findings.note(f"{flat.sum():,} {unit}s whose boxes have no area are left out." if flat.any() else "")
    boxes = Boxes(subject, xyxy, owners, lines, labels, images, unit=unit, sizes=sizes)
    return ImageTargets(None, classes, boxes=boxes, relative=relative, findings=findings)
