"""Rectangles cut from images, as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from packer.augment import checks
from packer.augment.draws import Draws
from packer.augment.passes.spec import Outside
from packer.augment.placement import Placement
from packer.augment.transform import Geometry, Params, Shape, Single
from packer.errors import UsageError


class RandomCrop(Single, Geometry):
    """Cut one rectangle from each image, all places equally likely, as torchvision.transforms.v2.RandomCrop.

    size: side in pixels, or (height, width).
    padding: pixels added first: on all sides, or (left and right, top and bottom), or (left, top, right, bottom).
    padding_mode: "constant" adds pixels of value `fill`, "edge" repeats the border, "reflect" mirrors at it (without
        repeating it, so each side gets fewer pixels than the image has).
    fill: one number or one a channel, in the images' own scale, so 0 to 255 for uint8.

    There is no pad_if_needed: images of a pack are of one size.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        *,
        padding_mode: str = "constant",
        fill: float | Sequence[float] = 0,
    ) -> None:
        self.height, self.width = checks.sides("RandomCrop", "size", size)
        self.left, self.top, self.right, self.bottom = checks.margins("RandomCrop", "padding", padding)
        self.padding_mode = checks.one_of(
            "RandomCrop", "padding_mode", padding_mode, ("constant", "edge", "reflect")
        )
        self.fill = checks.colour("RandomCrop", "fill", fill)
        self._padded = any((self.left, self.top, self.right, self.bottom))
        if self._padded:
            self.outside = cast(Outside, "fill" if self.padding_mode == "constant" else self.padding_mode)

    def check(self, shape: Shape) -> Shape:
        """Return (C, height, width) of the crop; raises UsageError if it does not fit such images."""
        channels, height, width = shape
        if self.padding_mode == "reflect" and (
            max(self.top, self.bottom) >= height or max(self.left, self.right) >= width
        ):
            raise UsageError(
                f"RandomCrop: padding is {(self.left, self.top, self.right, self.bottom)} and the images are "
                f"{height}x{width}; reflect allows less than their height and width. "
                "Pad less, or with padding_mode='edge'."
            )
        height, width = height + self.top + self.bottom, width + self.left + self.right
        if self.height > height or self.width > width:
            padded = "with their padding " if self._padded else ""
            raise UsageError(
                f"RandomCrop: size is {self.height}x{self.width} and the images are {padded}{height}x{width}; "
                f"up to {height}x{width} is allowed. Pass a smaller size, or more padding."
            )
        return channels, self.height, self.width

    def sample(self, draws: Draws, shape: Shape) -> Params:
        """Draw top and left, where the crop lies in the padded image: int64 [N] each."""
        _, height, width = shape
        return {
            "top": draws.integers("top", height + self.top + self.bottom - self.height + 1),
            "left": draws.integers("left", width + self.left + self.right - self.width + 1),
        }

    def place(self, placement: Placement, params: Params) -> None:
        """Cut at the drawn corners."""
        if self.outside == "fill":
            placement.see_outside()
        left, top = params["left"] - self.left, params["top"] - self.top
        continued = self.outside in ("edge", "reflect")
        placement.cut(left, top, (self.height, self.width), read_only=not continued)
        if continued:
            placement.continue_outside()


class CenterCrop(Single, Geometry):
    """Cut the middle of each image, as torchvision.transforms.v2.CenterCrop, without its padding of smaller images.

    size: side in pixels, or (height, width). Where the middle lies between two pixels, the rest is rounded to even.
    """

    def __init__(self, size: int | Sequence[int]) -> None:
        self.height, self.width = checks.sides("CenterCrop", "size", size)

    def check(self, shape: Shape) -> Shape:
        """Return (C, height, width) of the crop; raises UsageError if it does not fit such images."""
        channels, height, width = shape
        if self.height > height or self.width > width:
            raise UsageError(
                f"CenterCrop: size is {self.height}x{self.width} and the images are {height}x{width}; "
                f"up to {height}x{width} is allowed. Pass a smaller size, or Resize first."
            )
        return channels, self.height, self.width

    def place(self, placement: Placement, params: Params) -> None:
        """Cut the middle."""
        height, width = placement.size
        top, left = round((height - self.height) / 2), round((width - self.width) / 2)
        placement.cut(left, top, (self.height, self.width))
