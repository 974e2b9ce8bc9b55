"""Padding of images to a larger size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packer.augment import validation
from packer.augment.geometric import AffinePlacement
from packer.augment.passes import pass_spec
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

    any_size = True

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
        self.padding_mode = validation.padding_mode("Pad", padding_mode)
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
