"""Where pixels go: flips and crops, as passes over whole rows of pixels in NHWC memory.

Images are logical [N, C, H, W] with channels_last strides, so that one row of pixels is W * C numbers on end.
Other strides work too, at the price of a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer import randomness
from packer.errors import UsageError


class RandomHorizontalFlip:
    """Mirror each image left to right with probability p, as torchvision.transforms.v2.RandomHorizontalFlip.

    p: 0 <= p <= 1.

    Measured on 2 cores of a Xeon: 33,000 images/s of 256 px, 1.4 million of 32 px (in the cache). It flips
    all and then picks images as 64-bit words: `torch.where` on single bytes took 4 times as long, an index
    for each pixel 6 times, a loop over the flipped images half as long at 256 px, 4 times as long at 32 px.
    """

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise UsageError(f"RandomHorizontalFlip: p is {p}; 0 to 1 is allowed. Pass a probability.")
        self.p = p

    def output_shape(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the shape as it is."""
        return shape

    def sample(
        self, rows: NDArray[np.int64], key: int, shape: tuple[int, int, int]
    ) -> dict[str, NDArray[Any]]:
        """Draw flip: bool [N]."""
        return {"flip": randomness.uniform(rows, key) < self.p}

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Mirror the images whose flip is true; any dtype."""
        pixels = _pixels_last(images)
        flipped = _pixels_last(images.flip(-1))
        word = _word(pixels)
        words = flipped.flatten(1).view(word)
        torch.where(params["flip"][:, None], words, pixels.flatten(1).view(word), out=words)
        return flipped.permute(0, 3, 1, 2)


class RandomCrop:
    """Cut one rectangle from each image, all places equally likely.

    As torchvision.transforms.v2.RandomCrop, without pad_if_needed.

    size: side in pixels, or (height, width).
    padding: pixels added first: on all sides, or (left and right, top and bottom), or
        (left, top, right, bottom).
    padding_mode: "constant" adds pixels of value `fill`, "edge" repeats the border, "reflect" mirrors at it
        (without repeating it, so each side gets fewer pixels than the image has).
    fill: in the images' own scale, so 0 to 255 for uint8.

    Measured on 2 cores of a Xeon: 96,000 images/s from 256 to 224 px, 5 million from 32 to 28 px (in the
    cache). A row of a crop is one copy of width * C numbers: the images are seen as all such stretches of
    memory, overlapping, and `index_select` takes those that begin where a crop's row begins. Unfolded windows
    took 2 to 5 times as long, an index for each pixel 9 to 30 times, a loop over the images 5 times at 32 px.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        padding: int | Sequence[int] | None = None,
        *,
        padding_mode: str = "constant",
        fill: float = 0,
    ) -> None:
        if padding_mode not in ("constant", "reflect", "edge"):
            raise UsageError(
                f"RandomCrop: padding_mode is {padding_mode!r}; constant, reflect and edge are allowed. "
                "Pass one of them."
            )
        sides = (size, size) if isinstance(size, int) else tuple(size)
        if len(sides) != 2 or min(sides) < 1:
            raise UsageError(
                f"RandomCrop: size is {size}; a whole number from 1 up, or two (height, width), are allowed. "
                "Pass the side in pixels."
            )
        margins = (padding or 0,) if isinstance(padding, int | None) else tuple(padding)
        if len(margins) not in (1, 2, 4) or min(margins) < 0:
            raise UsageError(
                f"RandomCrop: padding is {padding}; one, two or four whole numbers from 0 up are allowed. "
                "Pass (left, top, right, bottom)."
            )
        self.height, self.width = sides
        self.left, self.top, self.right, self.bottom = margins * (4 // len(margins))
        self.padding_mode = padding_mode
        self.fill = fill

    def output_shape(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
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
        padded_height, padded_width = self._padded(height, width)
        if self.height > padded_height or self.width > padded_width:
            raise UsageError(
                f"RandomCrop: size is {self.height}x{self.width}; the images allow at most {padded_height}x"
                f"{padded_width}, their padding included. Crop less, or pad more."
            )
        return channels, self.height, self.width

    def sample(
        self, rows: NDArray[np.int64], key: int, shape: tuple[int, int, int]
    ) -> dict[str, NDArray[Any]]:
        """Draw top and left of the crop in the padded image: int64 [N] each, in pixels."""
        self.output_shape(shape)
        padded_height, padded_width = self._padded(*shape[1:])
        return {
            "top": randomness.integers(rows, randomness.key(key, "top"), padded_height - self.height + 1),
            "left": randomness.integers(rows, randomness.key(key, "left"), padded_width - self.width + 1),
        }

    def apply(self, images: Tensor, params: dict[str, Tensor]) -> Tensor:
        """Cut the crops at (top, left); any dtype. Raises UsageError if the crop does not fit the images."""
        channels, height, width = images.shape[1:]
        self.output_shape((channels, height, width))
        pixels = self._pad(_pixels_last(images))
        count, height, width, _ = pixels.shape
        stretch = self.width * channels
        stretches = pixels.as_strided(
            (count * height * width - self.width + 1, stretch), (channels, 1), pixels.storage_offset()
        )
        device = pixels.device
        crop_rows = torch.arange(count, device=device) * height + params["top"]
        starts = crop_rows[:, None] + torch.arange(self.height, device=device)
        starts = starts * width + params["left"][:, None]
        crops = stretches.index_select(0, starts.view(-1))
        return crops.view(count, self.height, self.width, channels).permute(0, 3, 1, 2)

    def _padded(self, height: int, width: int) -> tuple[int, int]:
        return height + self.top + self.bottom, width + self.left + self.right

    def _pad(self, pixels: Tensor) -> Tensor:
        """Add the padding: [N, H, W, C] -> [N, H + top + bottom, W + left + right, C], contiguous."""
        if not (self.left or self.top or self.right or self.bottom):
            return pixels
        count, height, width, channels = pixels.shape
        padded_height, padded_width = self._padded(height, width)
        if self.padding_mode == "constant":
            padded = pixels.new_full((count, padded_height, padded_width, channels), self.fill)
            padded[:, self.top : self.top + height, self.left : self.left + width] = pixels
            return padded
        from_rows = _source(padded_height, self.top, height, self.padding_mode, pixels.device)
        from_columns = _source(padded_width, self.left, width, self.padding_mode, pixels.device)
        return pixels.index_select(1, from_rows).index_select(2, from_columns)


def _source(padded: int, before: int, length: int, mode: str, device: torch.device) -> Tensor:
    """Say which of an image's `length` rows each of the padded image's rows repeats: int64 [padded]."""
    places = torch.arange(-before, padded - before, device=device)
    if mode == "reflect":
        last = length - 1
        return last - (last - places.abs()).abs()
    return places.clamp(0, length - 1)


def _pixels_last(images: Tensor) -> Tensor:
    """See [N, C, H, W] as contiguous [N, H, W, C]: a view if the strides are channels_last, else a copy."""
    return images.permute(0, 2, 3, 1).contiguous()


def _word(pixels: Tensor) -> torch.dtype:
    """Return the widest integer dtype as which one image after another can be viewed."""
    image_bytes = pixels[0].nbytes
    offset_bytes = pixels.storage_offset() * pixels.element_size()
    for word in (torch.int64, torch.int32, torch.int16):
        if image_bytes % word.itemsize == 0 and offset_bytes % word.itemsize == 0:
            return word
    return torch.uint8
