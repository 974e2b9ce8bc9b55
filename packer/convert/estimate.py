"""How large rows will be, by each way of storing them: from a few of them, made before the work begins."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.codecs import jpeg
from packer.codecs.block_codecs import NAMES, block_codec
from packer.convert.order import Order
from packer.convert.rows import RowMaker
from packer.convert.storing import Storing
from packer.errors import ImageError, MissingDependencyError

_SAMPLES = 16
_COMPARED_BYTES = 64 << 20  # larger images are not made just to tell their sizes


class Trade(NamedTuple):
    """A way of storing, as the options name it, and about how many bytes a row then takes."""

    name: str
    row_bytes: float


def estimate(maker: RowMaker, storing: Storing, order: Order, *, compare: bool) -> tuple[Trade, ...]:
    """The way chosen, then, to compare, the others.

    Exact for raw rows; else from up to 16 samples, evenly spread: the same ones whenever inputs and options are the same.
    """
    rows = len(order.samples)
    picked = order.samples[np.linspace(0, rows - 1, min(rows, _SAMPLES)).astype(np.int64)].tolist()
    keys = 8 + sum(len(maker.key(sample)) for sample in picked) / len(picked)
    image = next((f for f in maker.fields if f.name == "image" and not f.ragged), None)
    rest = sum(f.row_bytes for f in maker.fields if not f.ragged and f is not image)
    if image is None or image.shape is None:
        return (Trade("as given", rest + keys + maker.ragged_bytes + 8),)
    other = rest + keys + maker.ragged_bytes
    found = {"raw": image.row_bytes + other}
    if storing.name == "raw" and (not compare or image.row_bytes > _COMPARED_BYTES):
        return (Trade("raw", found["raw"]),)
    pixels = _made(maker, picked)
    if len(pixels):
        if image.shape[2] != 4:
            quality = storing.quality
            found[f"jpeg, quality {quality}"] = (
                8 + other + sum(len(jpeg.encode(row, quality)) for row in pixels) / len(pixels)
            )
        for name in NAMES:
            with suppress(MissingDependencyError):
                codec = block_codec(name, image.shape, pixels.dtype)
                found[name] = other + len(codec.compress(pixels)) / len(pixels)
    chosen = storing.name if storing.name in found else "raw"
    return (Trade(chosen, found.pop(chosen)), *(Trade(name, size) for name, size in found.items()))


def _made(maker: RowMaker, samples: list[int]) -> NDArray[np.uint8]:
    """The samples' images, without those that cannot be made."""
    known = maker.columns(np.empty(0, np.int64))
    images = []
    for sample in samples:
        row = {
            f.name: np.empty(f.shape or (), f.dtype)
            for f in maker.fields
            if not f.ragged and f.name not in known
        }
        with suppress(ImageError):
            maker.make(sample, row)
            images.append(row["image"])
    return np.stack(images) if images else np.empty(0, np.uint8)
