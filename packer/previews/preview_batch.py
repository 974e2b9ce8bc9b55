"""A batch of a pack to be shown: images, labels, masks, boxes and points of the rows that an order puts first; captions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.load.order_choice import context, parse_order
from packer.orders.epochs import Epoch, Share, read_request
from packer.orders.runs import Runs
from packer.read.encoded_images import dtype_of
from packer.read.row_reader import RowReader, decode_ragged
from packer.read.row_selection import is_mask, select, select_fields

_POINTS, _BOXES, _BOX_LABEL, _LABEL = "keypoints", "boxes", "box_label", "label"
_LISTED = 2  # entries of a caption, if there are more than three
_LEAST_SHARE = 0.005


@dataclass(frozen=True)
class PreviewBatch:
    """Rows of a pack, in memory.

    rows: int64 [N], their numbers in the pack.
    images: N of [h, w, C], as they are stored, or uint8 that `shown` made. label: [N] or [N, K], or None. masks: name -> N of int32
    [h, w]. boxes: N of float32 [n, 4], or None. box_label: N of int64 [n], or None. points: float32 [N, K, 2], NaN where there is
    none, or None.
    """

    rows: NDArray[np.int64]
    images: list[NDArray[Any]]
    label: NDArray[Any] | None
    masks: dict[str, Sequence[NDArray[np.int32]]]
    boxes: list[NDArray[np.float32]] | None
    box_label: list[NDArray[np.int64]] | None
    points: NDArray[np.float32] | None


def image_of(pack: Pack) -> Field:
    """Return the field of the images as it is loaded. Raises UsageError if there is none."""
    found = next((f.loaded for f in pack.fields if f.name == "image"), None)
    pixels = found is not None and (found.pixels or (found.ragged and found.about.get("layout") == "HWC"))
    if found is None or not pixels:
        has = ", ".join(f.name for f in pack.fields)
        raise UsageError(
            f"{pack.path}: has no images; a field 'image' of uint8 or uint16 [H, W, C] is shown, and it has "
            f"{has}. Pass a pack of images."
        )
    return found


def brightest(images: Sequence[NDArray[Any]], image: Field) -> int:
    """Return the number that is shown as white: of 8 bits 255, of 16 bits the largest of the images."""
    return 255 if image.most == 255 else max(1, *(int(one.max()) for one in images))


def shown(images: Sequence[NDArray[Any]], image: Field | None, white: float) -> list[NDArray[np.uint8]]:
    """Return pictures, uint8 [h, w, 1, 3 or 4]: of bands the first three, or the first of two.

    images: [h, w, C], uint8, or numbers that `white` makes white; image: their field, None if it is not known.
    """
    channels = images[0].shape[2]
    if channels not in (1, 3, 4) or (image is not None and image.about.get("color") == "bands"):
        images = [one[..., : 3 if channels >= 3 else 1] for one in images]
    return [
        one if one.dtype == np.uint8 else np.rint((one * (255 / white)).clip(0, 255)).astype(np.uint8)
        for one in images
    ]


def first_rows(
    pack: Pack, rows: int, *, order: str, seed: int, epoch: int, split: str | None
) -> NDArray[np.int64]:
    """Return the rows that a PackedBatchDataset yields first, int64 [rows or fewer]."""
    subset = select(pack, split=split)
    with_images = RowReader(pack, select_fields(pack, None))
    bound = parse_order(order, False, context(with_images, subset, rows))
    sequence = Epoch(bound, subset, seed, epoch)
    return read_request(sequence, Share(sequence.length, rows), 0, 1).rows().rows()


def read_batch(pack: Pack, rows: NDArray[np.int64]) -> PreviewBatch:
    """Read rows of a pack. rows: int64 [N], in any order."""
    image = image_of(pack)
    fields = {f.name: f.loaded for f in pack.fields}
    masks = [name for name, f in fields.items() if _is_drawn(f, image)]
    wanted = ["image", *masks]
    label, points = fields.get(_LABEL), fields.get(_POINTS)
    if label is not None and not label.ragged and len(label.shape or ()) < 2:
        wanted.append(_LABEL)
    if points is not None and (points.shape or ())[1:] == (2,) and np.dtype(points.dtype).kind == "f":
        wanted.append(_POINTS)
    wanted += [n for n in (_BOXES, _BOX_LABEL) if n in fields and "row_shape" in fields[n].about]
    runs = Runs(rows, np.ones(len(rows), np.int64))

    def read(f: Field) -> Any:
        if f.ragged:
            return decode_ragged(
                pack, pack.header.field(f.name), reader.read_ragged(f.name, runs), rows.tolist()
            )
        return reader.array(f, runs)

    with closing(RowReader(pack, [fields[name] for name in wanted])) as reader:
        found = {name: read(fields[name]) for name in wanted}
    return PreviewBatch(
        rows=rows,
        images=list(found["image"]),
        label=found.get(_LABEL),
        masks={
            name: [np.asarray(mask, np.int32).reshape(mask.shape[:2]) for mask in found[name]]
            for name in masks
        },
        boxes=found.get(_BOXES),
        box_label=found.get(_BOX_LABEL),
        points=found.get(_POINTS),
    )


def _is_drawn(f: Field, image: Field) -> bool:
    """True if a field is a mask of one whole number a pixel."""
    layers = () if f.own_size is None else (f.own_size.channels or 1,)
    whole = np.dtype(dtype_of(f)).kind in "iub" and (f.shape or ())[2:] + layers in ((), (1,))
    return whole and is_mask(f, (None, None) if image.shape is None else image.shape[:2])


def captions(
    batch: PreviewBatch, classes: Sequence[str] | None, columns: Sequence[str] | None
) -> list[list[str]]:
    """Return the lines under each image, three at most: its class, classes, shares of classes or numbers, or without labels its row.

    classes: names by number, or None. columns: names of the label's numbers where it has several, or None.
    """
    if batch.label is not None:
        entries = [_describe(label, classes, columns) for label in batch.label]
    elif batch.box_label is not None:
        entries = [_count(labels, classes) or ["no boxes"] for labels in batch.box_label]
    else:
        entries = [[f"row {row:,}"] for row in batch.rows]
    return [
        lines if len(lines) < 4 else [*lines[:_LISTED], f"and {len(lines) - _LISTED} more"]
        for lines in entries
    ]


def class_name(number: int, classes: Sequence[str] | None) -> str:
    """Return the name of a class, or its number where it has none."""
    return classes[number] if classes is not None and 0 <= number < len(classes) else str(number)


def _describe(label: Any, classes: Sequence[str] | None, columns: Sequence[str] | None) -> list[str]:
    """label: a number, or several of them."""
    whole = label.dtype.kind in "iub"
    if np.ndim(label) == 0:
        return [class_name(int(label), classes) if whole else f"{float(label):.4g}"]
    names = [class_name(number, classes or columns) for number in range(len(label))]
    if whole:
        return [names[i] for i in np.flatnonzero(label)] or ["none"]
    if classes is None and columns is not None:
        return [f"{name} {value:.3g}" for name, value in zip(names, label, strict=True)]
    largest = [int(i) for i in np.argsort(-label, kind="stable") if abs(label[i]) >= _LEAST_SHARE]
    if len(largest) == 1 and abs(label[largest[0]] - 1) < _LEAST_SHARE:
        return [names[largest[0]]]
    return [f"{names[i]} {label[i]:.2f}".removesuffix("0") for i in largest] or ["none"]


def _count(labels: NDArray[Any], classes: Sequence[str] | None) -> list[str]:
    numbers, counts = np.unique(labels, return_counts=True)
    return [
        (f"{count} " if count > 1 else "") + class_name(int(number), classes)
        for number, count in zip(numbers, counts, strict=True)
    ]
