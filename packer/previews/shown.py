"""show(): a batch as a picture, in a notebook or a file: Normalize undone, masks, boxes and points drawn."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import as_whole
from packer.errors import PackerError, UsageError
from packer.format.pack import Pack, open_pack
from packer.previews.drawing import arrange_tiles, draw_sheet, words_height
from packer.previews.preview_batch import (
    PreviewBatch,
    brightest,
    captions,
    first_rows,
    image_of,
    read_batch,
    shown,
)
from packer.read.row_selection import is_mask

if TYPE_CHECKING:
    from packer.load.batch_dataset import PackedBatchDataset

_OVERLAYS = ("boxes", "box_label", "keypoints", "label")


@dataclass(frozen=True)
class Shown:
    """A contact sheet in memory, which notebooks show as it is. png: the file; text: what it shows."""

    png: bytes = field(repr=False)
    text: str

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the .png file. Raises PackerError if it cannot be written."""
        try:
            with open(path, "wb") as file:
                file.write(self.png)
        except OSError as error:
            raise PackerError(
                f"{os.fspath(path)}: cannot be written ({error.strerror}). Pass another name."
            ) from error

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.png).decode()
        return f'<img alt="{escape(self.text)}" src="data:image/png;base64,{data}"><p>{escape(self.text)}</p>'


def show(
    what: Any, dataset: PackedBatchDataset | None = None, *, rows: int = 16, columns: int | None = None
) -> Shown:
    """Draw a batch as a network sees it; as the last line of a notebook's cell it is shown there.

    what: a batch with a field ``image``: uint8, uint16 or float, [N, C, H, W] of torch or [N, H, W, C] of NumPy, or a list of N
        images of their own size; or a PackedBatchDataset, for its first batch; or a pack or its path, for its first rows.
    dataset: that the batch came from: then Normalize is undone, classes have their names and masks are drawn. Without it floats
        are scaled so that the least is black and the largest white.
    rows: at most; columns: images side by side, None: so that the sheet is about square.

    Returns an object with `save(path)`, `png` and `text`. Raises UsageError (no batch with images), FormatError (no pack).

    Examples
    --------
    >>> sheet = show("train.h5")
    >>> sheet.text
    '16 images 32x32x3 uint8; images as stored'
    >>> sheet.save("sheet.png")
    """
    if as_whole(rows, 1) is None:
        raise UsageError(f"rows: it is {rows!r}; whole numbers from 1 up are allowed. Pass one.")
    if isinstance(what, str | os.PathLike | Pack):
        pack = what if isinstance(what, Pack) else open_pack(what)
        image = image_of(pack)
        batch = read_batch(pack, first_rows(pack, rows, order="sequential", seed=0, epoch=0, split=None))
        pictures, said = shown(batch.images, image, brightest(batch.images, image)), "images as stored"
        return _drawn(batch, pictures, said, pack.header.classes, columns)
    if hasattr(what, "replay"):
        what, dataset = what.batch(0), what
    return _of_batch(what, dataset, rows, columns)


def _of_batch(given: Any, dataset: PackedBatchDataset | None, rows: int, columns: int | None) -> Shown:
    fields: dict[str, Any] = given if isinstance(given, dict) else getattr(given, "_asdict", dict)()
    if "image" not in fields:
        has = ", ".join(fields) or f"it is a {type(given).__name__}"
        raise UsageError(
            f"show: a batch with a field 'image' is drawn ({has}). Pass one of a PackedBatchDataset, a pack, or its path."
        )
    images = _rows(fields["image"], rows)
    if not images:
        raise UsageError("show: the batch has no rows. Pass another.")
    if any(one.ndim != 3 for one in images):
        raise UsageError(
            f"show: images of shape {list(images[0].shape)} are no [C, H, W]. Pass a batch of images."
        )
    pictures, said = _pictures(images, dataset)
    size = pictures[0].shape[:2]
    known = {} if dataset is None else {f.name: f.loaded for f in dataset.pack.fields}
    masks: dict[str, Sequence[NDArray[np.int32]]] = {
        name: [np.asarray(mask, np.int32).reshape(mask.shape[-2:]) for mask in _rows(fields[name], rows)]
        for name, f in known.items()
        if name in fields and name not in ("image", *_OVERLAYS) and _whole(f, size)
    }
    found = {name: _rows(fields[name], rows) if name in fields else None for name in _OVERLAYS}
    label, points = found["label"], found["keypoints"]
    batch = PreviewBatch(
        rows=np.arange(len(images)),
        images=images,
        label=None if label is None else np.stack(label),
        masks=masks,
        boxes=found["boxes"],
        box_label=found["box_label"],
        points=None if points is None else np.stack(points),
    )
    classes = None if dataset is None else dataset.pack.header.classes
    return _drawn(batch, pictures, said, classes, columns)


def _whole(f: Any, size: tuple[int, int]) -> bool:
    """Return True if a field holds masks, of the images' size as stored or cut since."""
    stored = None if f.own_size is not None else (f.shape or ())[:2]
    return is_mask(f, (None, None) if stored is None else stored) and np.dtype(f.dtype).kind in "iub"


def _rows(values: Any, rows: int) -> list[NDArray[Any]]:
    """Return the first rows as arrays; tensors from wherever they are, images as [h, w, C]."""
    found = []
    for value in values[:rows]:
        if hasattr(value, "detach"):
            one = value.detach().cpu()
            one = (one.float() if one.dtype.is_floating_point else one).numpy()
            found.append(one.transpose(1, 2, 0) if one.ndim == 3 else one)
        else:
            found.append(np.asarray(value))
    return found


def _pictures(
    images: Sequence[NDArray[Any]], dataset: PackedBatchDataset | None
) -> tuple[list[NDArray[np.uint8]], str]:
    """Return images as uint8 [h, w, 1, 3 or 4], and what was done to them."""
    kind = images[0].dtype
    if kind == np.uint8:
        return shown(images, None, 255), "images as they are"
    if kind.kind != "f":
        most = max(1, *(int(one.max()) for one in images))
        return shown(images, None, most), f"{most:,} is white"
    views = [] if dataset is None else [*dataset.views.values()]
    transforms = views[0].transforms if views else ()
    normalize: Any = next((t for t in reversed(transforms) if type(t).__name__ == "Normalize"), None)
    if normalize is not None:
        mean, std = np.float32(normalize.mean), np.float32(normalize.std)
        return shown([one * std + mean for one in images], None, 1), "Normalize undone"
    low, high = min(float(one.min()) for one in images), max(float(one.max()) for one in images)
    if low >= 0 and high <= 1:
        return shown(images, None, 1), "images as they are"
    return shown(
        [one - low for one in images], None, max(high - low, 1e-12)
    ), f"{low:.3g} is black, {high:.3g} white"


def _drawn(
    batch: PreviewBatch,
    pictures: list[NDArray[np.uint8]],
    said: str,
    classes: Sequence[str] | None,
    columns: int | None,
) -> Shown:
    first = batch.images[0]
    texts = captions(batch, classes, None)
    tile = (max(p.shape[0] for p in pictures), max(p.shape[1] for p in pictures))
    grid = arrange_tiles(len(pictures), 1, tile, columns, words_height(max(map(len, texts))))
    png = draw_sheet(grid, [replace(batch, images=pictures)], [texts], classes, "PNG")
    alike = len({one.shape for one in batch.images}) == 1
    shape = "x".join(map(str, first.shape)) if alike else "of their own sizes"
    return Shown(png, f"{len(pictures)} images {shape} {first.dtype}; {said}")
