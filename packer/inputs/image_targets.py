"""ImageTargets: labels, boxes and keypoints of each image, as fields of the rows.

Coordinates are those of the file; coordinate_frames.py says which frame they are in. Stored coordinates are
pixels of the row (row_placement.py). Boxes are clipped to the visible part of the image; boxes outside it are
dropped with their labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import ImageError, UsageError
from packer.format.fields import Field
from packer.given_values import option_text
from packer.inputs.boxes import Boxes, BoxTable
from packer.inputs.coordinate_frames import CoordinateFrames, Orientation
from packer.inputs.file_names import UNLABELED, first_few
from packer.inputs.findings import Findings
from packer.inputs.label_options import Labels
from packer.inputs.label_values import LabelColumn
from packer.path_text import compose, show_differences, simplify
from packer.pixels.coordinate_units import check_unit
from packer.pixels.row_placement import ImagePlacement
from packer.pixels.stored_size import StoredSize

_UNIT = "Labels.boxes_unit"


class ImageTargets:
    """Labels, boxes and keypoints of each image, from `read_targets` or from folders."""

    boxes: Boxes | None
    keypoints: NDArray[np.float64] | None
    relative: bool
    unit_chosen: bool

    def __init__(
        self,
        label: NDArray[Any] | None = None,
        classes: list[str] | None = None,
        about: dict[str, Any] | None = None,
        boxes: Boxes | None = None,
        keypoints: NDArray[np.float64] | None = None,
        points: Mapping[str, Any] | None = None,
        frames: CoordinateFrames | None = None,
        *,
        relative: bool = False,
        findings: Findings | None = None,
    ) -> None:
        """label: [N, ...], described by `about`; keypoints: [N, K, 2] in the images' pixels, by `points`.

        relative: the source defines that coordinates are fractions of the images' sides. frames: those of
        boxes and keypoints; None: those of the sizes in `boxes`.
        """
        self.findings: Findings = findings or Findings()
        """Values of refused images are placeholders."""
        self.classes = classes
        """Class names, indexed by labels, box labels or columns of a multi-hot label, or None."""
        self.fixed: dict[str, NDArray[Any]] = {}
        """Fields that do not depend on cropping and resizing: name -> [N, *shape], little-endian."""
        self.beside: dict[str, list[str]] = {}
        """Columns that are read but not stored: name -> the cell of each image."""
        self.column: LabelColumn | None = None
        """The origin of labels given as text, without a list of classes; None for others."""
        self.boxes, self.keypoints = boxes, keypoints
        """As in the file: not yet pixels of the upright images."""
        if frames is None:
            frames = CoordinateFrames() if boxes is None else CoordinateFrames(boxes.subject, boxes.sizes)
        self.frames: CoordinateFrames = frames
        self.read_as: Labels | None = None
        """The options of the labels with what was found for those that were not given; None if equal."""
        self.relative = relative
        """True if boxes and keypoints are shares of the images' sides, not pixels."""
        self.unit_chosen = relative
        fields = []
        if label is not None:
            self.fixed["label"] = label.astype(label.dtype.newbyteorder("<"), copy=False)
            fields.append(Field("label", self.fixed["label"].dtype.str, label.shape[1:], about or {}))
        if boxes is not None:
            fields.append(Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4], "format": "xyxy"}))
            if boxes.labels is not None:
                fields.append(Field("box_label", "|u1", None, {"dtype": "<i8", "row_shape": []}))
        if keypoints is not None:
            described = {"format": "xy", "unseen": "nan", **(points or {})}
            fields.append(Field("keypoints", "<f4", keypoints.shape[1:], described))
        self.fields: tuple[Field, ...] = tuple(fields)
        """The stored fields, in order."""

    @property
    def needs_geometry(self) -> bool:
        """True if `place` returns fields: there are boxes or keypoints."""
        return self.boxes is not None or self.keypoints is not None

    @property
    def labelled(self) -> bool:
        """True if images, or their boxes, have labels."""
        return "label" in self.fixed or (self.boxes is not None and self.boxes.labels is not None)

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
    def located(self) -> NDArray[np.int64]:
        """Indices of the images with boxes or keypoints, int64, ascending."""
        boxed = np.zeros(0, np.int64) if self.boxes is None else self.boxes.with_boxes()
        if self.keypoints is None:
            return boxed
        return np.union1d(boxed, np.flatnonzero(np.isfinite(self.keypoints).any(axis=(1, 2))))

    def points_of(
        self, index: int, size: StoredSize, frame: str | None = None
    ) -> Iterator[NDArray[np.float64]]:
        """Yield the corners of an image's boxes, [n, 2, 2], and its points, [K, 1, 2], as upright pixels.

        frame: read them as of that frame.
        """
        frames = self.frames if frame is None else replace(self.frames, chosen=frame)
        found = [] if self.boxes is None else [self.boxes.corners(index)]
        found += [] if self.keypoints is None else [self.keypoints[index][:, None]]
        for points in found:
            with suppress(ImageError):  # the conversion reports boxes for another size
                yield frames.place(index, size.upright, lambda: size.orientation, points, self.relative)

    @property
    def rarest(self) -> NDArray[np.int64] | None:
        """Rarest class of each image, int64 [N], UNLABELED for none; None without classes.

        Boxes without labels count as one class.
        """
        label, boxes = self.fixed.get("label"), self.boxes
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

    def place(
        self, index: int, geometry: ImagePlacement, orientation: Orientation = lambda: 1
    ) -> dict[str, NDArray[np.float32] | bytes]:
        """Transform boxes and keypoints of image ``index`` with its pixels.

        orientation: see CoordinateFrames; called only if it matters.
        Returns: field -> float32 [K, 2], or bytes of a ragged field's row; {} without boxes and keypoints.
        Raises: ImageError, without the image's name, for a box entirely outside the image.
        """
        placed: dict[str, NDArray[np.float32] | bytes] = {}
        upright = partial(self.frames.place, index, geometry.source, orientation, relative=self.relative)
        if self.boxes is not None:
            try:
                placed.update(self.boxes.place(index, geometry, upright))
            except ImageError as error:
                raise ImageError(f"{error}{self.frames.explain(orientation())}") from None
        if self.keypoints is not None:
            placed["keypoints"] = geometry.keypoints(upright(self.keypoints[index]))
        return placed

    def measured_in(self, unit: str | None, subject: str) -> None:
        """Set the unit of boxes and keypoints: pixels, or fractions of the image's sides ("relative").

        unit: None for pixels. subject: name of the images in messages.
        Raises: UsageError, also if the unit is None and all coordinates look like fractions.
        """
        if self.relative:
            if unit == "pixels":
                raise UsageError(
                    f"{option_text(_UNIT, unit)}: boxes of {subject} are fractions of the images' sides."
                    " Leave it "
                    "out."
                )
            return
        if self.boxes is not None:
            check_unit(subject, "boxes", [self.boxes.xyxy], unit, _UNIT)
            tiny = np.asarray((self.boxes.xyxy <= 1).all(axis=1), np.bool_)
            if unit is None and tiny.any():
                raise UsageError(
                    f"{subject}: {tiny.sum():,} of {len(tiny):,} boxes have only coordinates up to 1, like "
                    f"shares of an image's width and height, and the others reach "
                    f"{self.boxes.xyxy.max():.10g}; all have one unit. Correct them, or pass "
                    f"{option_text(_UNIT, 'pixels')} if all are pixels."
                )
        if self.keypoints is not None:
            check_unit(subject, "keypoints", [self.keypoints], unit, _UNIT)
        self.relative, self.unit_chosen = unit == "relative", unit is not None

    def match_point_names(self, fields: Sequence[Field]) -> None:
        """Remove the names of points if the pack of these fields has points without names."""
        if any(f.name == "keypoints" and "points" not in f.about for f in fields):
            self.fields = tuple(
                replace(f, about={k: v for k, v in f.about.items() if k not in ("points", "flip_pairs")})
                for f in self.fields
            )

    def renumbered(self, classes: Sequence[str], subject: str) -> ImageTargets:
        """Return the targets with labels that number `classes`, such as those of a pack that is extended.

        classes: class names; images of other classes are refused. Labels that are whole numbers match class
        names of the same digits. subject: name of the images in messages.
        Raises: UsageError for a class that is missing in `classes`, and for labels that are not classes.
        """
        boxes = self.boxes
        numbers = self.fixed.get("label") if boxes is None else boxes.labels
        if numbers is None:
            return self
        names, values = self.classes, numbers
        if names is None and numbers.dtype == np.int64:
            found, values = np.unique(numbers, return_inverse=True)
            names = [str(number) for number in found]
        allowed = f"{units.count(len(classes), 'class')}, {first_few(classes)}, are allowed"
        if names is None:
            raise UsageError(
                f"{subject}: holds labels that are not classes; {allowed}. Leave out the classes."
            )
        place = {compose(name): number for number, name in enumerate(classes)}
        place |= {name: number for number, name in enumerate(classes)}
        # Without classes every label is refused.
        places = np.array([place.get(name, place.get(compose(name), -1)) for name in names] or [-1], np.int64)
        images, found = np.nonzero(values) if values.ndim > 1 else (np.arange(len(values)), values)
        if values.ndim == 1 and boxes is None:
            images, found = images[values != UNLABELED], values[values != UNLABELED]
        targets = copy(self)
        targets.classes, targets.fixed = list(classes), dict(self.fixed)
        if boxes is not None:
            images, targets.boxes = boxes.owners(), copy(boxes)
            targets.boxes.labels = np.maximum(places, 0)[values]
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
                how = "Leave its images out, add it, or pass on_error='skip'."
                if self.classes is None and not (places >= 0).any():
                    how = "Write names for the numbers; of WebDataset tars, in a classes.txt beside them."
                called, looks = names[number], simplify(names[number])
                alike = next((name for name in classes if simplify(name) == looks), None)
                if alike is not None:
                    called = f"{show_differences(called)}, which is not {show_differences(alike)}"
                raise UsageError(f"{subject}: holds the class {called}; {allowed}. {how}")
            reason = f"its class is {names[number]}, which is not one of the {len(classes):,} given classes."
            self.findings.refused[image] = reason
        return targets

    def fingerprint(self) -> bytes:
        """Return 16 bytes that change with any stored value."""
        arrays = list(self.fixed.values())
        arrays += [] if self.boxes is None else self.boxes.arrays()
        arrays += [] if self.keypoints is None else [self.keypoints]
        refused = self.findings.refused
        record = repr((self.fields, self.classes)) + (repr(sorted(refused.items())) if refused else "")
        record += repr(self.beside) if self.beside else ""
        record += self.frames.record()
        state = blake2b(record.encode("utf-8", "surrogateescape"), digest_size=16)
        for values in arrays:
            state.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
        return state.digest()


def box_targets(
    form: str,
    table: BoxTable,
    classes: list[str],
    images: int,
    findings: Findings,
    sizes: NDArray[np.int64] | None = None,
) -> ImageTargets:
    """Return the targets of images with the boxes of annotations; leave out boxes without area.

    form: name of the annotations. sizes: see `Boxes`; None: coordinates are fractions of the images' sides.
    """
    flat = np.any(table.xyxy[:, 2:] <= table.xyxy[:, :2], axis=1)
    boxes = Boxes(table.taken(~flat), images, sizes)
    findings.note(f"Read as {form}: {len(boxes.xyxy):,} boxes of {len(classes):,} classes.")
    findings.note(
        f"{flat.sum():,} {table.unit}s whose boxes have no area are left out." if flat.any() else ""
    )
    return ImageTargets(None, classes, boxes=boxes, relative=sizes is None, findings=findings)
