"""One parallel pass over the images of packs: traits at 32 x 32 pixels, size, checksum of the stored bytes.

JPEG rows are decoded at the smallest scale (1/2, 1/4, 1/8) that leaves at least 32 pixels.

The hash is pHash's. The grey image of 32 x 32 pixels gets a discrete cosine transform (DCT-II, orthonormal,
as ``cv2.dct`` computes it). Each coefficient in rows and columns 1 to 8 gives a bit: above their median or
not.
Source: C. Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions" (2010), 3.2.1, and
pHash 0.9's ph_dct_imagehash. Here averaging over areas shrinks the image, in place of pHash's 7 x 7 mean
filter.

A batch takes two matrix products, 1.5 us an image on one core; ``cv2.dct`` image by image takes 7.

Hashes alone do not suffice for large packs, as pairs grow with the square of the rows: of 3,068 clothing
photos 11 pairs are within 8 bits, and only one is a duplicate. So a pair must also agree in its traits: the
63 lowest coefficients as a direction, and the colours of the four quarters.
docs/decisions/near-duplicates.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg
from packer.errors import damaged_rows
from packer.format.checksums import block_checksum
from packer.format.fields import Field
from packer.opencv import cv2
from packer.orders.runs import one_run, pieces
from packer.packs.pack import Pack
from packer.read.array_store import PackStore
from packer.read.encoded_images import MAX_PIXELS, EncodedImages

SIDE = 32
"""Height and width of the hashed images."""
MOST_BITS = 8
"""The hashes of near duplicates differ in at most this many bits."""
_LEAST_COSINE = 0.95
_MOST_COLOR = 12.0
_LEAST_CONTRAST = 1.5
"""Standard deviation of grey levels, of 255; images below it have no structure to compare."""
_LUMA = np.array((0.299, 0.587, 0.114), np.float32)  # ITU-R BT.601
_LOWEST = 8
_SCALE = 127.0  # scale of a direction's components as int8
_PIECE_BYTES = 16 << 20  # bytes of rows that a thread reads at a time
_PIECE_ROWS = 512


class ImageMeasures(NamedTuple):
    """Measures of images.

    digests: of stored bytes, uint64 [N]; sizes: int32 [N, 2], heights and widths. hashes: uint64 [N]; traits:
    int8 [N, 76]; flat: bool [N], images without structure.
    """

    digests: NDArray[np.uint64]
    sizes: NDArray[np.int32]
    hashes: NDArray[np.uint64]
    traits: NDArray[np.int8]
    flat: NDArray[np.bool_]


def measure_images(packs: Sequence[Pack], workers: int, progress: Callable[[int], None]) -> ImageMeasures:
    """Read all images of packs once.

    workers: threads; progress: called with the number of rows read. Raises FormatError.
    """
    found: list[ImageMeasures] = []
    done = 0
    for pack in packs:
        image = pack.header.field("image")
        with closing(PackStore(pack, [image])) as store, ThreadPoolExecutor(workers) as pool:
            for piece in pool.map(partial(_measure_rows, pack, image, store), _spans(pack, image)):
                found.append(piece)
                done += len(piece.digests)
                progress(done)
    return ImageMeasures(*map(np.concatenate, zip(*found, strict=True)))


def _spans(pack: Pack, image: Field) -> Iterator[tuple[int, int]]:
    """Yield first row and end of each piece that a thread reads at a time, of whole blocks if coded."""
    step = max(1, min(_PIECE_ROWS, _PIECE_BYTES * pack.rows // max(pack.nbytes, 1)))
    if image.compressed:
        step = -(-step // pack.header.block_rows) * pack.header.block_rows
    return pieces(pack.rows, step)


def _measure_rows(pack: Pack, image: Field, store: PackStore, span: tuple[int, int]) -> ImageMeasures:
    """Return the measures of rows span[0]..span[1]-1. Raises FormatError (damaged rows)."""
    runs, count = one_run(*span), span[1] - span[0]
    pixels = np.empty((count, SIDE, SIDE, 3), np.float32)
    digests, sizes = np.empty(count, np.uint64), np.empty((count, 2), np.int32)
    is_jpeg = image.ragged and (image.codec or {}).get("name") == "jpeg"
    known = store.sizes(runs) if image.ragged and image.codec is None else None
    rows: Any = store.ragged(image.name, runs) if image.ragged else store.array(image.name, runs)
    for i, row in enumerate(rows):
        if is_jpeg:
            picture, sizes[i] = _decode_small(pack, image.name, row, span[0] + i)
            digests[i] = block_checksum(np.frombuffer(row, np.uint8))
        elif image.ragged:
            size = None if known is None else known[i : i + 1]
            picture = EncodedImages(pack, image, [row], [span[0] + i], size).decode(0)
            sizes[i] = picture.shape[:2]
            # Raw bytes do not contain the image's width.
            digests[i] = block_checksum(np.frombuffer(row + sizes[i].tobytes(), np.uint8))
        else:
            digests[i], picture, sizes[i] = block_checksum(row), row, row.shape[:2]
        pixels[i] = _shrink(picture)
    return ImageMeasures(digests, sizes, *describe(pixels))


def _decode_small(pack: Pack, name: str, row: bytes, number: int) -> tuple[NDArray[Any], tuple[int, int]]:
    """Return the image of a JPEG row, possibly at a smaller scale, and its full height and width."""
    try:
        height, width, channels = jpeg.size(row)
        if height * width > MAX_PIXELS:
            raise ValueError(f"a picture of {width:,} x {height:,} pixels")
        upright = jpeg.jpeg_orientation(row) == 1
        by = next((by for by in (8, 4, 2) if upright and min(height, width) >= SIDE * by), 1)
        picture = np.empty((-(-height // by), -(-width // by), channels), np.uint8)
        jpeg.decode_upright_into(row, picture, by > 1)
    except ValueError as error:
        raise damaged_rows(pack.path, name, error, number) from None
    return picture, (height, width)


def _shrink(picture: NDArray[Any]) -> NDArray[np.float32]:
    """Return an image as float32 [32, 32, 1 or 3], 0 to 255: its first three bands, or the first of two."""
    bands = np.ascontiguousarray(picture[..., : 3 if picture.shape[2] >= 3 else 1])
    small = cv2.resize(bands, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)
    return small.reshape(SIDE, SIDE, -1) * np.float32(255 / np.iinfo(picture.dtype).max)


# The first 9 rows of the orthonormal DCT-II matrix of size 32.
_DCT = np.asarray(cv2.dct(np.eye(SIDE), flags=cv2.DCT_ROWS).T[: _LOWEST + 1], np.float32)
# Neighbouring frequencies are correlated, so they go to different bands: then fewer hashes share a band.
_SPREAD = np.arange(64).reshape(16, 4).T.ravel()


def describe(small: NDArray[np.float32]) -> tuple[NDArray[np.uint64], NDArray[np.int8], NDArray[np.bool_]]:
    """Return the hashes and traits of images, and which lack structure. small: [N, 32, 32, 3], 0 to 255."""
    grey = small @ _LUMA
    found = _DCT @ grey @ _DCT.T
    bits = found[:, 1:, 1:].reshape(-1, 64)
    above = bits > np.median(bits, axis=1, keepdims=True)
    hashes = np.ascontiguousarray(np.packbits(above[:, _SPREAD], axis=1)).view("<u8")[:, 0]
    low = found[:, :_LOWEST, :_LOWEST].reshape(-1, 64).copy()
    low[:, 0] = 0
    low /= np.maximum(np.linalg.norm(low, axis=1, keepdims=True), 1e-6)
    half = SIDE // 2
    quarters = small.reshape(-1, 2, half, 2, half, 3).mean(axis=(2, 4))
    colors = (quarters - quarters.mean(axis=-1, keepdims=True)).reshape(-1, 12) / 2
    traits = np.rint(np.concatenate((low * _SCALE, colors), axis=1)).clip(-127, 127).astype(np.int8)
    return hashes, traits, grey.std(axis=(1, 2)) < _LEAST_CONTRAST


def agree(one: NDArray[np.int8], other: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return True for each pair of similar traits, bool [N]. one, other: int8 [N, 76]."""
    a, b = one.astype(np.float32), other.astype(np.float32)
    lengths = np.linalg.norm(a[:, :64], axis=1) * np.linalg.norm(b[:, :64], axis=1)
    cosines = (a[:, :64] * b[:, :64]).sum(axis=1) / np.maximum(lengths, 1.0)
    colors = 2 * np.sqrt(((a[:, 64:] - b[:, 64:]) ** 2).mean(axis=1))
    alike: NDArray[np.bool_] = (cosines >= _LEAST_COSINE) & (colors <= _MOST_COLOR)
    return alike
