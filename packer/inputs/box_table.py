"""Boxes that are read from the annotations of a dataset: what every form of annotations has in common."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.inputs.boxes import Boxes
from packer.inputs.findings import Findings
from packer.inputs.image_targets import ImageTargets

_NONE: Mapping[str, int] = MappingProxyType({})


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
    dropped: str = "",
    left_out: Mapping[str, int] = _NONE,
) -> ImageTargets:
    """Return the targets of images with boxes; leave out boxes without area, and say what was read.

    form: name of the annotations. subject: their file or folder. unit: name of one annotation. images, sizes,
    relative: see `Boxes` and `ImageTargets`. dropped: parts of annotations that are not packed. left_out:
    annotations that the caller left out -> their number.
    """
    flat = np.any(table.xyxy[:, 2:] <= table.xyxy[:, :2], axis=1)
    table = table.taken(~flat)
    findings.notes.append(
        f"Read as {form}: {len(table.owners):,} boxes of {len(classes):,} classes{dropped}."
    )
    counts = {**left_out, "whose boxes have no area": int(flat.sum())}
    findings.notes += [f"{count:,} {unit}s {what} are left out." for what, count in counts.items() if count]
    boxes = Boxes(
        subject, table.xyxy, table.owners, table.lines, table.labels, images, unit=unit, sizes=sizes
    )
    return ImageTargets(None, classes, boxes=boxes, relative=relative, findings=findings)
