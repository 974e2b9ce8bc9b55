"""Padding of images: by margins, or to a size that all have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from packer.augment import validation
from packer.augment.geometric import AffinePlacement, resize_sampling
from packer.augment.passes import pass_spec
from packer.augment.passes.pass_spec import Outside
from packer.augment.transform import GeometryPart, Params, Shape, SinglePartTransform
from packer.errors import UsageError


class Pad(SinglePartTransform, GeometryPart):
    """Add pixels on all sides of each image, as torchvision.transforms.v2.Pad.

    padding: pixels: on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
    fill: of padding_mode "constant": one number or one a channel, in the images' own scale; masks get the pipeline's
        mask_fill.
    padding_mode: "constant", or what continues the image: "edge" repeats the border, "reflect" mirrors at it (without
        repeating it, so each side gets fewer pixels than the image has), "symmetric" mirrors and repeats it. Masks are
        continued alike; boxes and points are not mirrored.
    """

    def __init__(
        self,
        padding: int | Sequence[int],
        fill: float | Sequence[float] = 0,
        padding_mode: str = "constant",
    ) -> None:
        if padding is None:
            raise UsageError(
                "Pad: padding is None; one, two or four whole numbers from 0 up are allowed. "
                "Pass (left, top, right, bottom)."
            )
        self.padding = validation.margins("Pad", "padding", padding)
        self.fill = validation.colour("Pad", "fill", fill)
        self.padding_mode = validation.one_of("Pad", "padding_mode", padding_mode, tuple(pass_spec.OUTSIDES))
        self.outside = pass_spec.OUTSIDES[self.padding_mode] if any(self.padding) else None

    def check(self, shape: Shape) -> Shape:
        channels, height, width = shape
        validation.check_padding("Pad", self.padding, self.padding_mode, height, width)
        return (channels, *self._size(height, width))

    def place(self, placement: AffinePlacement, params: Params) -> None:
        left, top, _, _ = self.padding
        placement.cut_padded(-left, -top, self._size(*placement.size), self.outside)

    def _size(self, height: Any, width: Any) -> tuple[Any, Any]:
        left, top, right, bottom = self.padding
        return height + top + bottom, width + left + right


class LetterBox(SinglePartTransform, GeometryPart):
    """Resize each image to fit into a size, its proportion kept, and pad the rest: Ultralytics' LetterBox with auto=False.

    size: side in pixels, or (height, width), of the result. fill: of the padding, one number or one a channel, in the images' own
    scale; masks get the pipeline's mask_fill. scaleup: enlarge images that are smaller. center: the image in the middle, the rest
    rounded down to the left and the top; else in the top left corner. interpolation: "bilinear", "bicubic" (Pillow's, a = -0.5) or
    "nearest". antialias: widen the filter when it shrinks, which Ultralytics does not.
    """

    outside: Outside | None = "fill"

    def __init__(
        self,
        size: int | Sequence[int],
        fill: float | Sequence[float] = 114,
        *,
        scaleup: bool = True,
        center: bool = True,
        interpolation: str = "bilinear",
        antialias: bool = True,
    ) -> None:
        self.size = validation.sides("LetterBox", "size", size)
        self.fill = validation.colour("LetterBox", "fill", fill)
        self.scaleup = validation.flag("LetterBox", "scaleup", scaleup)
        self.center = validation.flag("LetterBox", "center", center)
        self.interpolation, self.sampling = resize_sampling("LetterBox", interpolation, antialias)
        self.antialias = validation.flag("LetterBox", "antialias", antialias)

    def check(self, shape: Shape) -> Shape:
        return (shape[0], *self.size)

    def place(self, placement: AffinePlacement, params: Params) -> None:
        height, width = placement.size
        factor = np.minimum(self.size[0] / height, self.size[1] / width)
        if not self.scaleup:
            factor = np.minimum(factor, 1)
        down, across = (np.maximum(np.rint(side * factor), 1) for side in (height, width))
        nothing, antialias = np.zeros(len(placement)), bool(self.antialias)
        placement.stretch(
            nothing, nothing, nothing + width, nothing + height, (down, across), antialias, self.sampling
        )
        top, left = ((self.size[0] - down) // 2, (self.size[1] - across) // 2) if self.center else (0, 0)
        placement.cut_padded(-left, -top, self.size, self.outside)
