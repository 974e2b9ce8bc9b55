"""The argument `window`: groups of consecutive rows of a pack, and batches with an axis of frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import UsageError
from packer.load.base_dataset import ChosenRows
from packer.load.batch import Batched, make_batch
from packer.orders.runs import one_run
from packer.orders.windows import WindowOrder, Windows
from packer.packs.file_rows import SEQUENCE_ROW
from packer.packs.joined_fields import FieldsPack
from packer.packs.pack import Pack
from packer.read.array_store import PackStore

if TYPE_CHECKING:
    from packer.augment import Pipeline

_TEXTS_AT_ONCE = 1 << 16


def find_windows(window: Windows | int | None, rows: ChosenRows) -> WindowOrder | None:
    """Return the windows of the chosen rows, without an order; None without `window`.

    Reads the field of the groups for all rows. Raises UsageError for rows that are not in order, or if there
    is no window.
    """
    if window is None:
        return None
    windows = window if isinstance(window, Windows) else Windows(window)
    _check_in_order(rows.pack, windows)
    if rows.weights:
        raise UsageError("window: packs with weights have none. Pass the packs without weights.")
    order = WindowOrder(windows, _bounds(windows, rows), rows.subset)
    if not order.count:
        raise UsageError(
            f"{rows.pack.path}: no group of rows is as long as {windows!r}, which needs"
            f" {(windows.frames - 1) * windows.dilation + 1} rows in a row. Pass a shorter window, or"
            " ends='repeat'."
        )
    return order


def check_with_windows(transform: bool, padding: bool, views: Mapping[str, Pipeline]) -> None:
    """Raise UsageError for arguments of a dataset that take rows, not windows."""
    mixing = any(view.mixes for view in views.values())
    for given, name in ((transform, "transform"), (padding, "collate='pad'"), (mixing, "MixUp and CutMix")):
        if given:
            raise UsageError(f"{name}: is for single rows, not for window=. Apply it to the batches.")


def _check_in_order(pack: Pack, windows: Windows) -> None:
    """Raise UsageError unless neighbouring rows of a pack follow each other, as far as that is known."""
    if SEQUENCE_ROW in pack.fields:
        return
    for one in pack.packs:
        if SEQUENCE_ROW in one.header.fields:
            raise UsageError(
                f"{one.path}: holds sequences, and another of these packs does not, or join_fields left"
                f" {SEQUENCE_ROW.name} out; windows need all or none. Take this field, or convert the other"
                " one again with sequence=True."
            )
    for part in _parts_in_order(pack):
        if part.header.seed is not None:
            raise UsageError(
                f"{part.path}: its rows were shuffled when it was made, so neighbours are no sequence."
                " Convert it again with sequence=True, or arrays with shuffle=False."
            )
        options = part.header.provenance.get("options", {})
        shares = {**options.get("split", {}), **options.get("part", {}).get("shares", {})}.values()
        drawn = any(share != "rest" and ":" not in str(share) for share in shares)
        if drawn and not options.keys() & {"group", "split_group"}:
            raise UsageError(
                f"{part.path}: the rows of its splits were drawn one by one, so neighbours are no sequence."
                " Convert it again with sequence=True, or arrays with split='train=rest,val=last:1000'."
            )
        converted = part.header.table is not None or "max_pixels" in options
        if windows.group is None and converted:
            raise UsageError(
                f"{part.path}: does not record which rows are a sequence, so windows may reach over their"
                " ends. Convert it again with sequence=True, or pass window=Windows(..., group=FIELD)."
            )


def _parts_in_order(pack: Pack) -> list[Pack]:
    """Return the shards of all packs whose rows are those of a pack, in the same order."""
    found = list[Pack]()
    for one in pack.members or (pack,):
        if isinstance(one, FieldsPack):  # places: rows that were matched by keys
            found += [other for other, places in zip(one.shards, one.places, strict=True) if places is None]
        else:
            found.append(one)
    return [part for one in found for part in one.parts]


def _bounds(windows: Windows, rows: ChosenRows) -> NDArray[np.int64]:
    """Return the first row of each group of consecutive rows, and the number of rows, int64 [groups + 1]."""
    pack, subset = rows.pack, rows.subset
    runs = subset.place(one_run(0, subset.rows))
    edges = [np.array([0, subset.rows]), np.cumsum(runs.lengths)]
    numbers = runs.rows()
    spans = [row for parts in pack.header.splits.values() for span in parts for row in span]
    spans += np.cumsum([member.rows for member in pack.members]).tolist()
    edges.append(np.flatnonzero(np.isin(numbers, spans)))
    if SEQUENCE_ROW in pack.fields:
        steps = np.diff(PackStore(pack, (), subset).column(SEQUENCE_ROW.name))
        edges.append(np.flatnonzero(steps != 1) + 1)
    elif any(f.counts for f in pack.fields):  # rows of a table that were left out are gaps
        edges.append(np.flatnonzero(np.diff(pack.source_rows[numbers]) != 1) + 1)
    places = np.unique(np.concatenate(edges))
    if (name := windows.group) is None:
        return places
    values = _groups(PackStore(pack, (), subset), name)
    begins = np.unique(np.concatenate([places, np.flatnonzero(values[1:] != values[:-1]) + 1]))
    owners = np.searchsorted(places, begins[:-1], "right"), values[begins[:-1]]
    _, first, counts = np.unique(np.stack(owners), axis=1, return_index=True, return_counts=True)
    if (counts > 1).any():
        row = int(numbers[begins[first[counts > 1][0]]])
        raise UsageError(
            f"{pack.path}: the rows of the group of row {row:,} ({name!r}) do not lie together; windows are"
            " of consecutive rows. Sort the source by group, or pass window=Windows(..., group=FIELD)."
        )
    return begins


def _groups(store: PackStore, name: str) -> NDArray[np.int64]:
    """Return a number for each row, equal for equal values of a field. int64 [rows]."""
    pack = store.pack
    field = next((f for f in pack.fields if f.name == name), None)
    if field is None or (field.shape != () and "encoding" not in field.about):
        known = ", ".join(f.name for f in pack.fields if f.shape == () or "encoding" in f.about)
        raise UsageError(
            f"window: group={name!r} is no field of one value a row in {pack.path}; its fields of such are"
            f" {known or 'none'}. Pass one of them."
        )
    if field.shape == ():
        return np.unique(store.column(name), return_inverse=True)[1].astype(np.int64)
    found, numbers = dict[str, int](), list[int]()
    for first in range(0, store.rows, _TEXTS_AT_ONCE):
        texts = store.decoded(name, one_run(first, min(first + _TEXTS_AT_ONCE, store.rows)))
        numbers += [found.setdefault(text, len(found)) for text in texts]
    return np.array(numbers)


def group_frames(batch: Any, order: WindowOrder, windows: NDArray[np.int64]) -> Any:
    """Return a batch of frames with an axis of windows: [B * span, ...] -> [B, length, ...].

    Labels are those of the horizon, [B, horizon], if there is one. Lists become lists of lists. Where windows
    may repeat rows, the field frame_mask, bool [B, length], is added.
    """
    span, length = order.span, order.windows.length

    def grouped(name: str, value: Any) -> Any:
        some = slice(length, span) if name == "label" and span > length else slice(length)
        if isinstance(value, list):
            return [value[at : at + span][some] for at in range(0, len(value), span)]
        return value.reshape(-1, span, *value.shape[1:])[:, some]

    found = {name: grouped(name, value) for name, value in zip(batch._fields, batch, strict=True)}
    if order.windows.ends == "repeat":
        found["frame_mask"] = _beside(next(iter(found.values())), order.frames(windows)[1][:, :length])
    lists = all(isinstance(value, list) for value in found.values())
    base = Batched if isinstance(batch, Batched) else object
    return make_batch(tuple(found), found.values(), base, lists)


def _beside(value: Any, mask: NDArray[np.bool_]) -> Any:
    """Return a mask in the form of a field: an array, or a tensor on its device."""
    if isinstance(value, np.ndarray):
        return mask
    import torch

    return torch.from_numpy(mask).to(getattr(value, "device", "cpu"), non_blocking=True)
