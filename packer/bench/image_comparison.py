"""Proof that both sides of a comparison do the same work: the images and the pack hold the same pixels and labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packer.errors import PackerError
from packer.format.pack import Pack
from packer.inputs.opened_source import ImageSource
from packer.load.batch_dataset import PackedBatchDataset
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.sentence import Option

CHECKED_ROWS = 32
LABELS_AT_ONCE = 1 << 16


def source_indices(source: ImageSource, pack: Pack) -> NDArray[np.int64]:
    """Return the source's index of each row of a pack, by the field "key": int64 [N].

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


def check_same(source: ImageSource, pack: Pack, indices: NDArray[np.int64], spec: PixelSpec) -> int:
    """Compare what loading hands out with the source: all labels, and the pixels of rows spread over the pack.

    indices: of source_indices; spec: how the pack's pixels were made. Returns how many rows' pixels were compared,
    byte for byte. Raises PackerError for the first difference.
    """
    if source.labels is not None:
        if all(field.name != "label" for field in pack.fields):
            raise PackerError(
                f"{pack.path}: has no labels, and {source.name} is given some; a comparison needs the same on both"
                " sides. Drop ",
                Option("labels"),
                ", or convert the images again.",
            )
        with PackedBatchDataset(
            pack, LABELS_AT_ONCE, fields=("label",), subset=slice(None), output="numpy"
        ) as batches:
            loaded = np.concatenate([batch.label for batch in batches])
        wrong = np.flatnonzero(source.labels[indices] != loaded)
        if len(wrong):
            remedy = "Pass the CSV it was made with as " + Option("labels") + ", or convert the images again."
            raise _differs(source, pack, int(wrong[0]), int(indices[wrong[0]]), "another label", remedy)
    make = DecodeResize(spec)
    pixels = np.empty(spec.shape, np.uint8)
    rows = np.unique(np.linspace(0, pack.rows - 1, CHECKED_ROWS).astype(np.int64)).tolist()
    with PackedBatchDataset(pack, 1, fields=("image",), subset=slice(None), output="numpy") as single:
        for row in rows:
            make(source.read(int(indices[row])), pixels)
            if not np.array_equal(single[row].image[0], pixels):
                raise _differs(source, pack, row, int(indices[row]), "other pixels")
    return len(rows)


def _differs(
    source: ImageSource,
    pack: Pack,
    row: int,
    index: int,
    what: str,
    remedy: str = "Convert the images again.",
) -> PackerError:
    return PackerError(
        f"{pack.path}: row {row} has {what} than {source.keys[index]!r} in {source.name} gives now;"
        " a comparison needs the same on both sides. ",
        remedy,
    )
