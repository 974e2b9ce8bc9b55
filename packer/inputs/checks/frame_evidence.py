"""Evidence from pixels that files of two folders belong together in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import ImageError
from packer.inputs.image_sources import check_bytes
from packer.inputs.listing import Listing
from packer.pixels.decode_resize import MAX_PIXELS
from packer.pixels.image_files import opened

_READ = 6
"""Pairs that are read."""
_FEW_VALUES = 32
"""Most distinct values of a mask of classes."""
_FEWEST = 3
_DRAFT, _SIDE = 64, 16
"""Pixels of a side of JPEG files at least, and of the pictures that are compared."""
_LIKE, _MOST = 0.7, 0.8
"""Least correlation of pictures of the same scene, on average, and share of the pairs that show it."""
_MOST_LEVELS, _LEVEL, _NEAR = 4, 32, 0.95
"""Most grey levels, of _LEVEL values, that hold the share _NEAR of a mask's pixels, in a JPEG file."""
_FRAME = 0.02
"""Largest difference of the aspect ratios of images that show the same frame."""
_ONE_CHANNEL = ("1", "L", "I", "I;16", "P", "F")


class Evidence(NamedTuple):
    """why: continues a sentence, or "". mask: the side of the masks, 0 or 1, if that was seen.

    alike: True if both sides show the same pictures.
    """

    why: str = ""
    mask: int | None = None
    alike: bool = False


class ImageForm(NamedTuple):
    """Height, width and channels of an image, and True if it has few distinct values.

    small: grey values of the image at a small size, as a unit vector; zeros for an even image.
    """

    height: int
    width: int
    channels: int
    few: bool
    small: NDArray[np.float64]

    def framed_like(self, other: ImageForm) -> bool:
        """Return True if both may show the same frame, at any size; a pixel of a side may be rounded."""
        wide, high = self.width * other.height, self.height * other.width
        return abs(wide - high) <= max(_FRAME * wide, self.width, self.height, other.width, other.height)

    @classmethod
    def read(cls, listing: Listing, key: str) -> ImageForm | None:
        """Return the form of an image; None for one that cannot be read."""
        index = listing.index_of(key)
        try:
            check_bytes(int(listing.source.sizes[index]), MAX_PIXELS)
            with opened(listing.source.read(index), MAX_PIXELS) as image:
                height, width = image.height, image.width
                channels = 1 if image.mode in _ONE_CHANNEL else len(image.getbands())
                jpeg = image.format == "JPEG"
                if jpeg:
                    image.draft(image.mode, (_DRAFT, _DRAFT))
                few = (_has_few_levels if jpeg else _few)(np.asarray(image))
                return cls(height, width, channels, few, _small(np.asarray(image.convert("L"))))
        except ImageError:
            return None


def why_partners(listing: Listing, pairs: Sequence[tuple[str, str]]) -> Evidence:
    """Return the evidence that images of two folders are partners.

    pairs: keys of images. The evidence: in all pairs that are read one side has one channel and the other
    several; or few values, and the other many; or the sizes of an image vary, but agree in each pair; or each
    image looks most like its partner.
    """
    picked = pairs[:: -(-len(pairs) // _READ)] if pairs else []
    seen: dict[str, ImageForm | None] = listing.forms
    for key in (key for pair in picked for key in pair if key not in seen):
        seen[key] = ImageForm.read(listing, key)
    forms = [(seen[first], seen[second]) for first, second in picked]
    both = [(one, other) for one, other in forms if one is not None and other is not None]
    if not both or sum(one.framed_like(other) for one, other in both) < _MOST * len(both):
        return Evidence()
    for side in (0, 1):
        mine, theirs = [pair[side] for pair in both], [pair[1 - side] for pair in both]
        if all(one.channels == 1 for one in mine) and all(other.channels > 1 for other in theirs):
            return Evidence(", of one channel on one side", side)
        if all(one.few for one in mine) and not any(other.few for other in theirs):
            return Evidence(", of few values on one side", side)
    alike = _alike(both)
    frames = {(one.height, one.width) for one, _ in both}
    if len(frames) >= _FEWEST and all(
        one.height * other.width == one.width * other.height for one, other in both
    ):
        return Evidence(", whose sizes vary together", alike=alike)
    return Evidence(", which look alike", alike=True) if alike else Evidence()


def _alike(pairs: Sequence[tuple[ImageForm, ImageForm]]) -> bool:
    """Return True if nearly every image looks like its partner, and less like the others of that side."""
    alike = np.array([one.small for one, _ in pairs]) @ np.array([other.small for _, other in pairs]).T
    own = np.diagonal(alike).copy()
    np.fill_diagonal(alike, -1)
    best = own[own > np.maximum(alike.max(0), alike.max(1))]
    return len(best) >= max(_FEWEST, _MOST * len(own)) and float(best.mean()) >= _LIKE


def _small(grey: np.ndarray) -> NDArray[np.float64]:
    """Return the means of _SIDE x _SIDE parts, as a unit vector; zeros for an even image."""
    values = grey.astype(np.float64)
    for axis, length in enumerate(grey.shape):
        starts = np.arange(_SIDE) * length // _SIDE
        counts = np.maximum(np.diff(starts, append=length), 1)
        values = np.add.reduceat(values, starts, axis) / (counts[:, None] if axis == 0 else counts)
    values = values.ravel() - values.mean()
    norm = float(np.linalg.norm(values))
    return values / norm if norm > _SIDE else np.zeros_like(values)


def _has_few_levels(pixels: np.ndarray) -> bool:
    """Return True for a grey JPEG image of few levels; values beside edges are not exact."""
    if pixels.ndim == 3:
        wide = pixels.astype(np.int16)
        if pixels.shape[2] != 3 or np.ptp(wide, axis=2).max() > _LEVEL:
            return False
        pixels = pixels[..., 0]
    counts = np.sort(np.bincount(((pixels.astype(np.int64) + _LEVEL // 2) // _LEVEL).ravel()))
    return bool(counts[-_MOST_LEVELS:].sum() >= _NEAR * pixels.size)


def _few(pixels: np.ndarray) -> bool:
    """Return True for an image of few distinct values or colours."""
    flat = pixels.reshape(-1, pixels.shape[2]) if pixels.ndim == 3 else pixels.reshape(-1, 1)
    return len({tuple(pixel) for pixel in flat[:: max(1, len(flat) // 4096)].tolist()}) <= _FEW_VALUES
