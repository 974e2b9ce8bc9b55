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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg
from packer.errors import damaged_rows
from packer.format.checksums import block_checksum
from packer.format.header import Field
from packer.format.pack import Pack
from packer.opencv import cv2
from packer.orders.runs import one_run
from packer.previews.preview_batch import image_of
from packer.read.array_store import PackStore
from packer.read.encoded_images import MAX_PIXELS, EncodedImages
from packer.read.gather import empty

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
_TRAITS = _LOWEST * _LOWEST + 12
_SCALE = 127.0  # scale of a direction's components as int8
_PIECE_BYTES = 16 << 20  # bytes of rows that a thread reads at a time
_PIECE_ROWS = 512
_LEAST_SIDE = 16  # pixels: smaller images are decoded at full size: two scales of libjpeg may give one size
_SCALES = (8, 4, 2)


class ImageTraits(NamedTuple):
    """Hashes and traits of images.

    hashes: uint64 [N]; traits: int8 [N, 76]; flat: bool [N], images without structure.
    """

    hashes: NDArray[np.uint64]
    traits: NDArray[np.int8]
    flat: NDArray[np.bool_]


class ImageMeasures(NamedTuple):
    """Measures of images. digests: of stored bytes, uint64 [N]; sizes: int32 [N, 2], heights and widths."""

    digests: NDArray[np.uint64]
    sizes: NDArray[np.int32]
    traits: ImageTraits


def measure_images(packs: Sequence[Pack], workers: int, progress: Callable[[int], None]) -> ImageMeasures:
    """Read all images of packs once.

    workers: threads; progress: called with the number of rows read. Raises FormatError.
    """
    found: list[ImageMeasures] = []
    done = 0
    for pack in packs:
        for piece in _measured(pack, workers):
            found.append(piece)
            done += len(piece.digests)
            progress(done)
    digests, sizes, traits = zip(*found, strict=True)
    joined = ImageTraits(*(np.concatenate(each) for each in zip(*traits, strict=True)))
    return ImageMeasures(np.concatenate(digests), np.concatenate(sizes), joined)


def _measured(pack: Pack, workers: int) -> Iterator[ImageMeasures]:
    """Yield the measures of a pack's images, in order, in pieces."""
    reader = _SmallReader(pack, image_of(pack))
    previous = cv2.getNumThreads()
    cv2.setNumThreads(1)  # threads work on different pieces
    pool = ThreadPoolExecutor(workers, thread_name_prefix="packer-report")
    try:
        yield from pool.map(reader.read, reader.starts)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        cv2.setNumThreads(previous)
        reader.close()


