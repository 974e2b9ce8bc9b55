"""A batch after a pipeline of augmentations, as pictures: the effect of Normalize is undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import Normalize
from packer.augment.annotations import moved_lists
from packer.augment.pass_stages import PreparedDraws
from packer.augment.ragged_images import side_by_side
from packer.format.pack import Pack
from packer.load.augmenting import fit_views, mixed_labels, pipeline_of
from packer.previews.preview_batch import PreviewBatch, shown

if TYPE_CHECKING:
    from packer.load.augmenting import One


class Previewer:
    """Augmented batches of a pack as pictures, with the draws of a PackedBatchDataset of the same seed.

    augment: as PackedBatchDataset takes it, but no mapping. Raises UsageError if it cannot take the pack's images.
    """

    def __init__(self, augment: One, pack: Pack, seed: int) -> None:
        self._classes = len(pack.header.classes or ()) or None
        made = pipeline_of(augment, pack.header)
        fields = [f.loaded for f in pack.fields if f.name in ("image", "label")]
        (self._image,) = (f for f in fields if f.name == "image")
        (fitted,) = fit_views({"image": made}, fields, pack.path, self._classes, ragged="cpu").values()
        self.pipeline = fitted.at(fitted.shape or (0, 0, 0), seed + made.seed)

    @property
    def normalizes(self) -> bool:
        """True if results have to be scaled back to be seen."""
        return any(isinstance(transform, Normalize) for transform in self.pipeline.transforms)

    def __call__(self, batch: PreviewBatch, epoch: int, white: int = 255) -> PreviewBatch:
        """Return the batch as an epoch draws it, without masks, boxes and points that cannot be mixed where images are.

        white: the number of the images that is shown as white.
        """
        pipeline = self.pipeline
        if pipeline.mixes:
            batch = replace(batch, boxes=None, box_label=None, points=None)
            batch = replace(batch, masks={}) if pipeline.blends else batch
        if pipeline.ragged:
            together = side_by_side(batch.images)
            sizes = together.sizes
            drawn = pipeline.prepare(pipeline.sample(batch.rows, epoch, sizes=sizes), sizes=sizes)
            images = pipeline.begin(together, drawn)
        else:
            images = torch.from_numpy(np.stack(batch.images)).permute(0, 3, 1, 2)
            drawn = pipeline.prepare(pipeline.sample(batch.rows, epoch), len(images))
        label, boxes, box_label, points = batch.label, batch.boxes, batch.box_label, batch.points
        if label is not None and pipeline.mixes:
            label = mixed_labels(pipeline, torch.from_numpy(label), drawn, self._classes).numpy()
        if boxes is not None:
            kept, labels = moved_lists(
                [torch.from_numpy(mine) for mine in boxes],
                {} if box_label is None else {"box_label": [torch.from_numpy(mine) for mine in box_label]},
                lambda together: pipeline.apply_boxes(together, drawn),
            )
            boxes = [mine.numpy() for mine in kept]
            box_label = [mine.numpy() for mine in labels["box_label"]] if labels else None
        if points is not None:
            points = pipeline.apply_keypoints(torch.from_numpy(points), drawn).numpy()
        return replace(
            batch,
            images=self._visible(pipeline.apply(images, drawn), white),
            label=label,
            masks={name: list(self._moved(masks, drawn)) for name, masks in batch.masks.items()},
            boxes=boxes,
            box_label=box_label,
            points=points,
        )

    def _moved(self, masks: Sequence[NDArray[np.int32]], drawn: PreparedDraws) -> NDArray[np.int32]:
        """Return masks as the results have them: int32 [N, h, w]."""
        if self.pipeline.ragged:
            alike = torch.empty((len(masks), *self.pipeline.first.result.size), dtype=torch.int32)
            self.pipeline.begin_masks(side_by_side([mask[..., None] for mask in masks]), drawn, alike)
        else:
            alike = torch.from_numpy(np.stack(masks))
        moved: NDArray[np.int32] = self.pipeline.apply_masks(alike, drawn).numpy()
        return moved

    def _visible(self, images: Tensor, white: int) -> list[NDArray[np.uint8]]:
        """Return results as N of uint8 [h, w, C]."""
        if images.dtype.is_floating_point:
            images = images.float()
            for transform in reversed(self.pipeline.transforms):
                if isinstance(transform, Normalize):
                    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (transform.mean, transform.std))
                    images = images * std + mean
                    break
            images = images * self._image.most
            if self._image.most == 255:
                images = images.round().clamp(0, 255).to(torch.uint8)
        return shown(list(images.permute(0, 2, 3, 1).numpy()), self._image, white)
