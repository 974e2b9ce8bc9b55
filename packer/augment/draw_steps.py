"""The transforms of a pipeline as it draws for them: each with its place, those within RandomApply and RandomChoice too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment.containers import GatedTransforms
from packer.augment.filters import CustomPart
from packer.augment.transform import (
    Draws,
    GeometryPart,
    Shape,
    Transform,
    TransformPart,
    check_no_class,
)
from packer.augment.validation import ParamLayout, check_drawn
from packer.errors import UsageError

EQUAL_SIZES = (
    "RandomResizedCrop(size), Resize((height, width)), LetterBox(size), CenterCrop(size) and RandomCrop(size, pad_if_needed=True) "
    "make them alike"
)


class DrawStep(NamedTuple):
    """A transform of a pipeline, or of a RandomApply or RandomChoice in it.

    place: keys its draws: 3 is the fourth of the list, "3.0" the first within it. gate: what decides for which images, and
    its own place and the transform's number in it.
    """

    transform: Transform
    place: int | str
    gate: tuple[GatedTransforms, int, int] | None

    def sample(
        self,
        rows: NDArray[np.int64],
        seed: int,
        epoch: int,
        shape: Shape,
        counters: NDArray[np.int64] | None = None,
    ) -> dict[str, Tensor]:
        """Draw for rows, int64 [N]: tensors on the CPU. counters: as Draws has them."""
        name = type(self.transform).__name__
        draws = Draws(rows, seed, epoch, self.place, name, counters)
        params = dict(self.transform.sample(draws, shape))
        if "apply" in params:
            raise UsageError(
                f"{name}: sample draws 'apply', which is RandomApply's name. Choose another one."
            )
        if self.gate is not None:
            gated, place, number = self.gate
            draws = Draws(rows, seed, epoch, place, type(gated).__name__, counters)
            params["apply"] = gated.decide(draws, number)
        return {key: torch.from_numpy(np.ascontiguousarray(drawn)) for key, drawn in params.items()}

    def layout(self, shape: Shape) -> ParamLayout:
        """Return the shapes and dtypes of the draws for images of a shape. Raises UsageError unless they have an entry a row."""
        rows, name = np.zeros(2, np.int64), type(self.transform).__name__
        drawn = self.transform.sample(Draws(rows, 0, 0, self.place, name), shape)
        check_drawn(name, drawn, len(rows))
        return {
            key: (tuple(p.shape[1:]), p.numpy().dtype) for key, p in self.sample(rows, 0, 0, shape).items()
        }

    def parts(self, layout: ParamLayout) -> Sequence[TransformPart]:
        """Return the parts of the transform."""
        return (CustomPart(self.transform, layout),) if _has_apply(self.transform) else self.transform.parts()


def steps(transforms: Sequence[Transform]) -> list[DrawStep]:
    """Return the transforms of a pipeline, those within others too. Raises UsageError for what is none."""
    found = []
    for place, transform in enumerate(transforms):
        if isinstance(transform, GatedTransforms):
            for number, inner in enumerate(transform.transforms):
                found.append(DrawStep(_checked(inner), f"{place}.{number}", (transform, place, number)))
        else:
            found.append(DrawStep(_checked(transform), place, None))
    return found


def _checked(transform: Any) -> Transform:
    check_no_class("Pipeline", transform)
    if not isinstance(transform, Transform):
        raise UsageError(
            f"Pipeline: {transform!r} is no transform; those of packer.augment are allowed, and classes derived "
            "from its Transform. Pass such."
        )
    kind = type(transform)
    if kind.parts is Transform.parts and not _has_apply(transform):
        raise UsageError(
            f"{kind.__name__}: it has no apply(images, params); a transform of your own needs one. Add it."
        )
    return transform


def check_any_size(step: DrawStep) -> None:
    """Raise UsageError unless a transform takes images that differ in size."""
    parts = step.transform.parts()
    if (
        step.gate is None
        and parts
        and all(isinstance(part, GeometryPart) and part.any_size for part in parts)
        and not _has_apply(step.transform)
    ):
        return
    name = type(step.transform if step.gate is None else step.gate[0]).__name__
    raise UsageError(
        f"{name}: takes images of one size, and these differ in size; {EQUAL_SIZES}. Put one of them before it."
    )


def check_least(transform: Transform, shape: Any) -> None:
    """Raise UsageError if one of the images is too small for a transform. shape: with heights and widths, int64 [N]."""
    if (found := first_refused(transform, shape)) is not None:
        raise found[1]


def first_refused(transform: Transform, shape: Any) -> tuple[int, UsageError] | None:
    """Return the number of the first image that is too small for a transform, and why; None: there is none. shape: see check_least."""
    channels, heights, widths = shape
    if not len(heights):
        return None
    try:
        transform.output_shape((channels, int(heights.min()), int(widths.min())))
    except UsageError:
        for number, (height, width) in enumerate(zip(heights.tolist(), widths.tolist(), strict=True)):
            try:
                transform.output_shape((channels, height, width))
            except UsageError as error:
                return number, error
    return None


def _has_apply(transform: Transform) -> bool:
    return type(transform).apply is not Transform.apply
