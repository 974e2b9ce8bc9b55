"""Measures the contents of a data card: labels, duplicates, sizes, and rows as small pictures."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.checksums import block_checksum
from packer.orders.runs import Runs, pieces
from packer.packs.pack import Pack
from packer.previews.drawing import Color, draw_thumbnail, mask_colors
from packer.previews.preview_batch import captions, image_of, label_columns, pictures, read_batch
from packer.progress import Progress
from packer.read.array_store import PackStore
from packer.read.row_pieces import read_pieces
from packer.reports.image_measures import measure_images
from packer.reports.label_measures import (
    Histogram,
    LabelMeasures,
    RowGroup,
    histogram_of,
    measure_labels,
    parts_of,
    spread_rows,
)
from packer.reports.near_duplicates import Duplicates, find_duplicates

_TILE = 144  # pixels: the longer side of a picture, at most
_GROUP = 16  # rows decoded at a time, at full size


class Thumbnail(NamedTuple):
    """A row as a picture.

    source: a data URI; row: its number; key: its file name, "" if unknown; labels: lines of text.
    """

    source: str
    row: int
    key: str
    labels: Sequence[str]


@dataclass(frozen=True)
class CardContent:
    """The contents of the page.

    names: of the packs; rows: number of rows in all packs.
    parts: splits or packs, by number; row_parts: the number of each row's part, [N].
    duplicates: None where they were not searched.
    sheet: rows of the contact sheet; thumbnails: pictures, by row.
    mask_colors: RGB of each value in their masks.
    sizes: distributions of widths and heights, none if all images have one size.
    """

    packs: Sequence[Pack]
    names: Sequence[str]
    rows: int
    parts: Sequence[RowGroup]
    row_parts: NDArray[np.int16]
    labels: LabelMeasures
    duplicates: Duplicates | None
    sheet: Sequence[int]
    thumbnails: Mapping[int, Thumbnail]
    mask_colors: Mapping[str, Color]
    sizes: Sequence[Histogram]


def measure_card(
    packs: Sequence[Pack], names: Sequence[str], most: int, workers: int, bar: Progress
) -> CardContent:
    """Read packs. most: rows on the contact sheet; workers: threads. Raises FormatError."""
    parts, row_parts = parts_of(packs, names)
    labels = measure_labels(packs, row_parts, len(parts))
    total = sum(pack.rows for pack in packs)
    bar.start(total)
    found, sheet, shown, sizes = None, [], set[int](), list[Histogram]()
    if packs[0].header.find("image") is not None:
        images = measure_images(packs, workers, bar.move)
        found = find_duplicates(images.digests, row_parts, labels.ids, images)
        sheet = spread_rows(labels, total, most).tolist()
        shown = {*sheet, *found.shown_rows()}
        if (images.sizes != images.sizes[0]).any():
            heights, widths = images.sizes.astype(np.float64).T
            sides = histogram_of("width", widths, " px"), histogram_of("height", heights, " px")
            areas = histogram_of("megapixels", widths * heights / 1e6, " MP")
            sizes = [*sides, histogram_of("width / height", widths / heights), areas]
    elif packs[0].parts[0].header.table is not None:
        fields = [name for name in ("features", "categories") if packs[0].header.find(name) is not None]
        if fields:
            found = find_duplicates(_row_digests(packs, fields, bar.move), row_parts, labels.ids, None)
    thumbnails, colors = _draw_rows(packs, shown)
    return CardContent(packs, names, total, parts, row_parts, labels, found, sheet, thumbnails, colors, sizes)


def _row_digests(
    packs: Sequence[Pack], fields: Sequence[str], progress: Callable[[int], None]
) -> NDArray[np.uint64]:
    """Return a checksum of each row of some fields."""
    digests: list[int] = []
    for pack in packs:
        for _, parts in read_pieces(pack, *fields):
            rows = [np.ascontiguousarray(part).view(np.uint8).reshape(len(part), -1) for part in parts]
            digests += map(block_checksum, np.concatenate(rows, axis=1))
            progress(len(digests))
    return np.array(digests, np.uint64)


def _draw_rows(packs: Sequence[Pack], rows: Iterable[int]) -> tuple[dict[int, Thumbnail], dict[str, Color]]:
    """Return rows as pictures, with masks, boxes and points, and the colours of the masks.

    rows: numbers over all packs. Raises FormatError.
    """
    wanted = np.unique(np.fromiter(rows, np.int64))
    found: dict[int, Thumbnail] = {}
    colors: dict[str, Color] = {}
    first = 0
    for pack in packs:
        in_pack = wanted[(wanted >= first) & (wanted < first + pack.rows)] - first
        for start, stop in pieces(len(in_pack), _GROUP):
            drawn, drawn_colors = _draw_batch(pack, in_pack[start:stop])
            found |= {first + one.row: one for one in drawn}
            colors |= drawn_colors
        first += pack.rows
    return found, colors


def _draw_batch(pack: Pack, rows: NDArray[np.int64]) -> tuple[list[Thumbnail], dict[str, Color]]:
    batch, classes, keys = read_batch(pack, rows), pack.header.classes, [b""] * len(rows)
    batch = replace(batch, images=pictures(batch.images, image_of(pack))[0])
    texts = captions(batch, classes, label_columns(pack))
    if key := next((f for f in pack.fields if f.name == "key" and "encoding" in f.about), None):
        with closing(PackStore(pack, [key])) as reader:
            keys = reader.ragged("key", Runs(rows, np.ones(len(rows), np.int64)))
    drawn = []
    for i, row in enumerate(rows.tolist()):
        jpeg = base64.b64encode(draw_thumbnail(batch, i, (_TILE, _TILE), classes)).decode("ascii")
        name = bytes(keys[i]).decode("utf-8", "surrogateescape")
        drawn.append(Thumbnail(f"data:image/jpeg;base64,{jpeg}", row, name, texts[i]))
    return drawn, mask_colors([batch])
