"""A pipeline of augmentations at work on batches: drawn by row, applied on the device, to all fields that belong to the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from packer.format.header import Field
from packer.load.places.chosen import Chosen
from packer.load.slots import Slots, allocate

if TYPE_CHECKING:
    from packer.augment.pipeline import Pipeline, Prepared


class Augmenter:
    """Draws for rows and augments their images, masks, boxes, points and labels. Thread-safe in `draw`.

    pipeline: for images of their shape. fields: that are loaded. num_classes: of labels that are mixed. rows: at most in a
    batch. spare: batches at hand.
    """

    def __init__(
        self, pipeline: Pipeline, fields: Sequence[Field], num_classes: int | None, rows: int, spare: int
    ) -> None:
        self._pipeline, self._num_classes = pipeline, num_classes
        self._masks = [f.name for f in fields if is_mask(f, pipeline.shape)]
        named = {f.name: f for f in fields}
        self._boxes = "boxes" in named and named["boxes"].about.get("row_shape") == [4]
        self._box_label = self._boxes and "box_label" in named
        points = named.get("keypoints")
        self._points = points is not None and points.shape is not None and points.shape[-1:] == (2,)
        self._label = "label" in named and not named["label"].ragged and pipeline.mixes
        self._rows, self._spare = rows, spare
        self._slots: Slots | None = None

    def draw(self, rows: NDArray[np.int64], seed: int, epoch: int) -> Prepared:
        """What the pipeline needs for these rows of the pack."""
        return self._pipeline.prepare(self._pipeline.sample(rows, epoch, seed=seed), len(rows))

    def apply(self, batch: Any, draws: Prepared, first: int) -> Any:
        """The batch, augmented; its draws begin at number `first` of these."""
        image = batch.image
        where = image.field if isinstance(image, Chosen) else image
        count = len(image.rows) if isinstance(image, Chosen) else len(image)
        draws.on(where.device)  # of all batches of a portion in one copy
        mine = draws[first : first + count]
        made: dict[str, Any] = {"image": self._images(image, mine)}
        for name in self._masks:
            made[name] = self._pipeline.apply_masks(getattr(batch, name), mine)
        if self._points:
            made["keypoints"] = self._pipeline.apply_keypoints(batch.keypoints, mine)
        if self._boxes:
            made |= self._move_boxes(batch, mine)
        if self._label:
            made["label"] = self._pipeline.apply_labels(batch.label, mine, self._num_classes)
        return batch._replace(**made)

    def _images(self, image: torch.Tensor | Chosen, draws: Prepared) -> torch.Tensor:
        """On the CPU in memory used before: half the time of new memory."""
        if isinstance(image, Chosen):
            return self._pipeline.apply(image.field, draws, rows=image.rows)
        if image.device.type != "cpu" or self._pipeline.mixes or not self._pipeline.transforms:
            return self._pipeline.apply(image, draws)
        channels, height, width = self._pipeline.output_shape
        dtype = self._pipeline.output_dtype
        row_bytes = channels * height * width * dtype.itemsize
        if self._slots is None:
            self._slots = Slots(row_bytes * self._rows, allocate, self._spare)
        memory = torch.from_numpy(self._slots.lend())[: len(image) * row_bytes]
        out = memory.view(dtype).view(len(image), height, width, channels).permute(0, 3, 1, 2)
        return self._pipeline.apply(image, draws, out=out)

    def _move_boxes(self, batch: Any, draws: Prepared) -> dict[str, Any]:
        """Boxes [k, 4] of each image; those of which nothing is seen are left out, and their labels."""
        most = max((len(boxes) for boxes in batch.boxes), default=0)
        together = torch.zeros(len(batch.boxes), most, 4)
        for row, boxes in zip(together, batch.boxes, strict=True):
            row[: len(boxes)] = boxes
        moved = self._pipeline.apply_boxes(together, draws)
        seen = ((moved[..., 2:] > moved[..., :2]).all(dim=-1)).unbind()
        counts = [len(boxes) for boxes in batch.boxes]
        keep = [each[:count] for each, count in zip(seen, counts, strict=True)]
        made = {"boxes": [row[: len(k)][k] for row, k in zip(moved, keep, strict=True)]}
        if self._box_label:
            made["box_label"] = [labels[k] for labels, k in zip(batch.box_label, keep, strict=True)]
        return made


def is_mask(field: Field, shape: tuple[int, ...] | None) -> bool:
    """Whether a field holds a mask, of the size of images (C, H, W)."""
    return (
        shape is not None
        and field.shape is not None
        and field.about.get("sampling") == "nearest"
        and tuple(field.shape[:2]) == tuple(shape[1:])
        and len(field.shape) in (2, 3)
    )
