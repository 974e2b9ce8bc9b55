"""Distribution of the labels of packs over classes or numbers, and over splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.checksums import block_checksum
from packer.format.header import Field
from packer.format.pack import Pack
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

    @property
    def classes(self) -> Ints | None:
        """Class of each row, int64 [N]; None unless each row has a class."""
        return self.ids if self.kind == "class" else None


def parts_of(packs: Sequence[Pack], names: Sequence[str]) -> tuple[list[RowGroup], NDArray[np.int16]]:
    """Return the parts of packs, and the number of each row's part, int16 [N]. names: of the packs.

    Rows outside all splits form another part. A row in several splits counts for the smallest.
    """
    numbers: list[NDArray[np.int16]] = []
    parts: list[RowGroup] = []
    for pack, name in zip(packs, names, strict=True):
        numbers_in_pack = np.full(pack.rows, -1, np.int16)
        splits = {split: sum(b - a for a, b in spans) for split, spans in pack.header.splits.items()}
        found: list[str] = []
        for split in sorted(splits, key=lambda split: -splits[split]):
            for a, b in pack.header.splits[split]:
                numbers_in_pack[a:b] = len(found)
            found.append(split if len(packs) == 1 else f"{name}, {split}")
        rest = numbers_in_pack == -1
        if rest.any():
            numbers_in_pack[rest] = len(found)
            found.append(
                "other rows" if splits and len(packs) == 1 else f"{name}, other rows" if splits else name
            )
        counts = np.bincount(numbers_in_pack, minlength=len(found)).tolist()
        numbers.append(numbers_in_pack + len(parts))
        parts += map(RowGroup, found, counts)
    return parts, np.concatenate(numbers).astype(np.int16)


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
    counts, first = np.zeros((count, 0), np.int64), 0
    if kind in ("", "number"):
        return LabelMeasures(kind, (), counts, None, _numbers(packs) if kind else ())
    names: dict[str, int] = {}
    ids = []
    for pack in packs:
        pack_names = class_names(pack) or named
        if kind == "several":
            pack_names = pack_names or tuple(map(str, range((pack.header.field("label").shape or (0,))[0])))
        for name in pack_names:
            names.setdefault(name, len(names))
        for rows, classes, equal in _class_entries(pack, kind):
            numbers, places = np.unique(classes, return_inverse=True)
            known = [pack_names[n] if 0 <= n < len(pack_names) else str(n) for n in numbers.tolist()]
            found = np.array([names.setdefault(name, len(names)) for name in known], np.int64)[places]
            counts = np.pad(counts, ((0, 0), (0, len(names) - counts.shape[1])))
            cells = parts[first + rows] * np.int64(len(names)) + found
            counts += np.bincount(cells, minlength=counts.size).reshape(counts.shape)
            ids.append(found if equal is None else equal)
        first += pack.rows
    return LabelMeasures(kind, tuple(names), counts, None if kind == "boxes" else np.concatenate(ids))


def _class_entries(pack: Pack, kind: str) -> Iterator[tuple[Ints, NDArray[Any], Ints | None]]:
    """Yield (rows, classes, ids) in pieces, an entry for each class of each row.

    ids: of the rows in the piece, equal where labels are equal; None where the classes serve as ids, or where
    labels are not compared.
    """
    if kind != "boxes":
        for start, (piece,) in read_pieces(pack, "label"):
            if kind == "class":
                yield np.arange(start, start + len(piece)), piece, None
            else:
                rows, classes = np.nonzero(piece)
                yield (
                    start + rows,
                    classes,
                    np.array([block_checksum(row) for row in piece], np.uint64).view(np.int64),
                )
        return
    field = pack.header.field("box_label")
    for start, (piece,) in read_pieces(pack, "box_label"):
        found = [np.frombuffer(row, field.about["dtype"]) for row in piece]
        rows = np.repeat(np.arange(start, start + len(found)), [*map(len, found)])
        classes = np.concatenate(found)
        yield rows[classes >= 0], classes[classes >= 0], None


def spread_rows(labels: LabelMeasures, total: int, most: int) -> Ints:
    """Return at most `most` rows for a contact sheet, of all classes in turn, spread over the pack."""
    if labels.classes is None:
        return np.linspace(0, total - 1, min(most, total)).round().astype(np.int64)
    order = np.argsort(labels.classes, kind="stable")
    counts = np.bincount(labels.classes, minlength=len(labels.names))
    share = 0
    while share < most and np.minimum(counts, share + 1).sum() <= most:
        share += 1
    shares = np.minimum(counts, share)
    shares[np.flatnonzero(counts > share)[: most - int(shares.sum())]] += 1
    firsts = np.cumsum(counts) - counts
    chosen = [
        first + np.linspace(0, count - 1, taken).round().astype(np.int64)
        for first, count, taken in zip(firsts.tolist(), counts.tolist(), shares.tolist(), strict=True)
    ]
    in_turn = np.argsort(np.concatenate([np.arange(taken) for taken in shares]), kind="stable")
    spread: Ints = order[np.concatenate(chosen)[in_turn]]
    return spread


def _are_classes(packs: Sequence[Pack]) -> bool:
    """Return True if unnamed integers are probably classes."""
    values = np.unique(
        np.concatenate([np.unique(piece) for pack in packs for _, (piece,) in read_pieces(pack, "label")])
    )
    most = _MOST_CLASSES if packs[0].parts[0].header.table is None else _MOST_TABLE_CLASSES
    return len(values) <= most and bool(values[0] >= _UNLABELED)


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
    label = packs[0].header.field("label")
    columns = (label.shape or (1,))[0]
    given = label.about.get("columns") or (packs[0].parts[0].header.table or {}).get("label", {}).get(
        "columns"
    )
    names = [str(name) for name in given] if given and len(given) == columns else ["label"] * columns
    read = [
        piece.reshape(len(piece), -1)[:, :columns]
        for pack in packs
        for _, (piece,) in read_pieces(pack, "label")
    ]
    columns_read = zip(names[:_MOST_COLUMNS], np.concatenate(read).T, strict=False)
    return tuple(histogram_of(name, values) for name, values in columns_read if np.isfinite(values).any())
