"""The photographs, and the packs that every other store is written from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanes.lane import LABELS, PACK_H5, PACK_JPEG, PACK_NPY, PHOTOS, Rows, Store

QUALITY = 90  # JPEG quality of every store of JPEGs
REPEATED_QUALITY = 92  # JPEG quality of rotated photographs

Pixels = NDArray[np.uint8]
TURNS: tuple[Callable[[Pixels], Pixels], ...] = (
    lambda p: p,
    lambda p: p[:, ::-1],
    lambda p: p[::-1],
    lambda p: p[::-1, ::-1],
    lambda p: p.transpose(1, 0, 2),
    lambda p: p.transpose(1, 0, 2)[:, ::-1],
    lambda p: p.transpose(1, 0, 2)[::-1],
    lambda p: p.transpose(1, 0, 2)[::-1, ::-1],
)
"""Mirrored and turned, so that a few thousand photographs make eight times as many different ones."""


def find(source: str) -> list[Path]:
    """Return the JPEGs of a folder, at any depth, sorted by name."""
    return sorted(path for path in Path(source).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))


def gather(source: str, count: int, work: str, threads: int) -> None:
    """Put `count` JPEGs into WORK/photos, named 0.jpg, 1.jpg, ..., and write a CSV with each number as label.

    The first are copies; those beyond the source's count are rotated copies. Raises ValueError if the source
    has too few.
    """
    import simplejpeg

    out = Path(work, PHOTOS)
    if out.exists():
        return
    found = find(source)
    if not found or count > len(found) * len(TURNS):
        raise ValueError(
            f"{source}: holds {len(found)} JPEGs; {count} images need an eighth as many. Pass fewer --images."
        )
    part = Path(work, f"{PHOTOS}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)

    def place(number: int) -> None:
        data = found[number % len(found)].read_bytes()
        turn = number // len(found)
        if turn:
            pixels = np.ascontiguousarray(TURNS[turn](simplejpeg.decode_jpeg(data, "RGB")))
            data = simplejpeg.encode_jpeg(pixels, quality=REPEATED_QUALITY, colorsubsampling="420")
        part.joinpath(f"{number}.jpg").write_bytes(data)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(place, range(count)))
    lines = [f"{number}.jpg,{number}\n" for number in range(count)]
    Path(work, LABELS).write_text("name,label\n" + "".join(lines))
    os.rename(part, out)


def pack(work: str, size: int) -> None:
    """Write the npy pack, the first of all stores."""
    from packer import Labels, convert_images

    out = os.path.join(work, PACK_NPY)
    if not os.path.exists(out):
        labels = Labels(os.path.join(work, LABELS), as_="float")  # the numbers of the images
        convert_images(os.path.join(work, PHOTOS), out, size=size, labels=labels, resume=True)


def _pack_as(store: str) -> Callable[[Rows, str], None]:
    """Return a writer of another kind of pack, with the photographs' rows in the same places."""

    def write(rows: Rows, out: str) -> None:
        from packer import Labels, convert_images

        work = os.path.dirname(out)
        photos, labels = os.path.join(work, PHOTOS), Labels(os.path.join(work, LABELS), as_="float")
        options: dict[str, Any] = {"store": store} | ({"quality": QUALITY} if store == "jpeg" else {})
        convert_images(photos, out, size=rows.images.shape[1], labels=labels, format="h5", **options)

    return write


def _photos(rows: Rows, out: str) -> None:
    raise AssertionError("the photographs are the source of the rows")


def read_photo(path: str, size: int) -> Pixels:
    """Decode, resize the short side antialiased, crop the centre, as usual. Returns uint8 [size, size, 3]."""
    import cv2

    pixels = cv2.imread(path, cv2.IMREAD_COLOR_RGB)
    assert pixels is not None
    side = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    square = pixels[top : top + side, left : left + side]
    return np.asarray(cv2.resize(square, (size, size), interpolation=cv2.INTER_AREA), np.uint8)


STORES = (
    Store(PHOTOS, (), _photos),
    Store(PACK_NPY, (), _photos),
    Store(PACK_H5, (), _pack_as("raw")),
    Store(PACK_JPEG, (), _pack_as("jpeg")),
)
