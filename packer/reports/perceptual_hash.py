"""A 64-bit hash of an image's coarse structure, and finer traits that confirm that two images with like hashes are alike.

The hash is pHash's: the discrete cosine transform (DCT-II, orthonormal, as ``cv2.dct`` computes it) of the grey image at 32 x 32 pixels;
of its coefficients those of rows and columns 1 to 8, each a bit that says whether it is above their median.
Source: C. Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions" (2010), 3.2.1, and pHash 0.9's
ph_dct_imagehash. Here the image is made smaller by averaging areas, which stands for its 7 x 7 mean filter.

A batch is two matrix products: 1.5 us an image on one core; ``cv2.dct`` image by image takes 7.

Hashes alone are not enough for large packs, as pairs grow with the square of the rows: of 3,068 clothing photos 11 pairs are within 8
bits, one of which is a duplicate. So a pair also has to agree in its traits: 63 lowest coefficients as a direction, and the
colours of the four quarters. docs/decisions.md has the figures.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SIDE = 32
"""Height and width of the images that are hashed."""
MOST_BITS = 8
"""Bits in which the hashes of near duplicates may differ."""
_LEAST_COSINE = 0.95
_MOST_COLOR = 12.0
_LEAST_CONTRAST = 1.5
"""Standard deviation of grey levels, of 255: images with less have no structure to be compared by."""
_LUMA = np.array((0.299, 0.587, 0.114), np.float32)  # ITU-R BT.601
_LOWEST = 8
_TRAITS = _LOWEST * _LOWEST + 12
_SCALE = 127.0  # of a direction's numbers as int8


class ImageTraits(NamedTuple):
    """Hashes and traits of images. hashes: uint64 [N]; traits: int8 [N, 76]; flat: bool [N], images without structure."""

    hashes: NDArray[np.uint64]
    traits: NDArray[np.int8]
    flat: NDArray[np.bool_]


def _basis() -> NDArray[np.float32]:
    """Return the first 9 rows of the matrix of the DCT-II of 32 numbers, orthonormal: float32 [9, 32]."""
    k, x = np.arange(_LOWEST + 1)[:, None], np.arange(SIDE)[None]
    matrix = np.cos(np.pi * (2 * x + 1) * k / (2 * SIDE)) * np.sqrt(2 / SIDE)
    matrix[0] /= np.sqrt(2)
    basis: NDArray[np.float32] = matrix.astype(np.float32)
    return basis


_DCT = _basis()
# Bits of neighbouring frequencies depend on each other: each 16 bits of a hash hold some of all, so that few hashes share them.
_SPREAD = np.arange(64).reshape(16, 4).T.ravel()


def describe(small: NDArray[np.float32]) -> ImageTraits:
    """Return the hashes and traits of images. small: [N, 32, 32, 1 or 3], 0 to 255."""
    grey = small[..., 0] if small.shape[3] == 1 else small @ _LUMA
    found = _DCT @ grey @ _DCT.T
    bits = found[:, 1:, 1:].reshape(-1, 64)
    above = bits > np.median(bits, axis=1, keepdims=True)
    hashes = np.ascontiguousarray(np.packbits(above[:, _SPREAD], axis=1)).view("<u8")[:, 0]
    low = found[:, :_LOWEST, :_LOWEST].reshape(-1, 64).copy()
    low[:, 0] = 0
    low /= np.maximum(np.linalg.norm(low, axis=1, keepdims=True), 1e-6)
    traits = np.zeros((len(small), _TRAITS), np.int8)
    traits[:, :64] = np.rint(low * _SCALE)
    if small.shape[3] == 3:
        half = SIDE // 2
        quarters = small.reshape(-1, 2, half, 2, half, 3).mean(axis=(2, 4))
        colors = quarters - quarters.mean(axis=-1, keepdims=True)
        traits[:, 64:] = np.rint(colors / 2).reshape(-1, 12).clip(-127, 127)
    return ImageTraits(hashes, traits, grey.std(axis=(1, 2)) < _LEAST_CONTRAST)


def agree(one: NDArray[np.int8], other: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return which pairs of traits are of images that are alike, bool [N]. one, other: int8 [N, 76]."""
    a, b = one.astype(np.float32), other.astype(np.float32)
    lengths = np.linalg.norm(a[:, :64], axis=1) * np.linalg.norm(b[:, :64], axis=1)
    cosines = (a[:, :64] * b[:, :64]).sum(axis=1) / np.maximum(lengths, 1.0)
    colors = 2 * np.sqrt(((a[:, 64:] - b[:, 64:]) ** 2).mean(axis=1))
    alike: NDArray[np.bool_] = (cosines >= _LEAST_COSINE) & (colors <= _MOST_COLOR)
    return alike
