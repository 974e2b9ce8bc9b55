"""Encoded images to pixels of a row: decode, place, resize, turn upright. Placement of boxes and masks.

decode (image_decoder.py) -> place -> resize -> upright (codecs/jpeg.py) -> the caller's array

Coordinates are continuous and upright (EXIF orientation applied): x runs from 0 to the width, y from 0 to the
height. Pixel (row r, column c) covers [c, c + 1] x [r, r + 1], with its centre at (c + 0.5, r + 0.5). Boxes
given by their first and last pixel (Pascal VOC) therefore end a pixel early.

The picture itself is cut as stored, and a JPEG may be decoded at a fraction of its size, with cuts between
whole pixels of that. It may therefore lie up to a pixel of the row away from the coordinates computed here.
For 60 JPEGs of random sizes the mean distance was 0.13, the largest 0.54; turned ones reached 0.9.

Resizing is an antialiased triangle filter in integers. Along each axis, a pixel of the result is a weighted
sum of the source pixels around it. The weights fall linearly to zero at a distance that depends on the scale:

    source pixels per result pixel    distance
    at most 1 (enlarging)             1 source pixel: linear interpolation
    more (shrinking)                  that number: the same triangle, widened against aliasing

This is Pillow's BILINEAR. A JPEG decoded at 1/2, 1/4 or 1/8 is sharper than averages of its pixels, so the
triangle for the remaining scale suits it, too, except if hardly any scale remains: there the distance is at
least 8/7. (Photos of 400x533 to 200 px, decoded at 1/2, PSNR in dB against the float triangle of the full
picture: 1: 39.2, 8/7: 46.2, 5/4: 43.7; from 7/6 on the plain triangle is best.)

All arithmetic is in integers, so that results do not depend on a processor's or library's rounding: OpenCV's
sepFilter2D rounds halves to even in the middle of a row and up at its end, and the processor decides where
the end begins. The rows are weighted first, then the columns, and each sum is rounded to 8 bits, halves up.
The loops exist twice, with equal bytes: in C (``native/resample.c``), and in NumPy if that was not compiled:
0.12 ms against 0.9 for a photo of 400x533 to 256 px.

Against a float64 triangle of the full picture, 77 photos of 400x533 in dB, mean and worst: to 256 px 57.7 and
57.3, or 53.6 and 42.6 with the chroma doubled by repetition (image_decoder.py). Plain linear interpolation
gives 41, an area average 46.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import PIL
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, features

from packer import native
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
    foreign_profile,
)
from packer.pixels.row_size import RowSize
from packer.sentence import Option

FITS = ("crop", "pad", "stretch")

MOST_SHORT_TAPS = 6
"""Filters with more taps use weights in units of 1/65536, which suffice for any number of taps."""

_ROWS_AT_ONCE = 64

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
                f"bands. Pass {Option('channels', 4)} to keep four channels as they are."
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
        shape = (*size.of(*source), self.spec.shape[2])
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
        filled = target.of(out)
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
        cv2.cvtColor(box.of(image.pixels), cv2.COLOR_RGBA2mRGBA, dst=weighted)
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
    _resize_soft(pixels, box, size, result)
    if weighted:
        colors, alpha = np.empty(result.shape, np.float32), pixels[..., 3:].astype(np.float32)
        _resize_soft(np.concatenate([pixels[..., :3] * alpha, alpha], 2), box, size, colors)
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


# Placement of a picture


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Cut the rectangle out of [h, w, ...], as a view."""
        return pixels[self.top : self.top + self.height, self.left : self.left + self.width]


@lru_cache(maxsize=1024)  # most data sets have few image sizes
def place(fit: str, source: tuple[int, int], result: tuple[int, int]) -> tuple[Box, Box]:
    """Return the part of the source that fills a part of the result, and that part.

    fit: "crop": the largest centred part with the result's aspect ratio fills the result (like Resize of the
    shortest side and CenterCrop, to a fraction of a pixel); "pad": the source fills the largest centred part
    of the result with the source's aspect ratio; "stretch": the source fills the result.
    source, result: (height, width) in pixels.
    Returns: a box in the source and a box in the result, neither of them empty.
    """
    height, width = source
    rows, columns = result
    if fit == "crop":
        cut = (
            min(height, max(1, round(width * rows / columns))),
            min(width, max(1, round(height * columns / rows))),
        )
        return _centred(cut, source), Box(0, 0, rows, columns)
    if fit == "pad":
        scale = min(rows / height, columns / width)
        filled = min(rows, max(1, round(height * scale))), min(columns, max(1, round(width * scale)))
        return Box(0, 0, height, width), _centred(filled, result)
    return Box(0, 0, height, width), Box(0, 0, rows, columns)


