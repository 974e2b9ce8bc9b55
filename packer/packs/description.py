"""Description of a pack in text lines for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packer import units
from packer.format.fields import Field
from packer.format.header import (
    TRAIN,
    VERSION,
    Header,
)
from packer.format.header_forms import NORMALIZE

_LISTED = 12
"""Most classes, columns or points that are shown."""


def describe(path: str, header: Header, shards: Sequence[int], columns: Sequence[str]) -> list[str]:
    """Return the description of a pack as text lines.

    shards: rows of each; columns: lines about a table's columns.
    """
    size = f"{units.count(header.rows, 'row')}, {units.size(header.nbytes)}"
    lines = [f"{path}: {size}, {header.format}, format {VERSION}"]
    for f in header.fields:
        lines.append(f"  {f.name:<8} {describe_field(f)}")
    if header.classes is not None:
        shown = ", ".join(header.classes[:_LISTED]) + (", ..." if len(header.classes) > _LISTED else "")
        lines.append(f"classes    {len(header.classes)}: {shown}")
    for name, values in header.statistics.items():
        lines.append(f"{name:<10} {_numbers(values)}")
    like = NORMALIZE in header.provenance.get("options", {})
    if like or header.train_statistics:
        whose = "of the pack that it was made like" if like else f"of the split {TRAIN}"
        lines.append(
            f"normalize  {_numbers(header.normalization)}: {whose}; Normalize() without numbers uses them"
        )
    lines += columns
    for name, spans in sorted(header.splits.items(), key=lambda item: item[1]):
        count = units.count(sum(b - a for a, b in spans), "row")
        lines.append(f"split      {name}: {count} ({', '.join(f'{a:,} to {b - 1:,}' for a, b in spans)})")
    order = "of the source" if header.seed is None else f"shuffled, seed {header.seed}"
    lines.append(f"order      {order}; blocks of {units.count(header.block_rows, 'row')}")
    lines.append(
        "made by    "
        + ", ".join(f"{k} {v}" for k, v in dict(header.provenance.get("versions") or {}).items())
    )
    left_out = (header.table or {}).get("skipped", {}).get("reasons", {})
    if left_out:
        lines.append("left out   " + ", ".join(f"{count:,} rows: {why}" for why, count in left_out.items()))
    if header.skipped:
        lines.append(
            f"skipped    {units.count(len(header.skipped), 'input')}; the header has their names and reasons"
        )
    if shards:
        lines.append(f"shards     {len(shards)}: {shards[0]:,} rows in the first")
    return lines


def describe_field(f: Field) -> str:
    """Return dtype, row shape and storage of a field, and what its rows mean."""
    about = ", ".join(f"{key} {_plain(value)}" for key, value in f.about.items())
    return f"{f.dtype.lstrip('<|'):<3} {_storage_text(f)}{f' ({about})' if about else ''}"


def _storage_text(f: Field) -> str:
    """Return a field's row shape and storage."""
    codec = dict(f.codec or {})
    how = f", {codec.pop('name')}" if codec else ""
    if f.loaded is not f or not f.ragged:
        return ("x".join(map(str, f.loaded.shape or ())) or "one a row") + how
    if {"row_shape", "dtype"} <= set(f.about):
        return f"{f.about['dtype'].lstrip('<|')} [{', '.join(['n', *map(str, f.about['row_shape'])])}]"
    if f.own_size is not None and not how:
        return "of any size, raw"
    return ("of any size" if how else "bytes of any length") + how


def _numbers(values: Mapping[str, Sequence[float]]) -> str:
    return "  ".join(f"{name} {' '.join(f'{x:.4f}' for x in each)}" for name, each in values.items())


def _plain(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return str(value)
    shown = [":".join(map(str, one)) if isinstance(one, (list, tuple)) else str(one) for one in value]
    return " ".join(shown[:_LISTED] or ["none"]) + (" ..." if len(shown) > _LISTED else "")
