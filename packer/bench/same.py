"""Proof that both sides of a comparison do the same work: the images and the pack hold the same pixels and labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.convert.pixels import PixelMaker, PixelSpec
from packer.convert.sources import Source
from packer.errors import PackerError
from packer.format.pack import Pack

CHECKED_ROWS = 32


def source_indices(source: Source, pack: Pack) -> NDArray[np.int64]:
    """The source's index of each row of a pack, by the field "key": int64 [N].

    Raises PackerError if the source lacks one of them.
    """
    known = {key: index for index, key in enumerate(source.keys)}
    indices = np.empty(pack.rows, np.int64)
    for row, key in enumerate(pack.keys()):
        if key not in known:
            raise PackerError(
                f"{pack.path}: row {row} is {key!r}, which {source.name} does not hold;"
                " a pack is compared with the images it was made from. Pass those."
            )
        indices[row] = known[key]
    return indices


def check_same(source: Source, pack: Pack, indices: NDArray[np.int64], spec: PixelSpec) -> int:
    """Compare all labels, and the pixels of rows spread over the pack, byte for byte. Returns how many rows that were.

    indices: of source_indices; spec: how the pack's pixels were made. Raises PackerError for the first difference.
    """
    if source.labels is not None:
        wrong = np.flatnonzero(source.labels[indices] != pack.read("label"))
        if len(wrong):
            raise _differs(source, pack, int(wrong[0]), int(indices[wrong[0]]), "another label")
    make = PixelMaker(spec)
    pixels = np.empty(spec.shape, np.uint8)
    rows = np.unique(np.linspace(0, pack.rows - 1, CHECKED_ROWS).astype(np.int64)).tolist()
    for row in rows:
        make(source.read(int(indices[row])), pixels)
        if not np.array_equal(pack.read("image", row, row + 1)[0], pixels):
            raise _differs(source, pack, row, int(indices[row]), "other pixels")
    return len(rows)


def _differs(source: Source, pack: Pack, row: int, index: int, what: str) -> PackerError:
    return PackerError(
        f"{pack.path}: row {row} has {what} than {source.keys[index]!r} in {source.name} gives now;"
        " a comparison needs the same on both sides. Convert the images again."
    )
