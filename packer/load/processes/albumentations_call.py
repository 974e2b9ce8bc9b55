"""Transforms of albumentations, called with every field that belongs to the image under the name of its target."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.load.processes.transforms import Roles, leave_out, name_of

_BOXES = ("pascal_voc", "coco", "yolo", "albumentations")
_POINTS = ("xy", "yx")


class AlbumentationsCall:
    """A Compose, or a transform by itself: masks of any name, ``boxes`` as ``bboxes``, their labels, ``keypoints``.

    Boxes are converted to the format that bbox_params names, and back. Boxes and points carry their number in one column
    more, so that labels follow the boxes that are left, and points that are left out become NaN in their place, as those
    do that augment= no longer sees.
    """

    def __init__(self, fn: Any, known: Roles, batched: bool) -> None:
        name = name_of(fn)
        self._known, self.ragged = known, known.lists
        if batched:
            raise UsageError(
                f"transform: {name} of albumentations takes one image at a time; rows one by one are allowed."
                " Leave out batched=True."
            )
        if not known.image:
            raise UsageError(
                f"transform: {name} of albumentations works on images, and there are none among {', '.join(known.names)}."
                " Pass fields with 'image'."
            )
        processors = getattr(fn, "processors", {})
        boxes: Any = processors["bboxes"].params if "bboxes" in processors else None
        points: Any = processors["keypoints"].params if "keypoints" in processors else None
        if known.boxes and boxes is None:
            raise UsageError(
                f"transform: {name} has no bbox_params, so 'boxes' would stay where they are. Pass A.Compose([...],"
                f" bbox_params=A.BboxParams('pascal_voc')). {leave_out(['boxes', 'box_label'], known)}"
            )
        if known.keypoints and points is None:
            raise UsageError(
                f"transform: {name} has no keypoint_params, so 'keypoints' would stay where they are. Pass A.Compose([...],"
                f" keypoint_params=A.KeypointParams('xy')). {leave_out(['keypoints'], known)}"
            )
        if known.boxes and boxes.format not in _BOXES:
            raise UsageError(
                f"transform: the format of bbox_params is {boxes.format!r}; {', '.join(_BOXES)} are allowed. Pass one of them."
            )
        if known.keypoints and (points.format not in _POINTS or points.label_fields):
            found = (
                f"label_fields {list(points.label_fields)}" if points.label_fields else repr(points.format)
            )
            raise UsageError(
                f"transform: keypoint_params has {found}; points of a pack are x and y alone, formats {', '.join(_POINTS)}."
                " Pass A.KeypointParams('xy')."
            )
        self._box_format = boxes.format if known.boxes else ""
        self._swapped = known.keypoints and points.format == "yx"
        self._box_labels = _label_fields(boxes, known) if known.boxes else {}
        additional = getattr(fn, "additional_targets", None) or {}
        more = {mask: "mask" for mask in known.masks if mask != "mask" and mask not in additional}
        if more:
            fn = copy.deepcopy(fn)  # the user may pass it to a dataset of other masks too
            fn.add_targets(more)
        self._fn = fn
        self.set_random_state = getattr(fn, "set_random_state", None)
        self._only = set(fn.available_keys) | {"image"} if getattr(fn, "strict", False) else None

    def __call__(self, sample: dict[str, Any]) -> Any:
        """Return the transformed sample, field names as in the pack."""
        given, taken = dict(sample), set()
        height, width = sample["image"].shape[:2]
        if self._known.boxes:
            taken |= {"boxes", "box_label"}
            boxes = to_format(given.pop("boxes"), self._box_format, height, width)
            given["bboxes"] = _numbered(boxes, np.arange(len(boxes)))
            labels = given.pop("box_label", None)
            for name, source in self._box_labels.items():
                taken.add(name)
                given[name] = labels if source == "box_label" else sample[source]
        if self._known.keypoints:
            taken.add("keypoints")
            points = given["keypoints"]
            there = np.flatnonzero(~np.isnan(points).any(axis=1))
            given["keypoints"] = _numbered(points[there, ::-1] if self._swapped else points[there], there)
        if self._only is not None:
            given = {name: value for name, value in given.items() if name in self._only}
        result = self._fn(**given)
        if not isinstance(result, dict):
            return result
        made = {name: value for name, value in result.items() if name not in {"bboxes", *taken}}
        if self._known.boxes:
            image = made["image"]
            height, width = image.shape[:2] if isinstance(image, np.ndarray) else image.shape[-2:]
            rows, numbers = _unnumbered(result["bboxes"], 4)
            source = sample["boxes"]
            made["boxes"] = from_format(rows, self._box_format, height, width).astype(source.dtype)
            for name in self._known.lists & sample.keys() & {"box_label", *self._box_labels}:
                made[name] = sample[name][numbers]
        if self._known.keypoints:
            rows, numbers = _unnumbered(result["keypoints"], 2)
            moved = np.full_like(sample["keypoints"], np.nan)
            moved[numbers] = rows[:, ::-1] if self._swapped else rows
            made["keypoints"] = moved
        kept = {
            n: made.get(n, value) for n, value in sample.items() if n in made or n not in given or n in taken
        }
        return kept | made


def to_format(boxes: NDArray[Any], format: str, height: int, width: int) -> NDArray[np.float32]:
    """Convert boxes [K, 4] (left, top, right, bottom, in pixels) to a format of albumentations."""
    x1, y1, x2, y2 = boxes.astype(np.float32).T
    scale = np.array([width, height, width, height], np.float32)
    if format == "pascal_voc":
        columns = [x1, y1, x2, y2]
    elif format == "coco":
        columns = [x1, y1, x2 - x1, y2 - y1]
    elif format == "yolo":
        columns = [
            (x1 + x2) / 2 / scale[0],
            (y1 + y2) / 2 / scale[1],
            (x2 - x1) / scale[0],
            (y2 - y1) / scale[1],
        ]
    else:
        columns = [column / side for column, side in zip((x1, y1, x2, y2), scale, strict=True)]
    return np.stack(columns, axis=1)


def from_format(boxes: NDArray[Any], format: str, height: int, width: int) -> NDArray[Any]:
    """Undo to_format."""
    a, b, c, d = boxes.T
    if format == "pascal_voc":
        return boxes
    if format == "coco":
        return np.stack([a, b, a + c, b + d], axis=1)
    scale = np.array([width, height, width, height], np.float32)
    if format == "yolo":
        return np.stack([a - c / 2, b - d / 2, a + c / 2, b + d / 2], axis=1) * scale
    return boxes * scale


def _label_fields(params: Any, known: Roles) -> dict[str, str]:
    """Return label field of bbox_params -> field of the pack. Raises UsageError."""
    fields = list(params.label_fields or ())
    strange = [name for name in fields if name not in known.lists]
    if len(strange) > known.box_label:
        has = "'box_label' alone" if known.box_label else "no labels"
        raise UsageError(
            f"transform: bbox_params names the label_fields {', '.join(map(repr, fields))}; the boxes have {has}."
            f" Pass label_fields={['box_label'] if known.box_label else []!r}."
        )
    return {name: "box_label" if name in strange else name for name in fields}


def _numbered(rows: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.float32]:
    return np.concatenate([rows, numbers[:, None]], axis=1, dtype=np.float32)


def _unnumbered(rows: Any, width: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Split off the last column: return the rows without their numbers, and the numbers."""
    array = np.asarray(rows, np.float32)
    if not len(array):
        return np.zeros((0, width), np.float32), np.zeros(0, np.int64)
    return array[:, :width], array[:, width].astype(np.int64)
