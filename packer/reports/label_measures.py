"""Distribution of the labels of packs over classes or numbers, and over splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.checksums import block_checksum
from packer.format.fields import Field
from packer.packs.pack import Pack
from packer.read.row_pieces import read_pieces
from packer.read.row_selection import class_names

BINS = 40
_MOST_CLASSES = 65_536
"""Unnamed integers with more distinct values, or below _UNLABELED, are numbers, not classes."""
_MOST_TABLE_CLASSES = 1000
"""The same limit for tables, whose label is often an amount."""
_UNLABELED = -1
"""The conventional class of rows without a label."""
_MOST_COLUMNS = 12
"""Columns shown of a label with several numbers."""
_GOLDEN = (5**0.5 - 1) / 2

Ints = NDArray[np.int64]


class RowGroup(NamedTuple):
    """A split of a pack, or a pack without splits. rows: number of rows."""

    name: str
    rows: int


class Histogram(NamedTuple):
    """Counts of numbers in equal bins from `least` to `most`.

    mean, median: of all finite numbers; missing: NaN and infinities, which are in no bin. unit: behind each
    number, such as " px".
    """

    name: str
    least: float
    most: float
    mean: float
    median: float
    counts: tuple[int, ...]
    missing: int
    unit: str


class LabelMeasures(NamedTuple):
    """The labels of all rows.

    kind: "class", "several" (classes a row), "boxes", "number", or "" without labels.
    names: of the classes; counts: rows (or boxes) by part and class, int64 [parts, classes].
    ids: int64 [N], equal for rows with equal labels, or None.
    numbers: histograms of numeric labels.
    """

    kind: str
    names: tuple[str, ...]
    counts: Ints
    ids: Ints | None
    numbers: tuple[Histogram, ...] = ()


def parts_of(packs: Sequence[Pack], names: Sequence[str]) -> tuple[list[RowGroup], NDArray[np.int16]]:
    """Return the parts of packs, and the number of each row's part, int16 [N]. names: of the packs.

    Rows outside all splits form another part. A row in several splits counts for the smallest.
    """
    numbers: list[NDArray[np.int16]] = []
    parts: list[RowGroup] = []
    for pack, name in zip(packs, names, strict=True):
        prefix = f"{name}, " if len(packs) > 1 else ""
        splits = sorted(pack.header.splits.items(), key=lambda one: -sum(b - a for a, b in one[1]))
        found = [prefix + split for split, _ in splits]
        in_pack = np.full(pack.rows, len(found), np.int16)
        for number, (_, spans) in enumerate(splits):
            for a, b in spans:
                in_pack[a:b] = number
        if (in_pack == len(found)).any():
            found.append(f"{prefix}other rows" if splits else name)
        counts = np.bincount(in_pack, minlength=len(found)).tolist()
        numbers.append(in_pack + np.int16(len(parts)))
        parts += map(RowGroup, found, counts)
    return parts, np.concatenate(numbers)


def histogram_of(name: str, values: NDArray[Any], unit: str = "") -> Histogram:
    """Return the distribution of numbers, of which some are finite."""
    good = values[np.isfinite(values)].astype(np.float64)
    counts, _ = np.histogram(good, BINS)
    low, high, mean, median = map(float, (good.min(), good.max(), good.mean(), np.median(good)))
    return Histogram(name, low, high, mean, median, tuple(counts.tolist()), len(values) - len(good), unit)


def measure_labels(packs: Sequence[Pack], parts: NDArray[np.int16], count: int) -> LabelMeasures:
    """Read the labels of packs. parts: the part of each row; count: number of parts."""
    kinds = {_kind(pack) for pack in packs}
    kind = kinds.pop() if len(kinds) == 1 else ""
    named = next(filter(None, map(class_names, packs)), ())
    if kind == "class" and not named and not _are_classes(packs):
        kind = "number"
    if kind in ("", "number"):
        return LabelMeasures(kind, (), np.zeros((count, 0), np.int64), None, _numbers(packs) if kind else ())
    names: dict[str, int] = {}
    ids, cells, first = [], [], 0
    for pack in packs:
        pack_names = class_names(pack) or named
        for name in pack_names:
            names.setdefault(name, len(names))
        for rows, classes, equal in _class_entries(pack, kind):
            numbers, places = np.unique(classes, return_inverse=True)
            known = [pack_names[n] if 0 <= n < len(pack_names) else str(n) for n in numbers.tolist()]
            found = np.array([names.setdefault(name, len(names)) for name in known], np.int64)[places]
            cells.append((parts[first + rows], found))
            ids.append(found if equal is None else equal)
        first += pack.rows
    counts = np.zeros((count, len(names)), np.int64)
    for cell in cells:
        np.add.at(counts, cell, 1)
    return LabelMeasures(kind, tuple(names), counts, None if kind == "boxes" else np.concatenate(ids))


def _class_entries(pack: Pack, kind: str) -> Iterator[tuple[Ints, NDArray[Any], Ints | None]]:
    """Yield (rows, classes, ids) in pieces, an entry for each class of each row.

    ids: of the rows in the piece, equal where labels are equal; None where the classes serve as ids, or where
    labels are not compared.
    """
    field = pack.header.field("box_label" if kind == "boxes" else "label")
    for start, (piece,) in read_pieces(pack, field.name):
        if kind == "class":
            yield np.arange(start, start + len(piece)), piece, None
        elif kind == "several":
            rows, classes = np.nonzero(piece)
            yield start + rows, classes, np.array([*map(block_checksum, piece)], np.uint64).view(np.int64)
        else:
            found = [np.frombuffer(row, field.about["dtype"]) for row in piece]
            rows = np.repeat(np.arange(start, start + len(found)), [*map(len, found)])
            classes = np.concatenate(found)
            yield rows[classes >= 0], classes[classes >= 0], None


def spread_rows(labels: LabelMeasures, total: int, most: int) -> Ints:
    """Return at most `most` rows for a contact sheet, of all classes in turn, spread over the pack."""
    classes = np.zeros(total, np.int64) if labels.kind != "class" or labels.ids is None else labels.ids
    # The first multiples of the golden section, modulo 1, lie evenly: the rows with the smallest are spread.
    chosen = np.sort(_in_turn(classes, np.arange(total) * _GOLDEN % 1)[:most])
    return chosen[_in_turn(classes[chosen], chosen)]


def _in_turn(classes: Ints, places: NDArray[Any]) -> Ints:
    """Return all rows, one of each class in turn, those of a class by their places."""
    order = np.lexsort((places, classes))
    counts = np.bincount(classes)
    turns = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return order[np.lexsort((classes[order], turns))]


def _are_classes(packs: Sequence[Pack]) -> bool:
    """Return True if unnamed integers are probably classes."""
    values = np.unique(np.concatenate([np.unique(piece) for piece in _label_pieces(packs)]))
    most = _MOST_CLASSES if packs[0].parts[0].header.table is None else _MOST_TABLE_CLASSES
    return len(values) <= most and bool(values[0] >= _UNLABELED)


def _label_pieces(packs: Sequence[Pack]) -> Iterator[NDArray[Any]]:
    return (piece for pack in packs for _, (piece,) in read_pieces(pack, "label"))


def _kind(pack: Pack) -> str:
    fields: dict[str, Field] = {f.name: f for f in pack.fields}
    label = fields.get("label")
    if label is None or label.ragged:
        boxes = fields.get("box_label")
        return "boxes" if boxes is not None and "row_shape" in boxes.about else ""
    shape, kind = label.shape or (), np.dtype(label.dtype).kind
    if len(shape) == 1 and label.dtype == "|u1":
        return "several"
    if shape == () and kind in "iub":
        return "class"
    return "number" if len(shape) < 2 else ""


def _numbers(packs: Sequence[Pack]) -> tuple[Histogram, ...]:
    """Return a histogram of each column of numeric labels."""
    label, table = packs[0].header.field("label"), packs[0].parts[0].header.table or {}
    columns = (label.shape or (1,))[0]
    given = label.about.get("columns") or table.get("label", {}).get("columns") or ()
    names = [*map(str, given)] if len(given) == columns else ["label"] * columns
    read = [piece.reshape(len(piece), -1)[:, :columns] for piece in _label_pieces(packs)]
    columns_read = zip(names[:_MOST_COLUMNS], np.concatenate(read).T, strict=False)
    return tuple(histogram_of(name, values) for name, values in columns_read if np.isfinite(values).any())
