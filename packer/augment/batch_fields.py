"""A batch of a user's own loop through a pipeline: arrays or tensors, with their annotations."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer import units
from packer.augment.annotations import AnnotationTransforms, Drawn, Given, moved_lists
from packer.errors import UsageError
from packer.given_values import shown


class BatchTransforms(AnnotationTransforms):
    """The part of a pipeline that is called with a batch."""

    @abstractmethod
    def sample(self, rows: NDArray[np.int64] | Tensor, epoch: int = 0, *, seed: int | None = None) -> Drawn:
        """Return the draws for rows of an epoch."""

    @abstractmethod
    def apply(self, images: Tensor, params: Given) -> Tensor:
        """Apply draws to images [N, C, H, W]."""

    @abstractmethod
    def _check(self, images: Tensor) -> None:
        """Raise UsageError for images of another format."""

    def __call__(
        self,
        batch: Any,
        rows: NDArray[np.int64] | Tensor | None = None,
        epoch: int = 0,
        *,
        seed: int | None = None,
    ) -> Any:
        """Draw for a batch of your own loop and apply the draws; return what was given, augmented.

        batch: images, a tensor on any device or an array, [N, C, H, W] or [N, H, W, C]. Or a dict of them as
            "image", with masks or soft maps (integers or floats, any name) [N, H, W], [N, K, H, W] or
            [N, H, W, K], "boxes" (N tensors or arrays [k, 4], or [N, K, 4]) and "box_..." with an entry for each box,
            "keypoints" [N, K, 2], "label". Texts, and other fields of a number a row, come back unchanged;
            any other array is an error.
        rows: integers [N], the images' row numbers; None: their places in the batch, with a seed.
        epoch, seed: of the draws; a loop without row numbers passes another seed for each batch.
        Returns the same kind, layout and keys; images in the pipeline's dtype.
        Raises UsageError if the batch does not fit the pipeline.
        """
        self._check_shape()
        fields = batch if isinstance(batch, Mapping) else {"image": batch}
        if not isinstance(fields.get("image"), Tensor | np.ndarray):
            raise UsageError(
                f"Pipeline: the batch is {shown(batch)}; images [N, H, W, C] or [N, C, H, W], a tensor or an"
                " array, are allowed, alone or as the field 'image' of a dict. Pass those."
            )
        if rows is None and seed is None:
            raise UsageError(
                "Pipeline: neither rows nor seed is given, so all batches would get the same draws. Pass"
                " another seed for each batch, such as the step's number, or the rows' numbers and the epoch."
            )
        images = _tensor(fields["image"])
        channels, *size = self.shape
        last = images.shape[1:] == (*size, channels) and images.shape[1:] != (channels, *size)
        images = images.permute(0, 3, 1, 2) if last else images
        self._check(images)
        for name, values in fields.items():
            self._check_field(name, values, len(images))
        numbers = np.arange(len(images)) if rows is None else rows
        params = self.prepare(self.sample(numbers, epoch, seed=seed), len(images))
        augmented = self.apply(images, params)
        made = {"image": _alike(augmented.permute(0, 2, 3, 1) if last else augmented, fields["image"])}
        if isinstance(fields.get("boxes"), list | tuple):
            made |= self._moved_lists(fields, params)
        for name in fields.keys() - made.keys():
            made[name] = self._moved_field(name, fields[name], params)
        return {name: made[name] for name in fields} if isinstance(batch, Mapping) else made["image"]

    def _check_field(self, name: str, values: Any, count: int) -> None:
        """Raise UsageError for a field of other rows, or that may belong to the images' pixels."""
        known = True
        if isinstance(values, list | tuple):
            nested = any(isinstance(one, list | tuple | Tensor | np.ndarray) for one in values)
            known = not nested or name == "boxes" or name.startswith("box_")
        elif isinstance(values, Tensor | np.ndarray) and values.ndim:
            named = name in ("image", "boxes", "keypoints", "label") or name.startswith("box_")
            known = values.ndim < 2 or named or self._layers(values) is not None
        else:
            return
        if len(values) != count:
            raise UsageError(
                f"Pipeline: {name!r} has {units.count(len(values), 'row')} and there are {count} images; as"
                " many are allowed. Pass those of the batch."
            )
        if name == "label" and self.mixes and not isinstance(values, Tensor | np.ndarray):
            raise UsageError(
                f"Pipeline: 'label' is {shown(values)}, and the pipeline mixes labels; a tensor or an array is"
                " allowed. Pass torch.tensor(label)."
            )
        if known:
            return
        height, width = self.shape[1:]
        raise UsageError(
            f"Pipeline: whether {name!r} moves with the images is not known. Boxes are called 'boxes', their"
            f" fields 'box_...', points 'keypoints'; masks and maps have the images' size, [N, {height},"
            f" {width}]. Rename it, or leave it out of the dict."
        )

    def _layers(self, values: Tensor | NDArray[Any]) -> int | None:
        """Return the axis of the height of masks or maps of the images' size; None for another shape."""
        size, shape = tuple(self.shape[1:]), tuple(values.shape)
        if len(shape) in (3, 4) and shape[-2:] == size:
            return len(shape) - 2
        return 1 if len(shape) == 4 and shape[1:3] == size else None

    def _moved_lists(self, fields: Mapping[str, Any], params: Given) -> dict[str, Any]:
        """Return lists of boxes, and the fields box_..., without boxes of which nothing is left."""
        boxes = fields["boxes"]
        others = {name: each for name, each in fields.items() if name.startswith("box_")}
        given = [_tensor(each) for each in boxes]
        beside = {name: [_tensor(each) for each in rows] for name, rows in others.items()}
        moved, kept = moved_lists(given, beside, lambda padded: self.apply_boxes(padded, params))
        return {
            name: [_alike(a, b) for a, b in zip(found, fields[name], strict=True)]
            for name, found in {"boxes": moved, **kept}.items()
        }

    def _moved_field(self, name: str, values: Any, params: Given) -> Any:
        """Return a field of the batch as it follows the images; itself if it does not."""
        if not isinstance(values, Tensor | np.ndarray):
            return values
        given, axis = _tensor(values), self._layers(values)
        layers = self.apply_soft if given.is_floating_point() else self.apply_masks
        if name == "boxes":
            found = self.apply_boxes(given, params)
        elif name == "keypoints":
            found = self.apply_keypoints(given, params)
        elif axis is not None and axis == given.ndim - 2:
            found = layers(given, params)
        elif axis is not None:
            found = layers(given.permute(0, 3, 1, 2), params).permute(0, 2, 3, 1)
        elif name == "label":
            found = self.apply_labels(given, params)
        else:
            return values
        return _alike(found, values)


def _alike(found: Tensor, given: Tensor | NDArray[Any]) -> Tensor | NDArray[Any]:
    """Return a result as an array if one was given."""
    return found.numpy() if isinstance(given, np.ndarray) else found


def _tensor(values: Tensor | NDArray[Any]) -> Tensor:
    """Return a tensor, of an array's own memory unless torch does not take it: read-only, or mirrored."""
    if isinstance(values, Tensor):
        return values
    array = np.require(values, None, ["C", "W"])
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"Pipeline: {shown(values)} is in the batch; images, boxes and their fields box_... hold numbers."
            " Rename the field, or leave it out of the dict."
        )
    return torch.from_numpy(array)
