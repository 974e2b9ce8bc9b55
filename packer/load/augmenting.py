"""Pipelines of augmentations at work on batches: drawn by row, applied on the device, to all fields that belong to the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer import randomness
from packer.augment.boxes import moved_lists
from packer.format.header import Field
from packer.load.batch import batch_type
from packer.load.caches.indexed_rows import IndexedRows
from packer.load.slots import Slots, allocate
from packer.read.loaded_fields import is_mask

if TYPE_CHECKING:
    from packer.augment import Pipeline
    from packer.augment.prepared import Prepared

    Draws = tuple[Prepared, ...]


class Augmenter:
    """Draws for rows, makes each view of their images, and moves what belongs to them. Thread-safe in `draw`.

    views: pipelines for the images, by the fields that stand for "image" in the batches; masks, boxes, points and labels go
    with the first. fields: that are loaded. num_classes: of labels that are mixed. rows: at most in a batch. spare: batches
    at hand.
    """

    def __init__(
        self,
        views: Mapping[str, Pipeline],
        fields: Sequence[Field],
        num_classes: int | None,
        rows: int,
        spare: int,
    ) -> None:
        self._views = {name: _ImageView(pipeline, rows, spare) for name, pipeline in views.items()}
        self._pipeline, self._num_classes = next(iter(views.values())), num_classes
        self._names = tuple(name for f in fields for name in (views if f.name == "image" else (f.name,)))
        self._type: Any = batch_type(self._names)
        named = {f.name: f for f in fields}
        _, height, width = self._pipeline.shape or (0, 0, 0)
        self._masks = [f.name for f in fields if is_mask(f, (height, width))]
        self._boxes = "boxes" in named and named["boxes"].about.get("row_shape") == [4]
        self._box_label = self._boxes and "box_label" in named
        points = named.get("keypoints")
        self._points = points is not None and (points.shape or ())[1:] == (2,) and points.dtype[1] == "f"
        self._label = "label" in named and not named["label"].ragged and self._pipeline.mixes

    def draw(self, rows: NDArray[np.int64], seed: int, epoch: int) -> Draws:
        """What each pipeline needs for these rows of the pack.

        Its own seed is added to this one; views but the first draw by a key of that sum and their number.
        """
        return tuple(
            view.pipeline.prepare(
                view.pipeline.sample(rows, epoch, seed=seed_of(seed + view.pipeline.seed, number)), len(rows)
            )
            for number, view in enumerate(self._views.values())
        )

    def apply(self, batch: Any, draws: Draws, first: int) -> Any:
        """The batch, augmented; its draws begin at number `first` of these."""
        image = batch.image
        where = image.field if isinstance(image, IndexedRows) else image
        count = len(image.rows) if isinstance(image, IndexedRows) else len(image)
        for drawn in draws:
            drawn.on(where.device)  # of all batches of a portion in one copy
        each = [drawn[first : first + count] for drawn in draws]
        made: dict[str, Any] = {
            name: view.images(image, mine)
            for (name, view), mine in zip(self._views.items(), each, strict=True)
        }
        mine = each[0]
        for name in self._masks:
            made[name] = self._pipeline.apply_masks(getattr(batch, name), mine)
        if self._points:
            made["keypoints"] = self._pipeline.apply_keypoints(batch.keypoints, mine)
        if self._boxes:
            labels = batch.box_label if self._box_label else None
            made["boxes"], labels = moved_lists(
                batch.boxes, labels, lambda boxes: self._pipeline.apply_boxes(boxes, mine)
            )
            if labels is not None:
                made["box_label"] = labels
        if self._label:
            made["label"] = mixed_labels(self._pipeline, batch.label, mine, self._num_classes)
        return self._type._make(made[name] if name in made else getattr(batch, name) for name in self._names)


class _ImageView:
    """One pipeline and, on the CPU, the memory of its results, used again: half the time of new memory."""

    def __init__(self, pipeline: Pipeline, rows: int, spare: int) -> None:
        self.pipeline, self._rows, self._spare = pipeline, rows, spare
        self._slots: Slots | None = None

    def images(self, image: torch.Tensor | IndexedRows, draws: Prepared) -> torch.Tensor:
        """The augmented images of a batch."""
        pipeline = self.pipeline
        if isinstance(image, IndexedRows):
            return pipeline.apply(image.field, draws, rows=image.rows)
        if image.device.type != "cpu" or pipeline.mixes or not pipeline.transforms:
            return pipeline.apply(image, draws)
        channels, height, width = pipeline.output_shape
        dtype = pipeline.output_dtype
        row_bytes = channels * height * width * dtype.itemsize
        if self._slots is None:
            self._slots = Slots(row_bytes * self._rows, allocate, self._spare)
        memory = torch.from_numpy(self._slots.lend())[: len(image) * row_bytes]
        out = memory.view(dtype).view(len(image), height, width, channels).permute(0, 3, 1, 2)
        return pipeline.apply(image, draws, out=out)


def mixed_labels(
    pipeline: Pipeline, labels: torch.Tensor, draws: Prepared, num_classes: int | None
) -> torch.Tensor:
    """Labels mixed as the images: classes [N] as shares float32 [N, classes]; numbers float [N] or [N, K] as such."""
    if labels.ndim == 1 and labels.is_floating_point():
        return pipeline.apply_labels(labels[:, None], draws)[:, 0]
    return pipeline.apply_labels(labels, draws, num_classes)


def seed_of(seed: int, view: int) -> int:
    """The seed of a view's draws. Added up, two views of neighbouring seeds would draw alike."""
    return randomness.key(seed, "view", view) if view else seed