class _SmallReader:
    """Measures rows at 32 x 32 pixels. Thread-safe."""

    def __init__(self, pack: Pack, image: Field) -> None:
        """image: the field as it is loaded."""
        self._pack, self._image = pack, image
        self._stored = pack.header.field(image.name)
        self._reader = PackStore(pack, [self._stored])
        self._jpeg = self._stored.ragged and (self._stored.codec or {}).get("name") == "jpeg"
        own_size = self._stored.own_size
        channels = (own_size.channels or 1) if own_size is not None else (image.shape or (0, 0, 1))[2]
        self._channels = 3 if channels >= 3 else 1
        self._step = max(1, min(_PIECE_ROWS, _PIECE_BYTES * pack.rows // max(pack.nbytes, 1)))
        if self._stored.compressed:  # whole blocks are decoded
            block = pack.header.block_rows
            self._step = -(-self._step // block) * block
        self.starts = range(0, pack.rows, self._step)

    def read(self, start: int) -> ImageMeasures:
        """Return the measures of the piece that begins at row `start`. Raises FormatError (damaged rows)."""
        stop = min(start + self._step, self._pack.rows)
        runs, count = one_run(start, stop), stop - start
        pixels = np.empty((count, SIDE, SIDE, self._channels), np.float32)
        digests, sizes = np.empty(count, np.uint64), np.empty((count, 2), np.int32)
        if self._stored.ragged:
            rows: Any = self._reader.ragged(self._image.name, runs)
        else:
            rows = self._reader.array(self._image.name, runs)
        for i, row in enumerate(rows):
            if isinstance(row, bytes):
                picture, sizes[i] = self._decode(row, start + i)
                # Raw bytes do not contain the image's width.
                shape = b"" if self._jpeg else sizes[i].tobytes()
                digests[i] = block_checksum(np.frombuffer(row + shape, np.uint8))
            else:
                digests[i] = block_checksum(row)
                picture, sizes[i] = row, row.shape[:2]
            pixels[i] = self._shrink(picture)
        return ImageMeasures(digests, sizes, describe(pixels))

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def _decode(self, row: bytes, number: int) -> tuple[NDArray[Any], tuple[int, int]]:
        """Return an image, possibly at a smaller scale, and its full height and width."""
        if not self._jpeg:
            sizes = self._reader.sizes(one_run(number, number + 1)) if self._stored.codec is None else None
            picture = EncodedImages(self._pack, self._stored, [row], [number], sizes).decode(0)
            return picture, picture.shape[:2]
        try:
            height, width, channels = jpeg.size(row)
            if height * width > MAX_PIXELS:
                raise ValueError(f"a picture of {width:,} x {height:,} pixels")
            by = 1
            if min(height, width) >= _LEAST_SIDE and jpeg.jpeg_orientation(row) == 1:
                by = next((by for by in _SCALES if min(height, width) >= SIDE * by), 1)
            shape = -(-height // by), -(-width // by), channels
            picture = empty(self._pack.path, self._image.name, shape)
            jpeg.decode_upright_into(row, picture, by > 1)
        except ValueError as error:
            raise damaged_rows(self._pack.path, self._image.name, error, number) from None
        return picture, (height, width)

    def _shrink(self, picture: NDArray[Any]) -> NDArray[np.float32]:
        """Return an image as float32 [32, 32, C], 0 to 255, without alpha.

        Keeps the first three bands, or the first of two.
        """
        channels = picture.shape[2]
        picture = picture[..., : 3 if channels >= 3 else 1]
        if picture.dtype not in (np.uint8, np.uint16):
            picture = picture.astype(np.float32)
        small = cv2.resize(np.ascontiguousarray(picture), (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(
            np.float32
        )
        small = small.reshape(SIDE, SIDE, -1)
        if self._image.most != 255:
            small *= 255 / self._image.most
        return np.broadcast_to(small, (SIDE, SIDE, self._channels)) if small.shape[2] == 1 else small


def _basis() -> NDArray[np.float32]:
    """Return the first 9 rows of the orthonormal DCT-II matrix of size 32: float32 [9, 32]."""
    k, x = np.arange(_LOWEST + 1)[:, None], np.arange(SIDE)[None]
    matrix = np.cos(np.pi * (2 * x + 1) * k / (2 * SIDE)) * np.sqrt(2 / SIDE)
    matrix[0] /= np.sqrt(2)
    basis: NDArray[np.float32] = matrix.astype(np.float32)
    return basis


_DCT = _basis()
# Neighbouring frequencies are correlated, so they go to different bands: then fewer hashes share a band.
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
    """Return True for each pair of similar traits, bool [N]. one, other: int8 [N, 76]."""
    a, b = one.astype(np.float32), other.astype(np.float32)
    lengths = np.linalg.norm(a[:, :64], axis=1) * np.linalg.norm(b[:, :64], axis=1)
    cosines = (a[:, :64] * b[:, :64]).sum(axis=1) / np.maximum(lengths, 1.0)
    colors = 2 * np.sqrt(((a[:, 64:] - b[:, 64:]) ** 2).mean(axis=1))
    alike: NDArray[np.bool_] = (cosines >= _LEAST_COSINE) & (colors <= _MOST_COLOR)
    return alike
