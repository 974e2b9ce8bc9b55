"""Operations of which some images are spared."""

from __future__ import annotations

from collections.abc import Sequence

from packer.augment import checks
from packer.augment.transform import Mix, Part, Scale, Shape, Transform
from packer.errors import UsageError


class RandomApply(Transform):
    """Apply all of these transforms to an image, or none, as torchvision.transforms.v2.RandomApply, but image by image.

    transforms: that keep the images' size. p: 0 <= p <= 1.
    """

    def __init__(self, transforms: Sequence[Transform], p: float = 0.5) -> None:
        self.transforms = tuple(transforms)
        self.p = checks.probability("RandomApply", p)
        for transform in self.transforms:
            if not isinstance(transform, Transform) or isinstance(transform, RandomApply | Mix | Scale):
                raise UsageError(
                    f"RandomApply: {transform!r} is among the transforms; those that can be left out for an image are "
                    "allowed, not ToDtype, Normalize, MixUp, CutMix or another RandomApply. Put it outside."
                )

    def output_shape(self, shape: Shape) -> Shape:
        """Return the shape as it is; raises UsageError if a transform would change it."""
        for transform in self.transforms:
            made = transform.output_shape(shape)
            if made != shape:
                raise UsageError(
                    f"RandomApply: {type(transform).__name__} makes images {list(made)} of {list(shape)}; transforms "
                    "that keep the size are allowed. Put it outside."
                )
        return shape

    def parts(self) -> Sequence[Part]:
        """Those of all transforms."""
        return [part for transform in self.transforms for part in transform.parts()]
