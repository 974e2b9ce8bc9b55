"""How the labels of packs are distributed: over classes or numbers, and over splits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.format.checksums import block_checksum
from packer.format.header import Field
from packer.format.pack import Pack
from packer.orders.runs import one_run
from packer.read.row_reader import RowReader
from packer.read.row_selection import class_names

BINS = 40
_PIECE_BYTES = 16 << 20
_MOST_CLASSES = 65_536
"""Whole numbers without names that take more values than this are numbers, not classes; so are those below _UNLABELED."""
_MOST_TABLE_CLASSES = 1000
"""The same of tables, whose label is often an amount."""
_UNLABELED = -1
"""The class of rows that have none, by custom."""
_MOST_COLUMNS = 12
"""Of a label of several numbers that are shown."""

Ints = NDArray[np.int64]


class RowGroup(NamedTuple):
    """Rows that belong together: a split of a pack, or a pack without splits. pack: its number; rows: how many."""

    name: str
    pack: int
    rows: int


class Histogram(NamedTuple):
    """Numbers counted in equal bins from `least` to `most`. mean: of all; missing: NaN and infinities, in no bin."""

    name: str
    least: float
    most: float
    mean: float
    counts: tuple[int, ...]
    missing: int


class LabelMeasures(NamedTuple):
    """The labels of all rows. kind: "class", "several" classes a row, "boxes", "number", or "" without labels.

    names: of the classes; counts: int64 [parts, classes], rows (of boxes: boxes). ids: int64 [N], equal where labels are, or None.
    numbers: of labels that are numbers.
    """

    kind: str
    names: tuple[str, ...]
    counts: Ints
    ids: Ints | None
    numbers: tuple[Histogram, ...] = ()

    @property
    def classes(self) -> Ints | None:
        """The class of each row, int64 [N], where it has one."""
        return self.ids if self.kind == "class" else None


def parts_of(packs: Sequence[Pack], names: Sequence[str]) -> tuple[list[RowGroup], NDArray[np.int16]]:
    """Return the parts of packs, and the number of each row's part, int16 [N]. names: of the packs.

    Rows of no split are a part of their own. Of splits that overlap a row counts for the smallest.
    """
    numbers: list[NDArray[np.int16]] = []
    parts: list[RowGroup] = []
    for number, (pack, name) in enumerate(zip(packs, names, strict=True)):
        own = np.full(pack.rows, -1, np.int16)
        splits = {split: sum(b - a for a, b in spans) for split, spans in pack.header.splits.items()}
        found: list[str] = []
        for split in sorted(splits, key=lambda split: -splits[split]):
            for a, b in pack.header.splits[split]:
                own[a:b] = len(found)
            found.append(split if len(packs) == 1 else f"{name}, {split}")
        rest = own == -1
        if rest.any():
            own[rest] = len(found)
            found.append(
                "other rows" if splits and len(packs) == 1 else f"{name}, other rows" if splits else name
            )
        counts = np.bincount(own, minlength=len(found)).tolist()
        numbers.append(own + len(parts))
        parts += [RowGroup(said, number, rows) for said, rows in zip(found, counts, strict=True)]
    return parts, np.concatenate(numbers).astype(np.int16)


def measure_labels(packs: Sequence[Pack], parts: NDArray[np.int16]) -> LabelMeasures:
    """Read the labels of packs. parts: of all rows."""
    kinds = [_kind(pack) for pack in packs]
    kind = kinds[0] if len(set(kinds)) == 1 else ""
    count = int(parts.max(initial=0)) + 1
    rows = np.cumsum([0, *(pack.rows for pack in packs)])
    own_parts = [parts[a:b] for a, b in pairwise(rows.tolist())]
    named = next((names for pack in packs if (names := class_names(pack))), ())
    if kind == "class":
        read = [np.concatenate([piece for _, (piece,) in pieces(pack, "label")]) for pack in packs]
        if named or _are_classes(np.unique(np.concatenate(read)), _is_table(packs[0])):
            return _of_classes(packs, read, named, parts, count)
        kind = "number"
    if kind in ("several", "boxes"):
        of = _several if kind == "several" else _boxes
        return of(packs, own_parts, named, count)
    if kind == "number":
        return LabelMeasures(kind, (), np.zeros((count, 0), np.int64), None, _numbers(packs))
    return LabelMeasures("", (), np.zeros((count, 0), np.int64), None)


def pieces(pack: Pack, *names: str) -> Iterator[tuple[int, list[NDArray[Any]]]]:
    """Yield fixed fields of all rows, some rows at a time: (first row, [n, *shape] of each field)."""
    fields = [pack.header.field(name).loaded for name in names]
    step = max(1, _PIECE_BYTES // max(1, sum(f.row_bytes for f in fields)))
    if any(f.compressed for f in fields):
        step = -(-step // pack.header.block_rows) * pack.header.block_rows
    reader = RowReader(pack, fields)
    try:
        for start in range(0, pack.rows, step):
            runs = one_run(start, min(start + step, pack.rows))
            yield start, [reader.array(f, runs) for f in fields]
    finally:
        reader.close()


def spread_rows(labels: LabelMeasures, total: int, most: int) -> Ints:
    """Return up to so many rows for a contact sheet, by class: as many of each as can be, spread over the pack."""
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
        first + np.linspace(0, count - 1, own).round().astype(np.int64)
        for first, count, own in zip(firsts.tolist(), counts.tolist(), shares.tolist(), strict=True)
    ]
    spread: Ints = order[np.concatenate(chosen)]
    return spread


def _is_table(pack: Pack) -> bool:
    return pack.parts[0].header.table is not None


def _are_classes(values: NDArray[Any], table: bool) -> bool:
    """Return True for whole numbers that are classes, as far as can be told. values: those that occur, ascending."""
    return len(values) <= (_MOST_TABLE_CLASSES if table else _MOST_CLASSES) and values[0] >= _UNLABELED


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


def _of_classes(
    packs: Sequence[Pack],
    read: list[NDArray[Any]],
    named: Sequence[str],
    parts: NDArray[np.int16],
    count: int,
) -> LabelMeasures:
    names: dict[str, int] = {}
    ids = []
    for pack, values in zip(packs, read, strict=True):
        own = class_names(pack) or named
        for name in own:
            names.setdefault(name, len(names))
        found, places = np.unique(values, return_inverse=True)
        known = [own[n] if 0 <= n < len(own) else str(n) for n in found.tolist()]
        ids.append(np.array([names.setdefault(name, len(names)) for name in known], np.int64)[places])
    all_ids = np.concatenate(ids)
    counts = np.bincount(parts * np.int64(len(names)) + all_ids, minlength=count * len(names))
    return LabelMeasures("class", tuple(names), counts.reshape(count, -1), all_ids)


def _several(
    packs: Sequence[Pack], parts: Sequence[NDArray[np.int16]], named: Sequence[str], count: int
) -> LabelMeasures:
    width = max((pack.header.field("label").shape or (0,))[0] for pack in packs)
    counts, ids = np.zeros((count, width), np.int64), []
    for pack, own in zip(packs, parts, strict=True):
        for start, (piece,) in pieces(pack, "label"):
            has = piece != 0
            for part in np.unique(own[start : start + len(has)]).tolist():
                counts[part, : has.shape[1]] += has[own[start : start + len(has)] == part].sum(axis=0)
            ids.append(np.array([block_checksum(row) for row in piece], np.uint64).view(np.int64))
    names = tuple(named[n] if n < len(named) else str(n) for n in range(width))
    return LabelMeasures("several", names, counts, np.concatenate(ids))


def _boxes(
    packs: Sequence[Pack], parts: Sequence[NDArray[np.int16]], named: Sequence[str], count: int
) -> LabelMeasures:
    counts = np.zeros((count, len(named)), np.int64)
    for pack, own in zip(packs, parts, strict=True):
        field = pack.header.field("box_label")
        reader = RowReader(pack, [field])
        for start in range(0, pack.rows, 4096):
            stop = min(start + 4096, pack.rows)
            rows = reader.read_ragged("box_label", one_run(start, stop))
            values = np.frombuffer(b"".join(rows), field.about["dtype"]).astype(np.int64)
            lengths = np.array([len(row) for row in rows]) // np.dtype(field.about["dtype"]).itemsize
            owner = np.repeat(own[start:stop], lengths)
            values, owner = values[values >= 0], owner[values >= 0]
            wide = max(counts.shape[1], int(values.max(initial=-1)) + 1)
            if wide > counts.shape[1]:
                counts = np.pad(counts, ((0, 0), (0, wide - counts.shape[1])))
            counts += np.bincount(owner * np.int64(wide) + values, minlength=count * wide).reshape(count, -1)
        reader.close()
    names = tuple(named[n] if n < len(named) else str(n) for n in range(counts.shape[1]))
    return LabelMeasures("boxes", names, counts, None)


def _numbers(packs: Sequence[Pack]) -> tuple[Histogram, ...]:
    """Return a histogram of each column of labels that are numbers."""
    label = packs[0].header.field("label")
    columns = (label.shape or (1,))[0]
    given = label.about.get("columns") or (packs[0].parts[0].header.table or {}).get("label", {}).get(
        "columns"
    )
    names = [str(name) for name in given] if given and len(given) == columns else ["label"] * columns
    read = [
        piece.reshape(len(piece), -1)[:, :columns] for pack in packs for _, (piece,) in pieces(pack, "label")
    ]
    found = []
    for name, values in zip(names[:_MOST_COLUMNS], np.concatenate(read).T, strict=False):
        good = values[np.isfinite(values)].astype(np.float64)
        if len(good):
            counts, _ = np.histogram(good, BINS)
            low, high, mean = (float(x) for x in (good.min(), good.max(), good.mean()))
            found.append(Histogram(name, low, high, mean, tuple(counts.tolist()), len(values) - len(good)))
    return tuple(found)
