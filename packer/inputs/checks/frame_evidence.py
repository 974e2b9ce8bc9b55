"""Evidence from pixels that files of two folders belong together in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from packer.errors import ImageError
from packer.inputs.image_sources import check_bytes
from packer.inputs.listing import Listing
from packer.pixels.decode_resize import MAX_PIXELS
from packer.pixels.exact_values import decode_mask

_READ = 8
"""Pairs that are read."""
_FEW_VALUES = 32
"""Most distinct values of a mask of classes."""
_FEWEST = 3


class Evidence(NamedTuple):
    """why: continues a sentence, or "". mask: the side of the masks, 0 or 1, if that was seen."""

    why: str = ""
    mask: int | None = None


class _Seen(NamedTuple):
    """Height, width and channels of an image, and True if it has few distinct values."""

    height: int
    width: int
    channels: int
    few: bool


def why_partners(listing: Listing, pairs: Sequence[tuple[str, str]]) -> Evidence:
    """Return the evidence that images of two folders are partners.

    pairs: keys of images. The evidence: in all pairs that are read one side has one channel and the other
    several; or few values, and the other many; or the sizes of an image vary, but agree in each pair.
    """
    if not pairs:
        return Evidence()
    index = {key: number for number, key in enumerate(listing.keys)}
    picked = pairs[:: -(-len(pairs) // _READ)]
    seen = [(_look(listing, index[a]), _look(listing, index[b])) for a, b in picked]
    both = [(one, other) for one, other in seen if one is not None and other is not None]
    if not both:
        return Evidence()
    for side in (0, 1):
        mine, theirs = [pair[side] for pair in both], [pair[1 - side] for pair in both]
        if all(one.channels == 1 for one in mine) and all(other.channels > 1 for other in theirs):
            return Evidence(", of one channel on one side", side)
        if all(one.few for one in mine) and not any(other.few for other in theirs):
            return Evidence(", of few values on one side", side)
    ratios = {(one.height * other.width, one.width * other.height) for one, other in both}
    frames = {(one.height, one.width) for one, _ in both}
    if len(frames) >= _FEWEST and all(a == b for a, b in ratios):
        return Evidence(", whose sizes vary together")
    return Evidence()


def _look(listing: Listing, index: int) -> _Seen | None:
    """Return the form of an image; None for one that cannot be read."""
    try:
        check_bytes(int(listing.source.sizes[index]), MAX_PIXELS)
        values = decode_mask(listing.source.read(index), MAX_PIXELS, None)
    except ImageError:
        return None
    flat = values.reshape(-1, values.shape[2]) if values.ndim == 3 else values.reshape(-1, 1)
    distinct = {tuple(pixel) for pixel in flat[:: max(1, len(flat) // 4096)].tolist()}
    height, width = values.shape[:2]
    return _Seen(height, width, flat.shape[1], len(distinct) <= _FEW_VALUES)
