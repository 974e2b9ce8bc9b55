"""Images that differ in size, and their masks: decoded, cropped and resized by the threads that read them.

A thread decodes a few images at a time, no larger than their drawn parameters need, and the first pass of
each view reads them while they are in the CPU caches. The result has the form of images of one size: rows in
a slot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.augment.pass_stages import run_pass
from packer.augment.passes.prepared_draws import PreparedDraws
from packer.augment.placement import REDUCTIONS, boxes_seen, placed, reductions
from packer.format.fields import Field
from packer.load.batch import Bytes, Filled
from packer.load.fillers import Reading, RowFiller
from packer.orders.epochs import ReadRequest
from packer.read.encoded_images import EncodedImages, channels_of, dtype_of

if TYPE_CHECKING:
    from packer.load.augmenting import Augmenter, Draws

# Pixels and results of a group together: about the size of a core's caches, and the work of one thread.
_GROUP_BYTES = 4 << 20


class CropFiller(RowFiller):
    """A filler that decodes images and brings them to one size as it reads them.

    fields: of the pack, with "image".
    """

    draws = True

    def __init__(self, reading: Reading, fields: Sequence[Field], augmenter: Augmenter) -> None:
        super().__init__(reading, augmenter.read_fields(fields))
        self._augmenter = augmenter
        named = {f.name: f for f in fields}
        image, own = named["image"], (*augmenter.masks, *augmenter.soft)
        self._masks = [named[name] for name in own]
        self._made = {*augmenter.views, *own}
        channels = channels_of(image)
        wider = channels == 3 and image.codec is not None  # raw rows are copied unchanged
        wider = wider and all(pipeline.first.wider for pipeline in augmenter.views.values())
        self._pixel, self._dtype = 4 if wider else channels, np.dtype(dtype_of(image))

    def fill(self, request: ReadRequest, start: int, stop: int, out: dict[str, Bytes]) -> Filled:
        """Read all fields; make the images of each view, and the masks."""
        others = {name: rows for name, rows in out.items() if name not in self._made}
        filled = super().fill(request, start, stop, others)
        began = time.perf_counter()
        runs = request.within(start, stop)
        images = self.files.pictures("image", runs, shared=True)
        draws = self._augmenter.draw(request, start, stop, images.sizes)
        by = self._reductions(images, draws)
        images.cut(boxes_seen([drawn.host.numpy() for drawn in draws]))
        pipelines, made = list(self._augmenter.views.values()), []
        for name, pipeline in self._augmenter.views.items():
            first = pipeline.first.result
            pixels = torch.from_numpy(out[name]).view(first.dtype).view(stop - start, *first.size, -1)
            made.append(pixels.permute(0, 3, 1, 2))
        result_bytes = sum(one[:1].nbytes for one in made)
        boxes, places, groups = self._decoded(images, by, self._pixel, self._dtype, result_bytes)
        columns = [
            placed(drawn.host[:, : pipeline.first.what.width], places, boxes, by)
            for pipeline, drawn in zip(pipelines, draws, strict=True)
        ]
        for group, memory in groups:
            for pipeline, numbers, out_of in zip(pipelines, columns, made, strict=True):
                run_pass(pipeline.first.what, memory, PreparedDraws(numbers[group]), out_of[group])
        for f in self._masks:
            masks = self.files.pictures(f.name, runs, shared=True)
            masks.check_sizes(images.sizes)
            self._make_masks(masks, f, draws[0], out[f.name])
        return filled._replace(draws=draws, read_seconds=filled.read_seconds + time.perf_counter() - began)

    def _make_masks(self, masks: EncodedImages, field: Field, drawn: PreparedDraws, out: Bytes) -> None:
        """Decode masks or soft maps at full size, and move them as the images of the first view."""
        pipeline, dtype = next(iter(self._augmenter.views.values())), np.dtype(dtype_of(field))
        made = torch.from_numpy(out.view(dtype)).view(len(out), *pipeline.first.result.size)
        masks.cut(boxes_seen([drawn.host.numpy()]))
        same = np.ones(len(out), np.int64)
        boxes, places, groups = self._decoded(masks, same, 1, dtype, out.shape[1])
        columns = placed(drawn.host[:, : pipeline.first.what.width], places, boxes, same)
        soft = field.about.get("sampling") == "linear"
        for group, memory in groups:
            pipeline.begin_masks(memory, columns[group], made[group], soft=soft)

    def _reductions(self, images: EncodedImages, draws: Draws) -> NDArray[np.int64]:
        """Return the factor by which each image may be decoded smaller, for all views."""
        by = np.full(len(images.sizes), REDUCTIONS[-1], np.int64)
        for pipeline, drawn in zip(self._augmenter.views.values(), draws, strict=True):
            by = np.minimum(by, reductions(drawn.host.numpy()) if pipeline.first.reducible else 1)
        return np.where(images.reducible, by, 1)

    def _decoded(
        self,
        images: EncodedImages,
        by: NDArray[np.int64],
        channels: int,
        dtype: np.dtype[Any],
        result_bytes: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Iterator[tuple[slice, torch.Tensor]]]:
        """Decode the boxes of images or masks, group by group, into this thread's buffer.

        by: reduction factors. result_bytes: bytes of one image's results. Returns the boxes as decoded, the
        first pixel of each in its group's buffer, and the groups: a slice of images, and their pixels [P, C].
        """
        boxes = -(-images.boxes // by[:, None])
        groups, places = _groups(boxes, channels * dtype.itemsize, result_bytes)

        def decoded() -> Iterator[tuple[slice, torch.Tensor]]:
            for group in groups:
                left, top, right, bottom = boxes[group].T
                columns = places[group], bottom - top, right - left, by[group]
                each = list(zip(*(column.tolist() for column in columns), strict=True))
                begin, height, width, _ = each[-1]
                scratch = self._scratch.memory((begin + height * width) * channels * dtype.itemsize)
                memory = scratch.view(dtype).reshape(-1, channels)
                for i, (begin, height, width, smaller) in enumerate(each, group.start):
                    pixels = memory[begin : begin + height * width]
                    images.decode_into(i, pixels.reshape(height, width, channels), smaller)
                yield group, torch.from_numpy(memory)

        return boxes, places, decoded()


def _groups(
    boxes: NDArray[np.int64], pixel_bytes: int, result_bytes: int
) -> tuple[list[slice], NDArray[np.int64]]:
    """Return the groups of images to decode together, and each image's first pixel in its group's buffer.

    boxes: int64 [N, 4], as decoded. result_bytes: bytes of one image's results.
    """
    pixels = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    groups, places = [], np.zeros(len(pixels), np.int64)
    start = taken = place = 0
    for i, count in enumerate(pixels.tolist()):
        nbytes = count * pixel_bytes + result_bytes
        if i > start and taken + nbytes > _GROUP_BYTES:
            groups.append(slice(start, i))
            start, taken, place = i, 0, 0
        places[i] = place
        taken, place = taken + nbytes, place + count
    if len(pixels):
        groups.append(slice(start, len(pixels)))
    return groups, places
