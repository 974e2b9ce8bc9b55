"""Images that differ in size, and their masks, padded with zeros to one array each, images at the upper left.

torchvision's detection models pad in the same way. The files hold the sizes, so the reading threads decode
straight into the array if an image is as wide as it. torch has no other array for such images: its jagged
layout (torch.nested) holds one ragged dimension, and images have two.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.arguments import one_of, whole
from packer.declared_types import checked_class
from packer.errors import UsageError
from packer.format.fields import (
    Field,
    find_field,
)
from packer.load.batch import Filled, LentSlot, Scratch, SlotLayout, Slots
from packer.load.fillers import Reading, RowFiller
from packer.orders.epochs import ReadRequest
from packer.read.encoded_images import EncodedImages, dtype_of, is_encoded
from packer.read.row_selection import is_mask

COLLATES = ("list", "pad")
PIXEL_MASK = Field("pixel_mask", "|b1", None, {"is": "True where a pixel is the image's own"})
IMAGE_SIZES = Field("image_sizes", "<i8", (2,), {"is": "height and width of each image"})


@checked_class
@dataclass(frozen=True)
class Padding:
    """Options of ``collate="pad"``.

    Parameters
    ----------
    multiple : int
        Height and width of a batch are multiples of it: 32 for a network that halves them five times.
    mask_fill : int
        Value of masks beyond their images: 0, or the number that a loss ignores, for example 255. Images and
        soft maps get 0.

    Examples
    --------
    >>> Padding(multiple=32).size(np.array([[100, 64], [90, 70]]))
    (128, 96)
    """

    multiple: int = 1
    mask_fill: int = 0

    def __post_init__(self) -> None:
        whole("Padding: multiple", self.multiple, 1)
        whole("Padding: mask_fill", self.mask_fill)

    def size(self, sizes: NDArray[np.int64]) -> tuple[int, int]:
        """Return height and width of a batch. sizes: int64 [N, 2], N from 1."""
        height, width = (-(-sizes.max(axis=0) // self.multiple) * self.multiple).tolist()
        return height, width


def parse_collate(collate: str | Padding) -> Padding | None:
    """Return the padding for the argument `collate`; None for "list". Raises UsageError."""
    if isinstance(collate, Padding):
        return collate
    one_of("collate", collate, COLLATES, ", or packer.Padding(multiple=32)")
    return Padding() if collate == "pad" else None


def check_padded(
    fields: Sequence[Field], path: str, padding: Padding, transformed: bool, augmented: bool
) -> None:
    """Raise UsageError unless there are images to pad and nothing forbids it."""
    image = find_field(fields, "image")
    if image is None:
        raise UsageError(
            "collate='pad': pads the field 'image', and there is none. Pass fields with 'image', or"
            " collate='list'."
        )
    if not is_encoded(image):
        raise UsageError(
            f"collate='pad': images of {path} have one size, so there is nothing to pad. Leave collate out."
        )
    for what, given in (("transform", transformed), ("augment", augmented)):
        if given:
            raise UsageError(
                f"collate='pad' with {what}: images are padded as they are read, before it. Pass one of them."
            )
    for f in fields:
        if not is_mask(f, (None, None)):
            continue
        limits = np.iinfo(dtype_of(f)) if np.dtype(dtype_of(f)).kind in "iu" else None
        if limits is not None and not limits.min <= padding.mask_fill <= limits.max:
            raise UsageError(
                f"Padding: mask_fill is {padding.mask_fill} and {f.name!r} of {path} is {limits.dtype};"
                f" {limits.min} to {limits.max} are allowed. Change mask_fill."
            )
    for added in (PIXEL_MASK, IMAGE_SIZES):
        if find_field(fields, added.name) is not None:
            raise UsageError(
                f"collate='pad': adds a field {added.name!r}, and {path} has one. Name the other fields."
            )


class PaddedFiller(RowFiller):
    """A filler that pads images, and their masks, to one array per batch while it reads them.

    fields: of the pack, with "image". spare: free arrays to keep.
    """

    def __init__(self, reading: Reading, fields: Sequence[Field], padding: Padding, spare: int) -> None:
        masks = [f for f in fields if any(is_mask(f, (None, None), how) for how in ("nearest", "linear"))]
        self._pictures = [f for f in fields if f.name == "image" or f in masks]
        super().__init__(reading, [f for f in fields if f not in self._pictures])
        self._others = [f for f in self.fields if not f.ragged]
        self.fields: tuple[Field, ...] = (*fields, PIXEL_MASK, IMAGE_SIZES)
        self._padding, self._scratch = padding, Scratch()
        self._slots = Slots(0, self.device.allocate, spare)

    def tasks(self, request: ReadRequest, slot: LentSlot) -> list[Future[Filled]]:
        """Start a thread that reads all fields of a batch and pads its images."""
        return [self.threads.submit(self._pad_all, request, slot)]

    def _pad_all(self, request: ReadRequest, slot: LentSlot) -> Filled:
        began = time.perf_counter()
        rows = {f.name: self.files.pictures(f.name, request.within()) for f in self._pictures}
        sizes = rows["image"].sizes
        size = self._padding.size(sizes)
        made = [*(_padded(f, size) for f in (*self._pictures, PIXEL_MASK)), IMAGE_SIZES]
        slot.layout = SlotLayout([*self._others, *made], slot.rows)
        slot.memory = self._slots.lend(slot.layout.nbytes)
        filled = self.fill(request, 0, slot.rows, {f.name: slot.raw[f.name] for f in self._others})
        padded = slot.arrays
        for f in self._pictures:
            rows[f.name].check_sizes(sizes)
            fill = self._padding.mask_fill if is_mask(f, (None, None)) else 0
            self._pad(rows[f.name], padded[f.name], fill)
        mask = padded[PIXEL_MASK.name]
        for i, (h, w) in enumerate(sizes.tolist()):
            mask[i] = False
            mask[i, :h, :w] = True
        padded[IMAGE_SIZES.name][:] = sizes
        return filled._replace(read_seconds=time.perf_counter() - began)

    def _pad(self, rows: EncodedImages, out: NDArray[Any], fill: int) -> None:
        """Decode images into the upper left corners of an array, and fill the rest."""
        for i, (h, w) in enumerate(rows.sizes.tolist()):
            if w == out.shape[2]:
                rows.decode_into(i, out[i, :h])
            else:
                scratch = self._scratch.memory(h * w * out[0, 0, 0].nbytes)
                pixels = scratch.view(out.dtype).reshape(h, w, *out.shape[3:])
                rows.decode_into(i, pixels)
                out[i, :h, :w] = pixels
            out[i, :h, w:] = out[i, h:] = fill


def _padded(field: Field, size: tuple[int, int]) -> Field:
    """Return a field of images with all rows padded to one size."""
    own = field.own_size
    return (
        Field(field.name, field.dtype, size)
        if own is None
        else Field(field.name, own.dtype, own.shape(*size))
    )
