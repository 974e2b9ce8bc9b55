"""open_rows: opens a field of a pack in the form in which its rows are provided."""

from __future__ import annotations

from packer.format.filling_pack import FillingPack
from packer.format.joined_fields import FieldsPack
from packer.format.joined_pack import JoinedPack
from packer.format.pack import Pack
from packer.read.field_rows import (
    CompressedRows,
    FieldRows,
    FixedRows,
    JoinedRows,
    MatchedRows,
    RaggedRows,
    VerifiedRows,
)
from packer.read.growing_rows import GrowingRows


def open_rows(pack: Pack, name: str, verify: bool = False) -> FieldRows:
    """Open a field of a pack, whatever provides its rows. Raises FormatError.

    verify: compare each block with its checksum at first use.
    """
    if isinstance(pack, FillingPack):
        return GrowingRows(pack, name, open_rows)
    if isinstance(pack, FieldsPack):
        source, own, places = pack.source(name)
        rows = open_rows(source, own, verify)
        return rows if places is None else MatchedRows(rows, places)
    field = pack.header.field(name)
    if isinstance(pack, JoinedPack) and any(
        isinstance(one, (FieldsPack, FillingPack))
        or any(one.arrival(array) is not None for array in field.arrays)
        for one in pack.shards
    ):
        return JoinedRows([open_rows(one, name, verify) for one in pack.shards], pack.shards)
    kind = RaggedRows if field.ragged else CompressedRows if field.compressed else FixedRows
    return VerifiedRows(kind(pack, field), pack, field) if verify else kind(pack, field)
