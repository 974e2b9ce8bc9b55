"""A batch to be drawn: images, labels, masks, boxes and points of an order's first rows; their captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer import units
from packer.errors import UsageError
from packer.format.fields import Field
from packer.given_values import shown
from packer.load.order_choice import context, parse_order
from packer.orders.epochs import Share, read_request
from packer.orders.runs import Runs
from packer.packs.pack import Pack
from packer.read.array_store import PackStore
from packer.read.encoded_images import dtype_of
from packer.read.row_selection import Splits, is_mask, select, select_fields

if TYPE_CHECKING:
    from packer.augment import Pipeline
    from packer.load.batch_dataset import PackedBatchDataset

OVERLAYS = ("label", "keypoints", "boxes", "box_label")
_LISTED = 2  # entries shown of a caption with more than three
_LEAST_SHARE = 0.005


@dataclass(frozen=True)
class PreviewBatch:
    """Rows of a pack, in memory.

    rows: row numbers in the pack, int64 [N].
    images: N arrays [h, w, C], as stored, or uint8 after `pictures`.
    label: [N] or [N, K], or None.
    masks: name -> N arrays int32 [h, w].
    boxes: N arrays float32 [n, 4], or None; box_label: N arrays int64 [n], or None.
    points: float32 [N, K, 2], NaN for missing points, or None.
    origins: of a source that is not packed yet: (split, key) of each row.
    predicted: what a network said in place of the label, as label, or None.
    """

    rows: NDArray[np.int64]
    images: list[NDArray[Any]]
    label: NDArray[Any] | None
    masks: dict[str, Sequence[NDArray[np.int32]]]
    boxes: list[NDArray[np.float32]] | None
    box_label: list[NDArray[np.int64]] | None
    points: NDArray[np.float32] | None
    origins: Sequence[tuple[str, str]] | None = None
    predicted: NDArray[Any] | None = None


def image_of(pack: Pack, source: str = "") -> Field:
    """Return the image field as it is loaded. Raises UsageError for a pack without images.

    source: name of what was packed to be shown, for the message.
    """
    found = next((f.loaded for f in pack.fields if f.name == "image"), None)
    pixels = found is not None and (found.pixels or (found.ragged and found.about.get("layout") == "HWC"))
    if found is None or not pixels:
        has = ", ".join(f.name for f in pack.fields)
        raise UsageError(
            f"{source or pack.path}: has no images; a field 'image' of uint8 or uint16 [H, W, C] is shown, "
            "and"
            f" it has {has}. Pass {'images' if source else 'a pack of images'}."
        )
    return found


def pictures(
    images: Sequence[NDArray[Any]], image: Field | None, views: Iterable[Pipeline] = ()
) -> tuple[list[NDArray[np.uint8]], str]:
    """Return images as uint8 [h, w, 1, 3 or 4], and a text about the scaling.

    image: their field, None if unknown; views: the pipelines that produced them, whose Normalize is undone.
    Keeps the first three bands, or the first of two. In 16-bit images the largest value becomes white: 12-bit
    images would otherwise be dark.
    """
    kind, transforms = images[0].dtype, next((view.transforms for view in views), ())
    normalize: Any = next((t for t in reversed(transforms) if type(t).__name__ == "Normalize"), None)
    low, white, text = 0.0, 255.0, "images as they are"
    if kind.kind == "f":
        if normalize is not None:
            mean, std = np.asarray(normalize.mean, np.float32), np.asarray(normalize.std, np.float32)
            images, text = [one * std + mean for one in images], "Normalize undone"
        least, most = min(float(one.min()) for one in images), max(float(one.max()) for one in images)
        white = 1.0
        if normalize is None and (least < 0 or most > 1):
            low, white, text = least, max(most - least, 1e-12), f"{least:.3g} is black, {most:.3g} white"
        elif image is not None and np.dtype(dtype_of(image)) != np.uint8:
            white, text = max(most, 1e-12), f"{text}; {most:.3g} is white"
    elif kind != np.uint8:
        white = float(max(1, *(int(one.max()) for one in images)))
        text = f"{white:,.0f} is white"
    channels = images[0].shape[2]
    if channels not in (1, 3, 4) or (image is not None and image.about.get("color") == "bands"):
        images = [one[..., : 3 if channels >= 3 else 1] for one in images]
    return [
        one if kind == np.uint8 else np.rint(((one - low) * (255 / white)).clip(0, 255)).astype(np.uint8)
        for one in images
    ], text


def first_rows(
    pack: Pack, rows: int, *, order: str, seed: int, epoch: int, split: Splits
) -> NDArray[np.int64]:
    """Return the first rows that a PackedBatchDataset yields, int64 [up to `rows`]."""
    subset = select(pack, split=split)
    with_images = PackStore(pack, select_fields(pack, None))
    bound = parse_order(order, False, context(with_images, subset, rows, seed=seed))
    return read_request(bound, epoch, Share(bound.length, rows), 0, 1).rows().rows()


def read_batch(pack: Pack, rows: NDArray[np.int64]) -> PreviewBatch:
    """Read rows of a pack. rows: int64 [N], in any order."""
    runs = Runs(rows, np.ones(len(rows), np.int64))
    wanted = drawn_fields(pack)
    stored = [pack.header.field(name) for name in wanted]

    with closing(PackStore(pack, [f.loaded for f in stored])) as reader:
        found = {
            f.name: list(reader.decoded(f.name, runs) if f.loaded.ragged else reader.array(f.name, runs))
            for f in stored
        }
    return _batch(rows, found, wanted)


def batch_of(
    given: Any, dataset: PackedBatchDataset | None, rows: int, predicted: Any = None
) -> PreviewBatch:
    """Return the first rows of a loader's batch or of a dict. Raises UsageError.

    dataset: its loader. predicted: labels that a network gave, an entry for each row, or None.
    """
    fields: dict[str, Any] = given if isinstance(given, dict) else getattr(given, "_asdict", dict)()
    if "image" not in fields:
        has = ", ".join(fields) or f"it is a {type(given).__name__}"
        raise UsageError(
            f"show: no field 'image' is in the batch ({has}); it is needed."
            " Pass a batch of a PackedBatchDataset, a pack, or its path."
        )
    wanted = ["image", *OVERLAYS, *(drawn_fields(dataset.pack) if dataset is not None else ())]
    found = {name: _rows(fields[name], rows) for name in wanted if name in fields}
    if not found["image"]:
        raise UsageError("show: the batch has no rows. Pass another.")
    if any(one.ndim != 3 for one in found["image"]):
        raise UsageError(
            f"show: images of shape {list(found['image'][0].shape)} are given; [C, H, W] is allowed."
            " Pass a batch of images."
        )
    batch = _batch(np.arange(len(found["image"])), found, found)
    if predicted is None:
        return batch
    listed = isinstance(predicted, Sized) and getattr(predicted, "shape", None) != ()
    if (count := len(predicted) if listed else 0) != len(fields["image"]):
        raise UsageError(
            f"show: predicted has {count} entries and the batch {len(fields['image'])} rows; as many are"
            " allowed. Pass for example scores.argmax(1)."
        )
    said = np.stack(_rows(predicted, rows))
    said = said[:, 0] if said.shape[1:] == (1,) else said
    if said.ndim > 2 or said.dtype.kind not in "biuf":
        raise UsageError(
            f"show: predicted is {shown(predicted)}; numbers [N] or [N, K] are allowed. Pass for example"
            " scores.argmax(1)."
        )
    return replace(batch, predicted=said)


def _batch(
    rows: NDArray[np.int64], found: Mapping[str, list[NDArray[Any]]], wanted: Iterable[str]
) -> PreviewBatch:
    """Return fields as a batch. wanted: names of fields; every field without a place of its own is a mask."""
    label, points = found.get("label"), found.get("keypoints")
    return PreviewBatch(
        rows=rows,
        images=found["image"],
        label=None if label is None else np.stack(label),
        masks={
            name: [np.asarray(mask, np.int32).reshape(mask.shape[:2]) for mask in found[name]]
            for name in wanted
            if name not in ("image", *OVERLAYS)
        },
        boxes=found.get("boxes"),
        box_label=found.get("box_label"),
        points=None if points is None else np.stack(points),
    )


def _rows(values: Any, rows: int) -> list[NDArray[Any]]:
    """Return the first rows as arrays in host memory, images as [h, w, C]."""
    found = []
    for value in values[:rows]:
        if hasattr(value, "detach"):
            one = value.detach().cpu()
            one = (one.float() if one.dtype.is_floating_point else one).numpy()
            found.append(one.transpose(1, 2, 0) if one.ndim == 3 else one)
        else:
            found.append(np.asarray(value))
    return found


def drawn_fields(pack: Pack) -> list[str]:
    """Return the fields to draw: images, masks, labels, boxes, points. Raises UsageError without images."""
    image = image_of(pack)
    fields = {f.name: f.loaded for f in pack.fields}
    label, points = fields.get("label"), fields.get("keypoints")
    wanted = ["image", *(name for name, f in fields.items() if _is_drawn(f, image))]
    if label is not None and not label.ragged and len(label.shape or ()) < 2:
        wanted.append("label")
    if points is not None and (points.shape or ())[1:] == (2,) and np.dtype(points.dtype).kind == "f":
        wanted.append("keypoints")
    return wanted + [n for n in ("boxes", "box_label") if n in fields and "row_shape" in fields[n].about]


def undrawn_fields(pack: Pack) -> list[str]:
    """Return the fields that a sheet shows nothing of."""
    shown = {*drawn_fields(pack), "key", "height", "width"}
    return [f.name for f in pack.fields if f.name not in shown and "row_of" not in f.about]


def _is_drawn(f: Field, image: Field) -> bool:
    """Return True for a mask with an integer a pixel."""
    layers = () if f.own_size is None else (f.own_size.channels or 1,)
    integer = np.dtype(dtype_of(f)).kind in "iub" and (f.shape or ())[2:] + layers in ((), (1,))
    return integer and is_mask(f, (None, None) if image.shape is None else image.shape[:2])


def origins(pack: Pack) -> list[tuple[str, str]]:
    """Return the split and the key of each row of a pack of a few rows; "" without splits, or keys."""
    spans = [(name, span) for name, found in pack.header.splits.items() for span in found]
    splits = [next((name for name, (a, b) in spans if a <= row < b), "") for row in range(pack.rows)]
    keys = pack.keys() if pack.header.find("key") is not None else [""] * pack.rows
    return list(zip(splits, keys, strict=True))


def captions(
    batch: PreviewBatch,
    classes: Sequence[str] | None,
    columns: Sequence[str] | None,
    unlabeled: int | None = None,
) -> list[list[str]]:
    """Return up to three lines for each image: its label (or its boxes' labels), else its row number; the
    label that was predicted.

    Labels are shown as classes, shares of classes or numbers. classes: names by number, or None. columns:
    names of the label's components, or None. unlabeled: the label of images without one, or None.
    """
    if batch.label is not None:
        entries = [
            ["no label"] if np.ndim(label) == 0 and label == unlabeled else _describe(label, classes, columns)
            for label in batch.label
        ]
    elif batch.box_label is not None:
        entries = [_count(labels, classes) or ["no boxes"] for labels in batch.box_label]
    elif batch.boxes is not None:
        entries = [[units.count(len(boxes), "box")] for boxes in batch.boxes]
    elif batch.origins is not None:
        entries = [["no label"]] * len(batch.rows)
    else:
        entries = [[f"row {row:,}"] for row in batch.rows]
    if batch.predicted is not None:
        said = [_describe(one, classes, columns) for one in batch.predicted]
        entries = [[*lines, f"predicted {', '.join(one)}"] for lines, one in zip(entries, said, strict=True)]
    return [
        lines if len(lines) < 4 else [*lines[:_LISTED], f"and {len(lines) - _LISTED} more"]
        for lines in entries
    ]


def label_columns(pack: Pack | None) -> list[str] | None:
    """Return the names of the label's components, None if they have none."""
    label = pack.header.find("label") if pack is not None else None
    return [str(name) for name in (label.about.get("columns") if label else None) or ()] or None


def point_names(batch: PreviewBatch, pack: Pack | None) -> list[str]:
    """Return the names of the points that are drawn, "point 1" for numbers and for points without names."""
    if batch.points is None:
        return []
    field = pack.header.find("keypoints") if pack is not None else None
    names = (field.about.get("points") if field else None) or range(1, batch.points.shape[1] + 1)
    return [f"point {name}" if str(name).isdecimal() else str(name) for name in names]


def unlabeled_of(pack: Pack | None) -> int | None:
    """Return the label of images without one, None if every image has one."""
    label = pack.header.find("label") if pack is not None else None
    return label.about.get("unlabeled") if label is not None else None


def class_name(number: int, classes: Sequence[str] | None) -> str:
    """Return the name of a class, or its number if it has no name."""
    return classes[number] if classes is not None and 0 <= number < len(classes) else str(number)


def _describe(label: Any, classes: Sequence[str] | None, columns: Sequence[str] | None) -> list[str]:
    """Return the lines for a label, a number or several."""
    integer = label.dtype.kind in "iub"
    if np.ndim(label) == 0:
        return [class_name(int(label), classes) if integer else f"{float(label):.4g}"]
    names = [class_name(number, classes or columns) for number in range(len(label))]
    if integer:
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
