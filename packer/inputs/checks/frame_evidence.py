"""Evidence from pixels that files of two folders belong together in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from packer.errors import ImageError
from packer.inputs.image_sources import check_bytes
from packer.inputs.listing import Listing
from packer.pixels.decode_resize import MAX_PIXELS
from packer.pixels.image_decoder import opened

_READ = 6
"""Pairs that are read."""
_FEW_VALUES = 32
"""Most distinct values of a mask of classes."""
_FEWEST = 3
_ONE_CHANNEL = ("1", "L", "I", "I;16", "P", "F")


class Evidence(NamedTuple):
    """why: continues a sentence, or "". mask: the side of the masks, 0 or 1, if that was seen."""

    why: str = ""
    mask: int | None = None


class ImageForm(NamedTuple):
    """Height, width and channels of an image, and True if it has few distinct values."""

    height: int
    width: int
    channels: int
    few: bool

    @classmethod
    def of(cls, listing: Listing, key: str) -> ImageForm | None:
        """Return the form of an image; None for one that cannot be read."""
        index = listing.index_of(key)
        try:
            check_bytes(int(listing.source.sizes[index]), MAX_PIXELS)
            with opened(listing.source.read(index), MAX_PIXELS) as image:
                # JPEG files of masks have many values, too, so they need not be decoded.
                few = image.format != "JPEG" and _few(np.asarray(image))
                channels = 1 if image.mode in _ONE_CHANNEL else len(image.getbands())
                return cls(image.height, image.width, channels, few)
        except ImageError:
            return None


def why_partners(
    listing: Listing, pairs: Sequence[tuple[str, str]], seen: dict[str, ImageForm | None]
) -> Evidence:
    """Return the evidence that images of two folders are partners.

    pairs: keys of images. seen: forms of the images that were read, which are added. The evidence: in all
    pairs that are read one side has one channel and the other several; or few values, and the other many; or
    the sizes of an image vary, but agree in each pair.
    """
    picked = pairs[:: -(-len(pairs) // _READ)] if pairs else []
    for key in (key for pair in picked for key in pair if key not in seen):
        seen[key] = ImageForm.of(listing, key)
    forms = [(seen[first], seen[second]) for first, second in picked]
    both = [(one, other) for one, other in forms if one is not None and other is not None]
    if not both:
        return Evidence()
    for side in (0, 1):
        mine, theirs = [pair[side] for pair in both], [pair[1 - side] for pair in both]
        if all(one.channels == 1 for one in mine) and all(other.channels > 1 for other in theirs):
            return Evidence(", of one channel on one side", side)
        if all(one.few for one in mine) and not any(other.few for other in theirs):
            return Evidence(", of few values on one side", side)
    frames = {(one.height, one.width) for one, _ in both}
    if len(frames) >= _FEWEST and all(
        one.height * other.width == one.width * other.height for one, other in both
    ):
        return Evidence(", whose sizes vary together")
    return Evidence()


def _few(pixels: np.ndarray) -> bool:
    """Return True for an image of few distinct values or colours."""
    flat = pixels.reshape(-1, pixels.shape[2]) if pixels.ndim == 3 else pixels.reshape(-1, 1)
    return len({tuple(pixel) for pixel in flat[:: max(1, len(flat) // 4096)].tolist()}) <= _FEW_VALUES