def _centred(inner: tuple[int, int], outer: tuple[int, int]) -> Box:
    return Box((outer[0] - inner[0]) // 2, (outer[1] - inner[1]) // 2, *inner)


class ImagePlacement(NamedTuple):
    """The placement of an upright picture in a row; create it with `ImagePlacement.of`."""

    source: tuple[int, int]
    """(height, width) of the full picture, upright."""
    result: tuple[int, int]
    """(height, width) of the row."""
    box: Box
    """The visible part of the source."""
    target: Box
    """The part of the result that the box fills; the rest are bars."""

    @classmethod
    def of(cls, fit: str, source: tuple[int, int], result: tuple[int, int]) -> ImagePlacement:
        """Place a picture of (height, width) ``source`` in a ``result``, as in `place`.

        >>> placement = ImagePlacement.of("crop", source=(400, 600), result=(256, 256))
        >>> placement.box
        Box(top=0, left=100, height=400, width=400)
        >>> placement.points(np.array([100.0, 400.0])).tolist()
        [0.0, 256.0]
        """
        box, target = place(fit, source, result)
        return cls(source, result, box, target)

    def points(self, xy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map points from the source to the result.

        xy: [..., 2], in the source; not modified.
        Returns: float64 [..., 2] in the result, also for points outside of it; NaN stays NaN.
        """
        box, target = self.box, self.target
        scale = target.width / box.width, target.height / box.height
        return (xy - (box.left, box.top)) * scale + (target.left, target.top)

    def keypoints(self, xy: NDArray[np.float64]) -> NDArray[np.float32]:
        """Map points from the source to the result, and remove invisible ones.

        xy: [..., 2], in the source; NaN for missing.
        Returns: float32 [..., 2] in the result, (NaN, NaN) for points that were cropped away or lay outside
        the picture, so that none is mistaken for a point at an edge, and a loss without a mask fails at once.
        Edges count as inside.
        """
        moved = self.points(xy)
        (left, top), (right, bottom) = self._edges()
        x, y = moved[..., 0], moved[..., 1]
        inside = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
        return np.where(inside[..., None], moved, np.nan).astype(np.float32)

    def boxes(self, xyxy: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Map boxes from the source to the result, and clip them to the visible part.

        xyxy: [n, 4], left, top, right, bottom, in the source; not modified.
        Returns: float32 [n, 4] in the result, and bool [n], True for boxes with any area left. Drop the
        others, as torchvision's SanitizeBoundingBoxes does; slivers are kept, because the user decides which
        size is too small.
        """
        moved = self.points(xyxy.reshape(-1, 2, 2))
        clipped = np.clip(moved, *self._edges()).astype(np.float32)
        keep: NDArray[np.bool_] = np.all(clipped[:, 0] < clipped[:, 1], axis=1)
        return clipped.reshape(-1, 4), keep

    def nearest(self, height: int, width: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the pixels of another picture of the same scene that the target's pixels show.

        height, width: of that picture, for example a mask; it may be larger or smaller than the source.
        Returns: rows [target.height] and columns [target.width] of the pixels that contain the centres of the
        target's pixels; read-only. At the source's size: ``floor((i + 0.5) * box.height / target.height) +
        box.top``.
        """
        box, target = self.box, self.target
        return (
            _nearest(box.top, box.height, target.height, self.source[0], height),
            _nearest(box.left, box.width, target.width, self.source[1], width),
        )

    def _edges(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return (left, top) and (right, bottom) of the target."""
        left, top, height, width = self.target.left, self.target.top, self.target.height, self.target.width
        return (left, top), (left + width, top + height)


@lru_cache(maxsize=1024)  # as for place: few sizes per data set
def _nearest(first: int, length: int, count: int, source: int, other: int) -> NDArray[np.intp]:
    """Return the ``other`` pixels at the centres of ``count`` equal parts of [first, first + length).

    source, other: pixels of two images along the same axis; first, length: in pixels of ``source``.
    """
    # Python integers are exact; int64 would overflow for sides of a hundred million pixels.
    indices = [
        ((2 * i + 1) * length + 2 * first * count) * other // (2 * count * source) for i in range(count)
    ]
    result = np.array(indices, np.intp)
    result.flags.writeable = False
    return result


# Resizing


class FilterAxis(NamedTuple):
    """The filter of an axis: result[i] = sum over k of weights[i, k] * source[first[i] + k], over 2**bits."""

    first: NDArray[np.int32]
    """[results], each at least 0; first + taps is at most the length of the source."""
    weights: NDArray[np.uint16]
    """[results, taps]; each row sums to 2**bits."""
    bits: int
    """8 or 16."""


@lru_cache(maxsize=2048)  # few sizes per data set; an axis of 256 takes 3 KB and 60 us
def triangle(pixels: int, start: int, length: int, shrunk: int, results: int) -> FilterAxis:
    """Return the filter that resamples a part of an axis.

    pixels: pixels of the source along the axis, decoded at 1/shrunk of its size.
    start, length: the part, in pixels of the full size: 0 <= start, length >= 1, start + length <= pixels *
    shrunk.
    shrunk: 1, 2, 4 or 8. results: pixels of the result.
    Returns: read-only arrays.

    The part may begin and end within a decoded pixel: rounding it to whole pixels cost 4 to 10 dB at 1/4 and
    1/8.
    """
    # Positions and distances below are integers, in units of 1 / (14 * results) of a full-size pixel.
    pixel = 14 * results * shrunk
    centres = 14 * results * start + 7 * (2 * np.arange(results, dtype=np.int64) + 1) * length
    reach = max(14 * length, pixel if shrunk == 1 else pixel // 7 * 8)
    least, most = start // shrunk, min(-(-(start + length) // shrunk), pixels)
    first = np.maximum((centres - reach - pixel // 2) // pixel + 1, least)
    last = np.minimum(-((pixel // 2 - centres - reach) // pixel) - 1, most - 1)
    taps = int((last - first).max()) + 1
    first = np.minimum(first, most - taps)
    distances = np.abs((first[:, None] + np.arange(taps)) * pixel + pixel // 2 - centres[:, None])
    heights = np.maximum(reach - distances, 0)
    bits = 8 if taps <= MOST_SHORT_TAPS else 16
    sums = heights.sum(axis=1, keepdims=True)
    weights = ((2 * heights << bits) + sums) // (2 * sums)
    # Add the rounding error to the largest weight, where it matters least.
    weights[np.arange(results), weights.argmax(axis=1)] += (1 << bits) - weights.sum(axis=1)
    axis = FilterAxis(first.astype(np.int32), weights.astype(np.uint16), bits)
    axis.first.flags.writeable = axis.weights.flags.writeable = False
    return axis


def resize(source: NDArray[np.uint8], box: Box, result: NDArray[np.uint8], shrunk: int = 1) -> None:
    """Fill ``result`` with a part of ``source``.

    source: uint8 [h, w, C], or [h, w, 4] for a result with 3 channels; not necessarily contiguous.
    box: the part, in pixels of the full picture; the source holds one pixel per ``shrunk`` of them along each
    axis.
    result: uint8 [H, W, C], not necessarily contiguous; filled. Equal sides give an exact copy if ``shrunk``
    is 1.
    shrunk: divisor at which a JPEG was decoded (1, 2, 4 or 8).
    """
    height, width = source.shape[:2]
    rows, columns = result.shape[:2]
    down = triangle(height, box.top, box.height, shrunk, rows)
    across = triangle(width, box.left, box.width, shrunk, columns)
    if native.COMPILED:
        native.loops.resample(source, result, *down, *across)
    else:
        resample_numpy(source, result, down, across)


def resample_numpy(
    source: NDArray[np.uint8], result: NDArray[np.uint8], down: FilterAxis, across: FilterAxis
) -> None:
    """Fill ``result`` with weighted sums of ``source``, without the compiled loop.

    source, result: as for `resize`, not overlapping. down, across: filters of the result's height and width.
    """
    left, right = int(across.first.min()), int(across.first.max()) + across.weights.shape[1]
    rows = _weigh(source[:, left:right], down)
    if rows.shape[2] != result.shape[2]:
        rows = np.asarray(cv2.cvtColor(rows, cv2.COLOR_RGBA2RGB), np.uint8)
    # Transpose columns to rows, which NumPy gathers at the speed of memory.
    columns = np.asarray(cv2.transpose(rows), np.uint8)
    turned = _weigh(columns, across._replace(first=across.first - left))
    result[...] = np.asarray(cv2.transpose(turned)).reshape(result.shape)


def _weigh(source: NDArray[np.uint8], axis: FilterAxis) -> NDArray[np.uint8]:
    """Weight rows: uint8 [h, ...] -> [H, ...]; some at a time, so that sums stay in the CPU cache."""
    kind: np.dtype[Any] = np.dtype(np.uint16 if axis.bits == 8 else np.uint32)
    lines = source.reshape(source.shape[0], -1).astype(kind)
    weights = axis.weights.astype(kind)
    result = np.empty((len(weights), lines.shape[1]), np.uint8)
    for start in range(0, len(result), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        sums = np.full((len(weights[rows]), lines.shape[1]), 1 << (axis.bits - 1), kind)
        for k in range(weights.shape[1]):
            term = lines[axis.first[rows] + k]
            np.multiply(term, weights[rows, k, None], out=term)
            np.add(sums, term, out=sums)
        result[rows] = np.right_shift(sums, kind.type(axis.bits), out=sums)
    return result.reshape(-1, *source.shape[1:])


# Resizing of float values: soft maps, such as alpha mattes and depth, and deep images


def place_soft(values: NDArray[Any], geometry: ImagePlacement, out: NDArray[Any]) -> None:
    """Fill the image's place in ``out`` with the visible part of a soft map; leave the bars unchanged.

    values: [h, w] or [h, w, C], uint8, uint16 or float32, upright; larger or smaller than the image, or
    equal. Not modified.
    out: same dtype and channels, [H, W] or [H, W, C] of ``geometry.result``; not necessarily contiguous.
    Values that already have the size of their place are copied exactly.

    The filter is that of images, Pillow's BILINEAR (masks take the nearest value); computed in float32 and
    float64, and rounded once. Channels are resampled separately. A pixel resampled from NaN is NaN.
    """
    _resize_soft(values, geometry.box, geometry.source, geometry.target.of(out))


def _resize_soft(values: NDArray[Any], box: Box, source: tuple[int, int], result: NDArray[Any]) -> None:
    """Fill ``result`` with the part in ``box``, in pixels of a ``source`` of (height, width)."""
    down = _Part.of(box.top, box.height, source[0], values.shape[0])
    across = _Part.of(box.left, box.width, source[1], values.shape[1])
    part = values[down.first : down.end, across.first : across.end]
    if down.whole(result.shape[0]) and across.whole(result.shape[1]):
        result[...] = part
        return
    within = across.start, down.start, across.stop, down.stop
    for channel in range(part.shape[2] if part.ndim == 3 else 1):
        plane, filled = (a[..., channel] if a.ndim == 3 else a for a in (part, result))
        image = Image.fromarray(np.ascontiguousarray(plane, np.float32))
        resized = np.asarray(image.resize(filled.shape[::-1], Image.Resampling.BILINEAR, box=within))
        filled[...] = resized if filled.dtype.kind == "f" else np.rint(resized)


class _Part(NamedTuple):
    """A part of an axis: pixels [first, end), of which [start, stop) is used, counted from `first`.

    Pixels beyond these are invisible in the image, so they get no weight.
    """

    first: int
    end: int
    start: float
    stop: float

    @classmethod
    def of(cls, first: int, length: int, source: int, other: int) -> _Part:
        """Return the part of an axis of ``other`` pixels for [first, first + length) of ``source`` pixels."""
        start, stop = first * other / source, (first + length) * other / source
        low = math.floor(start)
        return cls(low, math.ceil(stop), start - low, stop - low)

    def whole(self, pixels: int) -> bool:
        """Return True if the part consists of that many whole pixels."""
        return self.start == 0 and self.stop == pixels
