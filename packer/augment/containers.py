"""Operations of which some images are spared: image by image, as drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from packer.augment import validation
from packer.augment.transform import Draws, ScalePart, Shape, Transform, TransformPart, check_transform
from packer.augment.validation import Parameter
from packer.errors import UsageError

Transforms: TypeAlias = Parameter[Sequence[Transform], tuple[Transform, ...]]


def _listed(name: str, what: str, value: Any) -> tuple[Transform, ...]:
    """Return transforms that can be left out for an image."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UsageError(f"{name}: {what} is {value!r}; a list of transforms is allowed. Put it in brackets.")
    for transform in value:
        if isinstance(check_transform(name, transform), GatedTransforms | ScalePart):
            raise UsageError(
                f"{name}: {transform!r} is among the transforms; those that can be left out for an image are "
                "allowed, not ToDtype, Normalize, RandomApply or RandomChoice. Put it outside."
            )
    return tuple(value)


class GatedTransforms(Transform, ABC):
    """Transforms that keep the images' size, each applied to some images only."""

    transforms: Transforms

    @abstractmethod
    def decide(self, draws: Draws, number: int) -> NDArray[np.bool_]:
        """Return the rows that get transform `number`: bool [N]."""

    def output_shape(self, shape: Shape) -> Shape:
        for transform in self.transforms:
            made = transform.output_shape(shape)
            if made != shape:
                raise UsageError(
                    f"{type(self).__name__}: {type(transform).__name__} makes images {list(made)} of {list(shape)}; "
                    "transforms that keep the size are allowed. Put it outside."
                )
        return shape

    def parts(self) -> Sequence[TransformPart]:
        return [part for transform in self.transforms for part in transform.parts()]


@dataclass(eq=False)
class RandomApply(GatedTransforms):
    """Apply all of these transforms to an image, or none, as torchvision.transforms.v2.RandomApply, but image by image.

    transforms: that keep the images' size; neither ToDtype nor Normalize. p: 0 <= p <= 1.
    """

    transforms: Transforms = Parameter(_listed)
    p: validation.Number = Parameter(validation.number, 0.5, 0, 1)

    def decide(self, draws: Draws, number: int) -> NDArray[np.bool_]:
        return draws.happens("apply", self.p)


def _shares(name: str, what: str, value: Any) -> tuple[float, ...]:
    """Return a number a transform."""
    if not isinstance(value, Sequence):
        raise UsageError(
            f"{name}: {what} is {value!r}; a list of numbers, one a transform, is allowed. Pass such."
        )
    return tuple(validation.number(name, what, share, 0, 1e9) for share in value)


@dataclass(eq=False)
class RandomChoice(GatedTransforms):
    """Apply one of these transforms to each image, as torchvision.transforms.v2.RandomChoice, but image by image.

    transforms: as RandomApply's, MixUp and CutMix among them. p: how likely each is, numbers from 0 up; alike if None.
    """

    transforms: Transforms = Parameter(_listed)
    p: Any = Parameter(_shares, None)

    def __post_init__(self) -> None:
        if not self.transforms:
            raise UsageError("RandomChoice: there are no transforms; at least one is needed. Pass some.")
        if self.p is not None and (len(self.p) != len(self.transforms) or not sum(self.p)):
            raise UsageError(
                f"RandomChoice: p is {list(self.p)} for {len(self.transforms)} transforms; one number each, not all 0, is "
                "allowed. Pass as many."
            )

    def decide(self, draws: Draws, number: int) -> NDArray[np.bool_]:
        shares = np.cumsum(self.p or (1.0,) * len(self.transforms))
        drawn: NDArray[np.bool_] = (
            np.searchsorted(shares / shares[-1], draws.uniform("choice"), "right") == number
        )
        return drawn
