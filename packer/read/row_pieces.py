"""All rows of a pack, a few at a time, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from packer.orders.runs import one_run, pieces
from packer.packs.pack import Pack
from packer.read.array_store import PackStore

_PIECE_BYTES = 16 << 20
_MOST_ROWS = 1 << 16


def read_pieces(pack: Pack, *names: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield (first row, rows of each field): an array [n, *shape], or a ragged field's bytes of each row.

    Blocks of compressed fields are decoded once. Raises FormatError.
    """
    stored = [pack.header.field(name) for name in names]
    row_bytes = sum(f.loaded.row_bytes for f in stored if not f.loaded.ragged) + sum(
        extent.nbytes for f in stored if f.loaded.ragged for extent in pack.header.extents[f.name]
    ) // max(1, pack.rows)
    step = max(1, min(_MOST_ROWS, _PIECE_BYTES // max(1, row_bytes)))
    if any(f.compressed for f in stored):
        step = -(-step // pack.header.block_rows) * pack.header.block_rows
    with closing(PackStore(pack, stored)) as reader:
        for start, stop in pieces(pack.rows, step):
            runs = one_run(start, stop)
            yield (
                start,
                [
                    reader.ragged(f.name, runs) if f.loaded.ragged else reader.array(f.name, runs)
                    for f in stored
                ],
            )
