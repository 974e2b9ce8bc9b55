"""Encoded images to pixels of a row: decode, place, resize, turn upright.

decode (image_decoder.py) -> place (row_placement.py) -> resize (resampling.py) -> upright (codecs/jpeg.py) ->
the caller's array
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import PIL
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, features

from packer.arguments import one_of
from packer.channels import CHANNELS
from packer.codecs.jpeg import fill_plain, swaps_sides, upright
from packer.errors import UsageError
from packer.opencv import cv2
from packer.pixels.color_profiles import ICC, may_hold_profile
from packer.pixels.exact_values import decode_deep
from packer.pixels.image_decoder import (
    DecodedImage,
    ScratchBuffers,
    decode,
    decode_in_srgb,
    decode_pillow,
)
from packer.pixels.image_files import foreign_profile
from packer.pixels.resampling import resize, resize_soft
from packer.pixels.row_placement import FITS, Box, place
from packer.pixels.row_size import RowSize

MAX_PIXELS = 178_956_970
"""Default limit of height times width: 512 MiB as RGB. Pillow's own limit is the same."""

DTYPES = ("uint8", "uint16")
"""Types of pixels that image files are converted to."""

_CODECS = ("libjpeg_turbo", "jpg", "webp", "avif", "libtiff", "littlecms2")

BANDS = "bands"
"""Color meaning of a numeric `channels`: values of any kind, each channel independent."""

MAX_BANDS = 1024

Encoded: TypeAlias = bytes | Image.Image
"""A complete image file, or a Pillow image, equivalent to a lossless file of its pixels."""


