"""A batch after a pipeline of augmentations, as pictures again: what Normalize did is undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import Normalize, Pipeline, Transform, parse
from packer.errors import UsageError
from packer.previews.rows import Batch


class Augmenter:
    """A pipeline for images of one shape.

    augment: transforms, a pipeline of them, or a text that names them. shape: (H, W, C). statistics: the pack's mean and std, for
    ``Normalize()``. classes: how many there are, for mixing; None: not known. Raises UsageError if the transforms cannot take such images.
    """

    def __init__(
        self,
        augment: str | Sequence[Transform] | Pipeline,
        shape: tuple[int, ...],
        seed: int,
        statistics: dict[str, list[float]],
        classes: int | None,
    ) -> None:
        if isinstance(augment, str):
            augment = parse(augment, statistics.get("mean"), statistics.get("std"))
        height, width, channels = shape
        pipeline = augment if isinstance(augment, Pipeline) else Pipeline(augment)
        self.pipeline = pipeline.at((channels, height, width), seed)
        self._classes = classes

    @property
    def size(self) -> tuple[int, int]:
        """(h, w) of the results."""
        return self.pipeline.output_shape[1:]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the transforms."""
        return tuple(type(transform).__name__ for transform in self.pipeline.transforms)

    @property
    def stages(self) -> int:
        """What the transforms became."""
        return self.pipeline.stages

    @property
    def passes(self) -> int:
        """Stages that are one pass over the pixels."""
        return self.pipeline.passes

    @property
    def normalizes(self) -> bool:
        """Whether results have to be scaled back to be seen."""
        return any(isinstance(transform, Normalize) for transform in self.pipeline.transforms)

    def __call__(self, batch: Batch, epoch: int) -> Batch:
        """What the network gets of a batch in an epoch."""
        pipeline = self.pipeline
        images = torch.from_numpy(np.stack(batch.images)).permute(0, 3, 1, 2)
        drawn = pipeline.prepare(pipeline.sample(batch.rows, epoch), len(images))
        label, boxes, box_label, points = batch.label, batch.boxes, batch.box_label, batch.points
        if label is not None and pipeline.mixes:
            label = self._mixed(label, drawn)
        if boxes is not None:
            boxes, box_label = self._boxes(boxes, box_label, drawn)
        if points is not None:
            points = pipeline.apply_keypoints(torch.from_numpy(points), drawn).numpy()
        return replace(
            batch,
            images=self._visible(pipeline.apply(images, drawn)),
            label=label,
            masks={
                name: pipeline.apply_masks(torch.from_numpy(masks), drawn).numpy()
                for name, masks in batch.masks.items()
            },
            boxes=boxes,
            box_label=box_label,
            points=points,
        )

    def _visible(self, images: Tensor) -> list[NDArray[np.uint8]]:
        """Results as N of uint8 [h, w, C]."""
        if images.dtype != torch.uint8:
            images = images.float()
            for transform in reversed(self.pipeline.transforms):
                if isinstance(transform, Normalize):
                    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (transform.mean, transform.std))
                    images = images * std + mean
                    break
            images = (images * 255).round().clamp(0, 255).to(torch.uint8)
        return list(images.permute(0, 2, 3, 1).numpy())

    def _mixed(self, label: NDArray[Any], drawn: Any) -> NDArray[Any]:
        """Labels [N] or [N, K] as shares [N, K]; numbers that are no classes are mixed as such."""
        pipeline = self.pipeline
        if label.ndim == 1 and label.dtype.kind == "f":
            return pipeline.apply_labels(torch.from_numpy(label[:, None]).float(), drawn).numpy()[:, 0]
        if label.ndim == 2:
            return pipeline.apply_labels(torch.from_numpy(label.astype(np.float32)), drawn).numpy()
        classes = pipeline.num_classes or self._classes
        if classes is not None and len(label) and not 0 <= label.min() <= label.max() < classes:
            raise UsageError(
                f"augment: labels go from {label.min()} to {label.max()} and num_classes is {classes}; 0 to "
                f"{classes - 1} is allowed. Pass num_classes={int(label.max()) + 1}."
            )
        return pipeline.apply_labels(torch.from_numpy(label.astype(np.int64)), drawn, classes).numpy()

    def _boxes(
        self, boxes: list[NDArray[np.float32]], box_label: list[NDArray[np.int64]] | None, drawn: Any
    ) -> tuple[list[NDArray[np.float32]], list[NDArray[np.int64]] | None]:
        """Moved boxes, without those of which nothing is seen any more."""
        padded = np.zeros((len(boxes), max(1, *map(len, boxes)), 4), np.float32)
        for row, mine in zip(padded, boxes, strict=True):
            row[: len(mine)] = mine
        moved = self.pipeline.apply_boxes(torch.from_numpy(padded), drawn).numpy()
        seen = ((moved[..., 2:] - moved[..., :2]) > 0).all(axis=-1)
        kept = [
            row[: len(mine)][keep[: len(mine)]] for row, mine, keep in zip(moved, boxes, seen, strict=True)
        ]
        if box_label is None:
            return kept, None
        return kept, [mine[keep[: len(mine)]] for mine, keep in zip(box_label, seen, strict=True)]
