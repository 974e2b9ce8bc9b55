"""open_table: open the files of a table by their content, or a data frame."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from packer.errors import SourceError, UsageError
from packer.given_values import option_text
from packer.parquet import reading_arrow
from packer.source_kinds import ARROW_TABLES, JSON_LINES, compression
from packer.tables.reading.partitioned_table import PartitionedTable, partitions
from packer.tables.reading.table_source import ReadOptions, TableSource, expand
from packer.tables.reading.text_stream import TextStream
from packer.tables.reading.text_table import TextTable
from packer.tables.transform.column_types import nearest

TEXT, LINES, ARROW = "text", "JSON lines", "Parquet and Arrow"
_ARROW_BEGINS = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")


def open_table(sources: Any, reading: ReadOptions) -> TableSource:
    """Open files that hold one table, one after the other, or a data frame.

    sources: names of files and folders, and globs; or an object that arrow_frames reads.
    Raises SourceError if files cannot be read, hold no rows or do not belong together; UsageError for other
    wrong sources; MissingDependencyError.
    """
    table: TableSource
    if isinstance(sources, (list, tuple)) and all(isinstance(name, str) for name in sources):
        if not sources:
            raise UsageError("a table: no file is given; at least one is needed. Pass one.")
        names = expand(sources)
        found = partitions(names)
        table = PartitionedTable(_open_files, names, found, reading) if found else _open_files(names, reading)
    else:
        with reading_arrow("data frame"):
            from packer.tables.reading.arrow_frames import FrameTable

            table = FrameTable(sources, reading)
    if table.rows == 0:
        raise SourceError(f"{table.names[0]}: holds no rows; at least one is needed. Check it.")
    columns = {column.name: column.type for column in table.columns}
    for name in () if reading.alike else (name for name in reading.types if name not in columns):
        raise UsageError(
            f"{option_text('types', {name: reading.types[name]})}: {table.names[0]} has no column {name!r};"
            f" {nearest(name, columns)}. Correct it."
        )
    return table


def _open_files(names: Sequence[str], reading: ReadOptions) -> TableSource:
    kinds = [_kind_of(name, reading) for name in names]
    if len(set(kinds)) > 1:
        other = next(k for k, kind in enumerate(kinds) if kind != kinds[0])
        raise UsageError(
            f"{names[other]}: is read as {kinds[other]}, {names[0]} as {kinds[0]}; the files of a table are"
            " of one kind. Pass them separately."
        )
    if kinds[0] == TEXT:
        return TextTable(names, reading)
    with reading_arrow(names[0]):
        from packer.tables.reading.arrow_batches import arrow_file, json_lines
        from packer.tables.reading.arrow_table import ArrowTable

    opened = [json_lines(name, reading) if kinds[0] == LINES else arrow_file(name) for name in names]
    return ArrowTable(opened, reading)


def _kind_of(name: str, reading: ReadOptions) -> str:
    """Return how a file is read: by its first bytes; by its name if these do not show it."""
    with open(name, "rb") as file:
        if file.read(6).startswith(_ARROW_BEGINS) or name.lower().endswith(ARROW_TABLES):
            return ARROW
    if name.lower().removesuffix(compression(name)).endswith(JSON_LINES):
        return LINES
    with closing(TextStream(name, reading.encoding)) as stream:
        return LINES if re.match(rb'\s*\{\s*"', stream.read(256)) else TEXT
