"""Rows from packs of tables: of several as if they were one, mapped alike, without going back to the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from packer.errors import UsageError
from packer.format.joined_pack import check_fields, check_mappings, joined
from packer.format.pack import Pack
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


def _added(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what several conversions left out, as one record."""
    reasons: Counter[str] = Counter()
    for record in records:
        reasons.update(record["reasons"])
    listed = [skipped for record in records for skipped in record["first"]]
    return {"rows": sum(r["rows"] for r in records), "reasons": dict(reasons), "first": listed[:MAX_SKIPPED]}
