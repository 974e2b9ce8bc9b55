"""Encoded image -> pixels of one size: decode, crop, resize, turn upright.

image_decoder.py -> image_placement.py (place) -> resampling.py (resize) -> codecs/orientation.py (upright) -> the caller's array
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import cv2
import numpy as np
import PIL
import simplejpeg
from numpy.typing import NDArray

from packer.codecs.orientation import swaps_sides, upright
from packer.errors import UsageError
from packer.pixels.image_decoder import MODES, DecodedImage, ScratchBuffers, decode
from packer.pixels.image_placement import FITS, Box, place
from packer.pixels.resampling import resize

MAX_PIXELS = 178_956_970
"""Default limit of height times width: 512 MiB as RGB. Pillow refuses larger pictures, too."""

_CHANNELS = {"gray": 1, "rgb": 3, "rgba": 4}


@dataclass(frozen=True)
class PixelSpec:
    """The options by which an input image becomes pixels."""

    size: tuple[int, int]
    """(height, width) of the result, each at least 1."""
    fit: str = "crop"
    """"crop" (fill, centred), "pad" (fit inside, black or transparent bars) or "stretch"."""
    channels: str = "rgb"
    """"rgb", "gray" or "rgba"."""
    max_pixels: int = MAX_PIXELS
    """Inputs with more pixels are refused before they are decoded."""

    def __post_init__(self) -> None:
        """Raise UsageError unless every value is allowed."""
        if min(self.size) < 1:
            raise UsageError(
                f"size {self.size[0]}x{self.size[1]}: has no pixels; 1x1 is the least. Pass a larger one."
            )
        if self.fit not in FITS:
            raise UsageError(f"fit {self.fit!r}: unknown; {', '.join(FITS)} are allowed. Pass one of them.")
        if self.channels not in MODES:
            raise UsageError(
                f"channels {self.channels!r}: unknown; {', '.join(MODES)} are allowed. Pass one of them."
            )
        if self.max_pixels < 1:
            raise UsageError(f"max_pixels {self.max_pixels}: too few; 1 is the least. Pass a larger number.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the result."""
        return (*self.size, _CHANNELS[self.channels])


class _ThreadState(threading.local):
    """The memory and the settings of one thread."""

    def __init__(self) -> None:
        self.scratch = ScratchBuffers()
        self.narrowed = False
        # A setting of the thread. Intel's primitives were slower here (linear 224 us against 188) and choose
        # their code by the processor; without them the pixels depend on OpenCV's version alone.
        cv2.ipp.setUseIPP(False)


class DecodeResize:
    """Turn encoded images into pixels; one object serves any number of threads, each with the same result."""

    def __init__(self, spec: PixelSpec) -> None:
        self.spec = spec
        self._state = _ThreadState()

    def __call__(self, data: bytes, out: NDArray[np.uint8]) -> tuple[int, int]:
        """Decode ``data`` and fill ``out``.

        data: a whole image file in one of the formats that image_decoder.py reads.
        out: uint8 [H, W, C] of ``spec.shape``, rows may lie apart; its contents are undefined after an error.
        Returns: (height, width) of the whole picture, upright.
        Raises: ImageError with the reason, but not the file's name; ValueError if ``out`` is of another shape.
        """
        spec = self.spec
        if out.shape != spec.shape or out.dtype != np.uint8:
            raise ValueError(f"out: {out.dtype} {list(out.shape)}; uint8 {list(spec.shape)} is needed.")
        scratch = self._state.scratch
        image = decode(data, spec.channels, spec.max_pixels, self._ratio, scratch)
        self._state.narrowed = image.narrowed
        turned = image.orientation != 1
        swapped = swaps_sides(image.orientation)
        stored = image.height, image.width
        # The picture is turned when it is small, so it is cut as it is stored, and put where it belongs upright.
        box, _ = place(spec.fit, stored, spec.size[::-1] if swapped else spec.size)
        _, target = place(spec.fit, stored[::-1] if swapped else stored, spec.size)
        if (target.height, target.width) != spec.size:
            out[...] = 0
        filled = target.of(out)
        sides = filled.shape[1::-1] if swapped else filled.shape[:2]
        result = scratch.array("stored", (*sides, out.shape[2])) if turned else filled

        _fill(result, image, box, scratch)
        if turned:
            np.copyto(filled, upright(result, image.orientation))
        return stored[::-1] if swapped else stored

    @property
    def narrowed(self) -> bool:
        """True if the last image that this thread made had more than 8 bits a channel, of which the high byte was kept."""
        return self._state.narrowed

    def _ratio(self, height: int, width: int) -> float:
        """Return how many pixels of an upright picture one of the result covers, on the axis with fewer."""
        box, target = place(self.spec.fit, (height, width), self.spec.size)
        return min(box.height / target.height, box.width / target.width)


def _fill(result: NDArray[np.uint8], image: DecodedImage, box: Box, scratch: ScratchBuffers) -> None:
    """Resize what lies in ``box`` into ``result``; both as they are stored."""
    if image.transparent and (box.height, box.width) != result.shape[:2]:
        # Colours weigh as much as they are opaque, or those of invisible pixels would bleed into edges.
        weighted = scratch.array("weighted", (box.height, box.width, 4))
        cv2.cvtColor(box.of(image.pixels), cv2.COLOR_RGBA2mRGBA, dst=weighted)
        resize(weighted, Box(0, 0, box.height, box.width), result)
        result[...] = cv2.cvtColor(np.ascontiguousarray(result), cv2.COLOR_mRGBA2RGBA)
    else:
        resize(image.pixels, box, result, image.shrunk)


def decoder_versions() -> dict[str, str]:
    """Return the versions of the libraries that make the pixels: equal inputs, options and versions give equal bytes."""
    return {"opencv": cv2.__version__, "simplejpeg": simplejpeg.__version__, "pillow": PIL.__version__}
