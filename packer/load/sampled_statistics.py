"""Mean and std of a sample of a pack's images, for packs that are loaded while they are filled."""

from __future__ import annotations

import numpy as np

from packer import randomness
from packer.format.header import TRAIN
from packer.format.header_forms import NORMALIZE
from packer.orders.runs import Subset, consecutive
from packer.packs.pack import Pack
from packer.read.array_store import PackStore

SAMPLE_ROWS = 512
_AT_ONCE = 64


def sampled_statistics(pack: Pack) -> dict[str, list[float]] | None:
    """Return mean and std of a sample of a pack's images, as Header.statistics.

    Returns None without images, or if the pack records a normalization to use instead. Samples up to
    SAMPLE_ROWS rows, of the split train if there is one: of a shuffled pack the first, which are made first;
    else rows drawn by a fixed key. They are the same on every rank and in every run, whether the pack is
    complete or not.
    """
    image = next((f.loaded for f in pack.fields if f.name == "image"), None)
    if image is None or not image.pixels or NORMALIZE in pack.header.provenance.get("options", {}):
        return None
    subset = Subset(pack.header.splits[TRAIN] if pack.header.train_rows else ((0, pack.rows),))
    chosen = np.arange(min(subset.rows, SAMPLE_ROWS))
    if pack.header.seed is None:
        chosen = np.sort(randomness.permute(chosen, subset.rows, randomness.key(0, "statistics")))
    chosen = subset.numbers(chosen)
    reader = PackStore(pack, [image])
    reader.prefetch(consecutive(chosen))
    sums, squares, count = 0, 0, 0
    try:
        for first in range(0, len(chosen), _AT_ONCE):
            images = reader.array("image", consecutive(chosen[first : first + _AT_ONCE]))
            pixels = images.reshape(-1, images.shape[-1]).astype(np.uint64)
            sums, squares = sums + pixels.sum(0), squares + (pixels * pixels).sum(0)
            count += len(pixels)
    finally:
        reader.close()
    mean = np.asarray(sums) / count
    std = np.sqrt(np.maximum(np.asarray(squares) / count - mean * mean, 0))
    return {"mean": (mean / image.most).tolist(), "std": (std / image.most).tolist()}
