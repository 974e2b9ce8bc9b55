"""Packs of tables: recognise them; join several with equal mappings into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from packer.errors import UsageError
from packer.format.file_rows import counted_files, fits, is_counted
from packer.format.joined_pack import check_fields, check_mappings, joined
from packer.format.pack import Pack
from packer.sentence import Option
from packer.tables.staging import MAX_SKIPPED


def is_table(pack: Pack) -> bool:
    """Return True if a pack was converted from a table."""
    return pack.parts[0].header.table is not None


def tables_together(packs: Sequence[Pack]) -> Pack:
    """Return several packs of tables as one, in memory, with the first one's record of the mapping.

    Numbers of source rows are left out unless all packs have them. Raises UsageError that names the first
    difference if mappings or fields differ.
    """
    headers = [part.header for pack in packs for part in pack.parts]
    counted = all(map(is_counted, headers)) and fits(counted_files(headers))
    first = packs[0]
    fields, *others = ([f for f in pack.fields if counted or not f.counts] for pack in packs)
    table = first.parts[0].header.table or {}
    for pack, own in zip(packs[1:], others, strict=True):
        check_mappings(first, pack)
        names = [[f.name for f in of] for of in (own, fields)]
        if names[0] != names[1]:
            raise UsageError(
                f"{pack.path}: has the fields {', '.join(names[0])}, {first.path} has {', '.join(names[1])};"
                " packs with equal fields can be joined. Convert a table that has all columns, with"
                f" {Option('like', first.path)}."
            )
        for field, other in zip(fields, own, strict=True):
            check_fields(first, field, pack, other, columns=True)
    combined = joined(packs, fields)
    skipped = [record for pack in packs if (record := (pack.parts[0].header.table or {}).get("skipped"))]
    table = {**table, "skipped": _added(skipped)} if skipped else table
    return replace(combined, header=replace(combined.header, table=table))


def _added(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the records of the rows that several conversions left out as one record."""
    reasons: Counter[str] = Counter()
    for record in records:
        reasons.update(record["reasons"])
    listed = [skipped for record in records for skipped in record["first"]]
    return {"rows": sum(r["rows"] for r in records), "reasons": dict(reasons), "first": listed[:MAX_SKIPPED]}
