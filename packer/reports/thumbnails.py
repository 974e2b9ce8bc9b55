"""Rows of packs as small pictures inside the page, with their keys and labels."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.pack import Pack
from packer.orders.runs import Runs
from packer.previews.drawing import draw_thumbnail
from packer.previews.preview_batch import captions, image_of, pictures, read_batch
from packer.read.row_reader import RowReader

TILE = 144  # pixels: the longer side, at most
_GROUP = 16  # rows that are decoded at once, at full size


class Thumbnail(NamedTuple):
    """A row to be shown. source: a data URI; key: the name of its file, "" if none is known; labels: lines of text."""

    source: str
    row: int
    key: str
    labels: tuple[str, ...]


def draw_thumbnails(packs: Sequence[Pack], rows: Iterable[int]) -> dict[int, Thumbnail]:
    """Return rows as pictures, with masks, boxes and points over them. rows: counted over all packs. Raises FormatError."""
    wanted = np.unique(np.fromiter(rows, np.int64))
    found: dict[int, Thumbnail] = {}
    first = 0
    for pack in packs:
        own = wanted[(wanted >= first) & (wanted < first + pack.rows)] - first
        for start in range(0, len(own), _GROUP):
            found |= {first + one.row: one for one in _drawn(pack, own[start : start + _GROUP])}
        first += pack.rows
    return found


def _drawn(pack: Pack, rows: NDArray[np.int64]) -> list[Thumbnail]:
    batch = read_batch(pack, rows)
    batch = replace(batch, images=pictures(batch.images, image_of(pack))[0])
    columns: Any = next((f.about.get("columns") for f in pack.fields if f.name == "label"), None)
    classes = pack.header.classes
    texts = captions(batch, classes, columns and [str(name) for name in columns])
    if batch.label is None and batch.box_label is None:
        texts = [[] for _ in rows]  # its row is told anyway
    keys = _keys(pack, rows)
    return [
        Thumbnail(
            data_uri(draw_thumbnail(batch, i, (TILE, TILE), classes)), int(row), keys[i], tuple(texts[i])
        )
        for i, row in enumerate(rows)
    ]


def _keys(pack: Pack, rows: NDArray[np.int64]) -> list[str]:
    field = next((f for f in pack.fields if f.name == "key" and "encoding" in f.about), None)
    if field is None:
        return [""] * len(rows)
    reader = RowReader(pack, [field])
    try:
        found = reader.read_ragged("key", Runs(rows, np.ones(len(rows), np.int64)))
    finally:
        reader.close()
    return [key.decode("utf-8", "surrogateescape") for key in found]


def data_uri(jpeg: bytes) -> str:
    """Return a JPEG file as a data URI."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")
