"""One batch of a pack, for looking at: images, labels, masks, boxes and points of the rows that an order puts first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.load.dataset_options import context
from packer.orders.epoch import Epoch
from packer.orders.order_choice import parse
from packer.orders.runs import Runs, one_run
from packer.read.loaded_fields import decode_ragged, is_mask, select_fields
from packer.read.row_reader import RowReader
from packer.read.row_selection import select

_POINTS, _BOXES, _BOX_LABEL, _LABEL = "keypoints", "boxes", "box_label", "label"


@dataclass(frozen=True)
class Batch:
    """rows: int64 [N], their numbers in the pack. counters: int64 [N], what their draws are counted by.

    images: N of uint8 [h, w, C]. label: [N] or [N, K], or None. masks: name -> int32 [N, h, w]. boxes: N of float32 [n, 4],
    or None. box_label: N of int64 [n], or None. points: float32 [N, K, 2], NaN where there is none, or None.
    """

    rows: NDArray[np.int64]
    counters: NDArray[np.int64]
    images: list[NDArray[np.uint8]]
    label: NDArray[Any] | None
    masks: dict[str, NDArray[np.int32]]
    boxes: list[NDArray[np.float32]] | None
    box_label: list[NDArray[np.int64]] | None
    points: NDArray[np.float32] | None


def image_of(pack: Pack) -> Field:
    """The field of the images, as it is loaded. Raises UsageError if there is none."""
    found = next((f.loaded for f in pack.fields if f.name == "image"), None)
    pixels = found is not None and found.about.get("layout") == "HWC" and found.dtype == "|u1"
    if found is None or not pixels or (found.shape is not None and found.shape[2] not in (1, 3, 4)):
        has = ", ".join(f.name for f in pack.fields)
        raise UsageError(
            f"{pack.path}: has no images; a field 'image' of uint8 [H, W, C] with 1, 3 or 4 channels is shown, and it has "
            f"{has}. Pass a pack of images."
        )
    return found


def first_rows(
    pack: Pack, rows: int, *, order: str, seed: int, epoch: int, split: str | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows that a PackedBatchDataset with these arguments hands out first, and what it counts their draws by.

    Returns: int64 [rows or fewer] each.
    """
    subset = select(pack, split=split)
    if not subset.rows:
        raise UsageError(f"{pack.path}: split {split!r} has no rows. Pass another split.")
    with_images = RowReader(pack, select_fields(pack, None))
    bound, _ = parse(order, False, context(with_images, subset, rows))
    sequence = Epoch(bound, subset, seed, epoch)
    positions = one_run(0, min(rows, sequence.length))
    return sequence.rows(positions).rows(), sequence.counters(positions).rows()


def read_batch(pack: Pack, rows: NDArray[np.int64], counters: NDArray[np.int64] | None = None) -> Batch:
    """These rows of a pack. rows: int64 [N], in any order. counters: of their draws; default: the rows."""
    image = image_of(pack)
    fields = {f.name: f.loaded for f in pack.fields}
    masks = [f for f in fields.values() if _is_drawn(f, image)]
    label = fields.get(_LABEL)
    fixed = [*masks]
    if label is not None and not label.ragged and len(label.shape or ()) < 2:
        fixed.append(label)
    if _is_points(fields.get(_POINTS)):
        fixed.append(fields[_POINTS])
    ragged = [
        fields[name] for name in (_BOXES, _BOX_LABEL) if name in fields and "row_shape" in fields[name].about
    ]
    reader = RowReader(pack, [image, *fixed, *ragged])
    try:
        runs = Runs(rows, np.ones(len(rows), np.int64))
        pixels: list[NDArray[np.uint8]]
        if image.shape is None:
            pixels = decode_ragged(
                pack, pack.header.field("image"), reader.read_ragged("image", runs), rows.tolist()
            )
        else:
            pixels = list(_read(reader, image, runs))
        found = {f.name: _read(reader, f, runs) for f in fixed}
        lists = {
            f.name: decode_ragged(pack, f, reader.read_ragged(f.name, runs), rows.tolist()) for f in ragged
        }
    finally:
        reader.close()
    return Batch(
        rows=rows,
        counters=rows if counters is None else counters,
        images=pixels,
        label=found.get(_LABEL),
        masks={
            f.name: found[f.name].reshape(len(rows), *(f.shape or ())[:2]).astype(np.int32) for f in masks
        },
        boxes=lists.get(_BOXES),
        box_label=lists.get(_BOX_LABEL),
        points=found.get(_POINTS),
    )


def _read(reader: RowReader, f: Field, runs: Runs) -> NDArray[Any]:
    out = np.empty((runs.total, f.row_bytes), np.uint8)
    reader.read(f.name, runs, out)
    return out.view(f.dtype).reshape(-1, *(f.shape or ()))


def _is_drawn(f: Field, image: Field) -> bool:
    """Whether a field is a mask of one whole number a pixel."""
    whole = np.dtype(f.dtype).kind in "iub" and (f.shape or ())[2:] in ((), (1,))
    return whole and is_mask(f, (image.shape or ())[:2])


def _is_points(f: Field | None) -> bool:
    shape = () if f is None else f.shape or ()
    return f is not None and len(shape) == 2 and shape[1] == 2 and np.dtype(f.dtype).kind == "f"