@dataclass(frozen=True)
class PixelSpec:
    """Options for converting an input image to pixels."""

    size: tuple[int, int]
    """(height, width) of the result, each at least 1."""
    fit: str = "crop"
    """"crop" (fill, centred), "pad" (fit inside, black or transparent bars) or "stretch"."""
    channels: str | int = "rgb"
    """"rgb", "gray" or "rgba"; or a number of bands, which are kept unchanged."""
    max_pixels: int = MAX_PIXELS
    """Inputs with more pixels are refused before decoding."""
    dtype: str = "uint8"
    """"uint8" or "uint16"."""
    icc: str = "ignore"
    """"ignore" color profiles, or "srgb": convert colors to sRGB."""

    def __post_init__(self) -> None:
        """Raise UsageError unless every value is allowed."""
        if min(self.size) < 1:
            raise UsageError(
                f"size {self.size[0]}x{self.size[1]}: has no pixels; 1x1 is the smallest size. Pass a larger"
                " one."
            )
        one_of("fit", self.fit, FITS)
        one_of("dtype", self.dtype, DTYPES)
        one_of("icc", self.icc, ICC)
        if self.channels not in CHANNELS and not (
            isinstance(self.channels, int) and 1 <= self.channels <= MAX_BANDS
        ):
            raise UsageError(
                f"channels {self.channels!r}: unknown; {', '.join(CHANNELS)} and 1 to {MAX_BANDS} are"
                " allowed. Pass one of them."
            )
        if self.dtype != "uint8" and self.channels == "rgba":
            raise UsageError(
                f"channels rgba: is only for {DTYPES[0]}; {self.dtype} takes gray, rgb and numbers of "
                "bands. Pass channels=4 to keep four channels as they are."
            )
        if self.icc == "srgb" and self.deep:
            raise UsageError(
                f"icc srgb: converts {', '.join(CHANNELS)} of {DTYPES[0]}, not {self.dtype} with channels"
                f" {self.channels}. Leave it out."
            )
        if self.icc == "srgb" and not features.check("littlecms2"):
            raise UsageError("icc srgb: this build of Pillow has no LittleCMS. Install Pillow from PyPI.")
        if self.max_pixels < 1:
            raise UsageError(
                f"max_pixels {self.max_pixels}: too few; at least 1 is needed. Pass a larger number."
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the result."""
        return (
            *self.size,
            self.channels if isinstance(self.channels, int) else CHANNELS[self.channels].count,
        )

    @property
    def deep(self) -> bool:
        """True if exact_values.py decodes the pixels: they have 16 bits, or are bands."""
        return self.dtype != "uint8" or isinstance(self.channels, int)

    @property
    def color(self) -> str:
        """The meaning of the channels: "rgb", "gray", "rgba" or "bands"."""
        return BANDS if isinstance(self.channels, int) else self.channels


class _ThreadState(threading.local):
    """The buffers and settings of a thread."""

    def __init__(self) -> None:
        self.scratch = ScratchBuffers()
        self.narrowed = False
        # A setting of the thread. Intel's primitives were slower here (linear 224 us against 188) and choose
        # their code by the processor; without them the pixels depend only on OpenCV's version.
        cv2.ipp.setUseIPP(False)


class DecodeResize:
    """A converter of encoded images to pixels; thread-safe, with the same result in every thread."""

    spec: PixelSpec

    def __init__(self, spec: PixelSpec, rgba: bool = False) -> None:
        """rgba: treat the last of four bands as alpha, and weight colours by it."""
        self.spec, self._rgba, self._dtype = spec, rgba, np.dtype(spec.dtype)
        self._state, self._srgb = _ThreadState(), spec.icc == "srgb"
        self._plain = not spec.deep and spec.shape[2] != 4 and math.prod(spec.size) <= spec.max_pixels

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodeResize, (self.spec, self._rgba)

    def __call__(self, data: Encoded, out: NDArray[Any]) -> tuple[int, int]:
        """Decode ``data`` and fill ``out``.

        data: a complete image file in a format that image_decoder.py reads (exact_values.py if
        ``spec.deep``); unless ``spec.deep``, also a Pillow image.
        out: [H, W, C] of the type and shape of ``spec``, not necessarily contiguous; its contents are
        undefined after an error.
        Returns: (height, width) of the full picture, upright.
        Raises: ImageError with the reason, without the file's name; ValueError if ``out`` has another shape.
        """
        spec = self.spec
        if out.shape != spec.shape or out.dtype != self._dtype:
            raise ValueError(
                f"out: {out.dtype} {list(out.shape)}; {spec.dtype} {list(spec.shape)} is needed."
            )
        if (
            self._plain
            and isinstance(data, bytes)
            and out.flags.c_contiguous
            and not (self._srgb and may_hold_profile(data))
            and fill_plain(data, out)
        ):
            self._state.narrowed = False
            return spec.size
        image = self._decode(data, self._ratio)
        self._place(image, spec.fit, out)
        return _upright_size(image)

    def whole(self, data: Encoded, size: RowSize) -> tuple[NDArray[Any], tuple[int, int]]:
        """Decode ``data`` uncropped, at the size of its row; otherwise like a call.

        Returns: [h, w, C], C-contiguous, maybe in memory that this thread's next picture overwrites; and
        (height, width) of the full picture, upright.
        Raises: ImageError with the reason, without the file's name.
        """
        image = self._decode(data, size.ratio)
        source = _upright_size(image)
        shape = (*size.row_sides(*source), self.spec.shape[2])
        out = np.empty(shape, self._dtype) if self.spec.deep else self._state.scratch.array("row", shape)
        self._place(image, "stretch", out)
        return out, source

    def again(self, pixels: NDArray[Any], out: NDArray[Any]) -> None:
        """Fill ``out`` from the pixels of a row, as from an image file with these pixels.

        pixels: [h, w, C] of the type and channels of ``spec``, upright; not modified. out: as for a call.
        """
        transparent = not self.spec.deep and pixels.shape[2] == 4 and bool(pixels[..., 3].min() < 255)
        height, width = pixels.shape[:2]
        image = DecodedImage(pixels, height, width, shrunk=1, orientation=1, transparent=transparent)
        self._place(image, self.spec.fit, out)

    def _decode(self, data: Encoded, ratio: Callable[[int, int], float]) -> DecodedImage:
        spec = self.spec
        if not isinstance(data, bytes):
            image = decode_pillow(data, str(spec.channels), spec.max_pixels, srgb=self._srgb)
        elif self._srgb and (profile := foreign_profile(data)):
            image = decode_in_srgb(data, str(spec.channels), spec.max_pixels, profile)
        elif spec.deep:
            image = decode_deep(data, spec.channels, spec.dtype, spec.max_pixels)
        else:
            image = decode(data, str(spec.channels), spec.max_pixels, ratio, self._state.scratch)
        self._state.narrowed = image.narrowed
        return image

    def _place(self, image: DecodedImage, fit: str, out: NDArray[Any]) -> None:
        """Fill ``out`` with a picture, upright."""
        scratch = self._state.scratch
        turned = image.orientation != 1
        swapped = swaps_sides(image.orientation)
        stored = image.height, image.width
        size = out.shape[0], out.shape[1]
        # The small result is turned, not the source: cut the picture as stored, and place it upright.
        box, _ = place(fit, stored, size[::-1] if swapped else size)
        _, target = place(fit, stored[::-1] if swapped else stored, size)
        if (target.height, target.width) != size:
            out[...] = 0
        filled = target.cut_view(out)
        sides = filled.shape[1::-1] if swapped else filled.shape[:2]
        result = scratch.array("stored", (*sides, out.shape[2])) if turned else filled

        if self.spec.deep:
            _fill_deep(result, image.pixels, box, weighted=self._rgba)
        else:
            _fill(result, image, box, scratch)
        if turned:
            np.copyto(filled, upright(result, image.orientation))

    @property
    def narrowed(self) -> bool:
        """True if this thread's last image had more than 8 bits per channel, of which the high byte was kept.

        For 16-bit results: True if it had 8 bits, and was widened.
        """
        return self._state.narrowed

    def _ratio(self, height: int, width: int) -> float:
        """Return the pixels of an upright picture per pixel of the result, on the axis with fewer."""
        box, target = place(self.spec.fit, (height, width), self.spec.size)
        return min(box.height / target.height, box.width / target.width)


def _upright_size(image: DecodedImage) -> tuple[int, int]:
    """Return (height, width) of the full picture, upright."""
    size = image.height, image.width
    return size[::-1] if swaps_sides(image.orientation) else size


def _fill(result: NDArray[np.uint8], image: DecodedImage, box: Box, scratch: ScratchBuffers) -> None:
    """Resize the part in ``box`` into ``result``; both as stored."""
    if image.transparent and (box.height, box.width) != result.shape[:2]:
        # Weight colours by opacity; otherwise those of invisible pixels would bleed into edges.
        weighted = scratch.array("weighted", (box.height, box.width, 4))
        cv2.cvtColor(box.cut_view(image.pixels), cv2.COLOR_RGBA2mRGBA, dst=weighted)
        resize(weighted, Box(0, 0, box.height, box.width), result)
        result[...] = cv2.cvtColor(np.ascontiguousarray(result), cv2.COLOR_mRGBA2RGBA)
        hidden = result[..., 3:] == 0
        if hidden.any():
            # Invisible pixels cannot bleed: keep their colours, each channel by itself.
            straight = scratch.array("straight", result.shape)
            resize(image.pixels, box, straight)
            np.copyto(result, straight, where=hidden & (np.arange(4) < 3))
    else:
        resize(image.pixels, box, result, image.shrunk)


def _fill_deep(result: NDArray[Any], pixels: NDArray[Any], box: Box, *, weighted: bool) -> None:
    """Resize the part in ``box`` into ``result``.

    weighted: weight colours by opacity; invisible pixels keep their colours.
    """
    size = pixels.shape[0], pixels.shape[1]
    resize_soft(pixels, box, size, result)
    if weighted:
        colors, alpha = np.empty(result.shape, np.float32), pixels[..., 3:].astype(np.float32)
        resize_soft(np.concatenate([pixels[..., :3] * alpha, alpha], 2), box, size, colors)
        seen = colors[..., 3:] > 0
        np.divide(colors[..., :3], colors[..., 3:], where=seen, out=colors[..., :3])
        np.copyto(result[..., :3], np.rint(colors[..., :3]), where=seen, casting="unsafe")


def decoder_versions() -> dict[str, str]:
    """Return the versions of the libraries that compute pixels.

    Equal inputs, options and versions give equal bytes.
    """
    return {"opencv": cv2.__version__, "simplejpeg": simplejpeg.__version__, "pillow": PIL.__version__}


@lru_cache(maxsize=1)
def codec_builds() -> dict[str, str]:
    """Return the versions of the codecs inside OpenCV and Pillow, which depend on who built these."""
    jpeg = re.search(r"^ *JPEG: *(.*)$", cv2.getBuildInformation(), re.M)
    inside = {name: features.version(name) for name in _CODECS}
    return {
        "jpeg in opencv": jpeg[1] if jpeg else "unknown",
        "codecs in pillow": ", ".join(f"{name} {version}" for name, version in inside.items() if version),
    }
