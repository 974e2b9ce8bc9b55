"""Rows from packs of tables: of several as if they were one, mapped alike, without going back to the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.row_maker import ColumnRows
from packer.errors import UsageError
from packer.format.joined_pack import check_fields, check_mappings, joined
from packer.format.pack import Pack
from packer.format.pack_writer import Rows
from packer.orders.runs import consecutive
from packer.read.row_reader import RowReader
from packer.sentence import Option
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
        check_mappings(first, pack)
        names = [[f.name for f in p.fields] for p in (pack, first)]
        if names[0] != names[1]:
            raise UsageError(
                f"{pack.path}: has the fields {', '.join(names[0])}, {first.path} has {', '.join(names[1])}; equal fields go "
                f"together. Convert a table that has all columns, with {Option('like', first.path)}."
            )
        for own, other in zip(first.fields, pack.fields, strict=True):
            check_fields(first, own, pack, other, columns=True)
    whole = joined(packs)
    skipped = [record for pack in packs if (record := (pack.parts[0].header.table or {}).get("skipped"))]
    table = {**table, "skipped": _added(skipped)} if skipped else table
    return replace(whole, header=replace(whole.header, table=table))


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


def _added(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what several conversions left out, as one record."""
    reasons: Counter[str] = Counter()
    for record in records:
        reasons.update(record["reasons"])
    listed = [skipped for record in records for skipped in record["first"]]
    return {"rows": sum(r["rows"] for r in records), "reasons": dict(reasons), "first": listed[:MAX_SKIPPED]}
