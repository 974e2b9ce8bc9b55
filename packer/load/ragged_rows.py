"""Images that kept their own size, decoded and made alike by the threads that read them.

A thread decodes a few images at a time, no larger than what was drawn for them needs, and the first pass of each view reads them while
they still lie in the caches. So a request is what it is for images of one size: rows in a slot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from packer.augment.ragged_images import RaggedImages, reductions
from packer.format.header import Field
from packer.load.batch import Bytes
from packer.load.prefetcher import FileRows, ReadFixed, ReadResult
from packer.orders.epochs import ReadRequest
from packer.read.encoded_images import EncodedImages, channels_of
from packer.read.row_reader import RowReader
from packer.starting import ForkSafeThreads

if TYPE_CHECKING:
    from packer.load.augmenting import Augmenter

_GROUP_BYTES = (
    4 << 20
)  # of pixels and results together: about what a core's caches hold, and the work of one thread


class AugmentedFileRows(FileRows):
    """The pack's files, whose images are decoded and made alike as they are read.

    image: the field that holds them. fields: of the batches, augmenter.read_fields().
    """

    draws = True

    def __init__(
        self,
        reader: RowReader,
        fields: Sequence[Field],
        threads: ForkSafeThreads,
        augmenter: Augmenter,
        image: Field,
    ) -> None:
        super().__init__(reader, fields, threads)
        self._augmenter, self._image = augmenter, image
        self._channels = channels_of(image)
        self._local = threading.local()

    def _read_part(
        self, request: ReadRequest, start: int, stop: int, out: dict[str, Bytes], read: ReadFixed
    ) -> ReadResult:
        """Read all fields, and make the images of each view."""
        views = {name: out[name] for name in self._augmenter.views}
        others = {name: rows for name, rows in out.items() if name not in views}
        result = super()._read_part(request, start, stop, others, read)
        began = time.perf_counter()
        runs = request.rows(start, stop)
        rows = self.reader.read_ragged(self._image.name, runs)
        images = EncodedImages(self.reader.pack, self._image, rows, runs.rows().tolist())
        counters = request.counters(start, stop).rows()
        draws = self._augmenter.draw(counters, request.epoch.seed, request.epoch.number, images.sizes)
        results = [
            torch.from_numpy(out)
            .view(pipeline.first.result.dtype)
            .view(len(rows), *pipeline.first.result.size, self._channels)
            .permute(0, 3, 1, 2)
            for pipeline, out in zip(self._augmenter.views.values(), views.values(), strict=True)
        ]
        by = np.full(len(rows), 8)
        for pipeline, drawn in zip(self._augmenter.views.values(), draws, strict=True):
            least = reductions(drawn.host.numpy()) if pipeline.first.reducible else 1
            by = np.minimum(by, least)
        by = np.where(images.reducible, by, 1)
        each = sum(made[:1].nbytes for made in results)
        for part, decoded in self._decoded(images, by, each):
            for pipeline, drawn, made in zip(self._augmenter.views.values(), draws, results, strict=True):
                pipeline.begin(decoded, drawn[part], made[part])
        return result._replace(draws=draws, read_seconds=result.read_seconds + time.perf_counter() - began)

    def _decoded(
        self, images: EncodedImages, by: NDArray[np.int64], each: int
    ) -> Iterator[tuple[slice, RaggedImages]]:
        """Yield some images at a time, in memory that is used again. by: how many times smaller. each: bytes of a result."""
        sizes = -(-images.sizes // by[:, None])
        pixels = sizes.prod(axis=1)
        nbytes = pixels * self._channels
        start, count = 0, len(sizes)
        while start < count:
            stop, taken = start + 1, int(nbytes[start]) + each
            while stop < count and taken + nbytes[stop] + each <= _GROUP_BYTES:
                taken += int(nbytes[stop]) + each
                stop += 1
            part = slice(start, stop)
            ends = np.cumsum(pixels[part])
            places = ends - pixels[part]
            memory = self._memory(int(ends[-1]))
            for i, place in zip(range(start, stop), places.tolist(), strict=True):
                height, width = sizes[i].tolist()
                images.decode_into(i, memory[place : place + height * width].reshape(height, width, -1))
            yield part, RaggedImages(torch.from_numpy(memory), places, sizes[part], by[part])
            start = stop

    def _memory(self, pixels: int) -> NDArray[np.uint8]:
        """Return this thread's memory, uint8 [pixels, C]."""
        memory: NDArray[np.uint8] | None = getattr(self._local, "memory", None)
        if memory is None or len(memory) < pixels:
            self._local.memory = memory = np.empty((pixels, self._channels), np.uint8)
        return memory[:pixels]
