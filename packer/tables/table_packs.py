"""Rows from packs of tables: of several as if they were one, mapped alike, without going back to the source."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.row_maker import ColumnRows
from packer.errors import UsageError
from packer.format.header import Field
from packer.format.pack import Pack
from packer.format.pack_writer import Rows
from packer.format.shards import merge_headers
from packer.format.working_folder import difference
from packer.orders.runs import consecutive
from packer.read.row_reader import RowReader
from packer.sentence import Option, Sentence
from packer.tables.staging import MAX_SKIPPED


def is_table(pack: Pack) -> bool:
    """Tell whether a pack was made of a table."""
    return pack.parts[0].header.table is not None


def tables_together(packs: Sequence[Pack]) -> Pack:
    """Several packs of tables as one, in memory. Its record of the mapping is that of the first.

    Raises UsageError, naming the first difference, when columns are mapped otherwise or fields differ.
    """
    first = packs[0]
    table = first.parts[0].header.table or {}
    for pack in packs[1:]:
        other = pack.parts[0].header.table
        if other is None:
            raise UsageError(
                f"{pack.path}: was made of images, {first.path} of a table; packs of one kind go together. Leave one of them out."
            )
        _compare_mappings(first, table, pack, other)
        if [_form(f) for f in pack.fields] != [_form(f) for f in first.fields]:
            names = [", ".join(f.name for f in p.fields) for p in (pack, first)]
            raise UsageError(
                f"{pack.path}: has the fields {names[0]}, {first.path} has {names[1]}; equal fields go together."
                " Convert a table that has all columns, with ",
                Option("like", first.path),
                ".",
            )
        for own, f in zip(first.fields, pack.fields, strict=True):
            if own.codec != f.codec:
                raise UsageError(
                    f"{pack.path}: its field {f.name!r} is compressed otherwise than that of {first.path}; packs that are stored alike"
                    " go together. Run packer repack on one of them."
                )
    parts = [part for pack in packs for part in pack.parts]
    header = merge_headers([part.header for part in parts], [os.path.abspath(part.path) for part in parts])
    skipped = [record for pack in packs if (record := (pack.parts[0].header.table or {}).get("skipped"))]
    header = replace(header, table={**table, "skipped": _added(skipped)} if skipped else table)
    return Pack(" + ".join(pack.path for pack in packs), header, b"", tuple(parts))


class TablePackRows(ColumnRows):
    """A RowMaker over the rows of a pack of a table: every field as it is."""

    def __init__(self, pack: Pack) -> None:
        self._reader = RowReader(pack, pack.fields, verify=all(part.sealed for part in pack.parts))
        self.fields = tuple(replace(f, codec=None) if f.compressed else f for f in pack.fields)
        ragged = [f.name for f in pack.fields if f.ragged]
        blobs = sum(e.nbytes for name in ragged for e in pack.header.extents[name])
        self.ragged_bytes = blobs // pack.rows + 8 * len(ragged)

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return all fields of these rows."""
        runs = consecutive(np.asarray(samples, np.int64))
        found: dict[str, Rows] = {}
        for f in self.fields:
            if f.ragged:
                found[f.name] = self._reader.read_ragged(f.name, runs) if len(samples) else []
            else:
                found[f.name] = self._reader.array(f, runs)
        return found


def _compare_mappings(first: Pack, table: Mapping[str, Any], pack: Pack, other: Mapping[str, Any]) -> None:
    """Raise UsageError, naming the first column that two packs map otherwise."""
    remedy = Sentence("Convert its table again with ", Option("like", first.path), ".")
    own = {c["name"]: c for c in table["columns"]}
    theirs = {c["name"]: c for c in other["columns"]}
    for name in dict.fromkeys((*own, *theirs)):
        here, there = own.get(name), theirs.get(name)
        if here is None or there is None:
            without = first.path if here is None else pack.path
            if (here or there or {}).get("role") == "drop":
                continue
            raise UsageError(
                f"{pack.path}, {first.path}: {without} has no column {name!r}; packs of equal columns go together. ",
                remedy,
            )
        for member in dict.fromkeys(("type", "role", *here)):
            if member == "statistics":
                continue
            words = "is", f" in {first.path}, and"
            if found := difference(here[member], there.get(member), member, words):
                raise UsageError(
                    f"{pack.path}: its column {name!r} is mapped otherwise ({found} here); packs of equal mappings go together. ",
                    remedy,
                )
    for member in ("features", "categories", "dtype", "label"):
        if table[member] != other[member]:
            raise UsageError(
                f"{pack.path}: its {member} differs from that of {first.path}; equal ones go together. ",
                remedy,
            )


def _added(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what several conversions left out, as one record."""
    reasons: Counter[str] = Counter()
    for record in records:
        reasons.update(record["reasons"])
    listed = [skipped for record in records for skipped in record["first"]]
    return {"rows": sum(r["rows"] for r in records), "reasons": dict(reasons), "first": listed[:MAX_SKIPPED]}


def _form(f: Field) -> tuple[Any, ...]:
    return f.name, f.dtype, f.shape, f.about
