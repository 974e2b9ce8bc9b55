"""What one pass over the images of packs finds: what tells rows apart, the mean image of each class, heights and widths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.header import Field
from packer.format.pack import Pack
from packer.reports.label_measures import LabelMeasures
from packer.reports.perceptual_hash import SIDE, ImageTraits
from packer.reports.small_rows import small_rows

MOST_MEANS = 60
"""Classes whose mean image is made: those with most rows."""


class ClassMean(NamedTuple):
    """The mean image of a class, float64 [32, 32, 1 or 3], 0 to 255. number: of the class, -1 for all rows together."""

    number: int
    rows: int
    pixels: NDArray[np.float64]


class ImageMeasures(NamedTuple):
    """Measures of the images of packs, in the order of the rows. digests: of the stored bytes, uint64 [N].

    sizes: int32 [N, 2], heights and widths, None if all images have one size. means: that of all rows first.
    """

    traits: ImageTraits
    digests: NDArray[np.uint64]
    sizes: NDArray[np.int32] | None
    means: tuple[ClassMean, ...]


def measure_images(
    packs: Sequence[Pack],
    images: Sequence[Field],
    labels: LabelMeasures,
    workers: int,
    progress: Callable[[int], None],
) -> ImageMeasures:
    """Read all images once. images: the field of each pack, as loaded; progress: called with the rows done. Raises FormatError."""
    found, done, first = [], 0, 0
    means = _Means(labels)
    for pack, image in zip(packs, images, strict=True):
        for rows in small_rows(pack, image, workers):
            means.add(first + rows.start, rows.pixels)
            found.append((*rows.traits, rows.digests, rows.sizes))
            done += len(rows.digests)
            progress(done)
        first += pack.rows
    hashes, traits, flat, digests, sizes = (np.concatenate(each) for each in zip(*found, strict=True))
    same = bool((sizes == sizes[0]).all())
    return ImageMeasures(ImageTraits(hashes, traits, flat), digests, None if same else sizes, means.all())


class _Means:
    """Sums of images by class."""

    def __init__(self, labels: LabelMeasures) -> None:
        self._classes = labels.classes
        counts = labels.counts.sum(axis=0) if labels.classes is not None else np.zeros(0, np.int64)
        self._numbers = [int(n) for n in np.argsort(-counts, kind="stable")[:MOST_MEANS] if counts[n]]
        self._slots = np.full(len(counts) + 1, len(self._numbers))
        self._slots[self._numbers] = np.arange(len(self._numbers))
        self._sums = np.zeros((len(self._numbers) + 1, SIDE * SIDE * 3))
        self._rows = np.zeros(len(self._numbers) + 1, np.int64)

    def add(self, first: int, pixels: NDArray[np.float32]) -> None:
        """Add rows from `first` on."""
        flat = np.broadcast_to(pixels, (*pixels.shape[:3], 3)).reshape(len(pixels), -1)
        slots = np.full(len(flat), len(self._numbers))
        if self._classes is not None:
            slots = self._slots[self._classes[first : first + len(flat)]]
        order = np.argsort(slots, kind="stable")
        present, starts = np.unique(slots[order], return_index=True)
        self._sums[present] += np.add.reduceat(flat[order], starts, axis=0)
        self._rows += np.bincount(slots, minlength=len(self._rows))

    def all(self) -> tuple[ClassMean, ...]:
        """Return the means: of all rows, then of the classes in their order."""
        total = self._sums.sum(axis=0) / max(1, int(self._rows.sum()))
        found = [ClassMean(-1, int(self._rows.sum()), total.reshape(SIDE, SIDE, 3))]
        if len(self._numbers) > 1:
            for slot in np.argsort(self._numbers).tolist():
                mean = self._sums[slot] / self._rows[slot]
                found.append(
                    ClassMean(self._numbers[slot], int(self._rows[slot]), mean.reshape(SIDE, SIDE, 3))
                )
        return tuple(found)
