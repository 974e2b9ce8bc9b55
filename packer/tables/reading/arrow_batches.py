"""Sources of record batches: Parquet, Arrow and JSON lines files.

Data frames are another source (arrow_frames.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import pyarrow
import pyarrow.ipc
import pyarrow.json

from packer.errors import SourceError
from packer.given_values import option_text
from packer.parquet import open_parquet, reading_arrow
from packer.source_kinds import PARQUET
from packer.tables.reading.arrow_values import Arrow
from packer.tables.reading.table_source import ReadOptions
from packer.tables.reading.text_stream import TextStream

_JSON_BLOCK = 8 << 20  # bytes of JSON parsed at once
_JSON_TYPES = {"number": pyarrow.float64(), "integer": pyarrow.int64(), "boolean": pyarrow.bool_()}
_JSON_ERROR = re.compile(r"couldn't parse:|Column\(/(.*)\) changed from null to (?:(number)|string)")

Batch = tuple[int, int, "list[Arrow]"]
"""Number of earlier rows in the source; bytes of the source, about; an array per requested column."""


class BatchSource(NamedTuple):
    """A file, or a frame, as record batches.

    schema: pyarrow's; rows: number of rows, None if only reading shows it; batches: yields batches of any
    size, for the numbers of columns in ascending order, the most rows that are useful, and the first row that
    is needed; faults: number of a column -> why it cannot be read.
    """

    name: str
    schema: Any
    rows: int | None
    batches: Callable[[Sequence[int], int, int], Iterator[Batch]]
    faults: Mapping[int, str] = {}


def arrow_file(name: str) -> BatchSource:
    """Open a Parquet file, or an Arrow file or stream, as its suffix and first bytes say. Raises SourceError.

    Parquet is decoded while batches are iterated. Uncompressed Arrow data are memory-mapped, and read where
    they are used.
    """
    with open(name, "rb") as file:
        begin = file.read(6)
    with reading_arrow(name):
        if name.lower().endswith(PARQUET) or begin.startswith(b"PAR1"):
            return _parquet_file(name)
        return _ipc_file(name, begin != b"ARROW1")


def _parquet_file(name: str) -> BatchSource:
    size = os.stat(name).st_size
    with open_parquet(name) as file:
        held, schema = file.metadata, file.schema_arrow
    written = schema.names  # made anew at each use, as a batch's columns are looked up among all

    def batches(indices: Sequence[int], most: int, row: int) -> Iterator[Batch]:
        # Columns with equal names can only be read together.
        names = [written[i] for i in indices] if len(set(written)) == len(written) else None
        at, total = 0, held.num_rows
        with open_parquet(name, held) as file:
            for group in range(held.num_row_groups):
                count = held.row_group(group).num_rows
                if at + count <= row:
                    at += count
                    continue
                for batch in file.iter_batches(most, [group], columns=names):
                    places = {name: place for place, name in enumerate(batch.schema.names)}
                    nbytes = size * (at + batch.num_rows) // total - size * at // total
                    # Select by name: for a column a.b pyarrow also reads the member b of a struct a.
                    yield at, nbytes, [batch.column(places[written[i]] if names else i) for i in indices]
                    at += batch.num_rows

    return BatchSource(name, schema, held.num_rows, batches)


def _ipc_file(name: str, is_stream: bool) -> BatchSource:
    def opened(file: Arrow, indices: Sequence[int]) -> Arrow:
        options = pyarrow.ipc.IpcReadOptions(included_fields=list(indices) or None)
        return (pyarrow.ipc.open_stream if is_stream else pyarrow.ipc.open_file)(file, options=options)

    size = os.stat(name).st_size
    with pyarrow.memory_map(name) as mapped:
        schema = opened(mapped, []).schema

    def batches(indices: Sequence[int], most: int, row: int) -> Iterator[Batch]:
        with pyarrow.memory_map(name) as file:
            # pyarrow returns included fields in the file's order, which is the order of `indices`.
            reader, at, begin = opened(file, indices), 0, 0
            count = 0 if is_stream else reader.num_record_batches
            for number, batch in enumerate(reader if is_stream else map(reader.get_batch, range(count)), 1):
                end = file.tell() if is_stream else size * number // count
                yield at, end - begin, batch.columns
                at, begin = at + batch.num_rows, end

    return BatchSource(name, schema, None, batches)


def json_lines(name: str, options: ReadOptions) -> BatchSource:
    """Open a file of one JSON object a line, perhaps compressed; Arrow infers the types from its first block.

    A value that does not have its column's type is an error, wherever it stands; so is a column that the
    first block does not have. Raises SourceError.
    """
    with _open_json(name, options, pyarrow.json.ParseOptions(), None) as (_, reader):
        found = reader.schema
    # Numbers read as categories are written as texts later; columns without values have any type.
    types = [_json_type(field, options.types.get(field.name)) for field in found]
    schema = pyarrow.schema(list(zip(found.names, types, strict=True)))
    parse = pyarrow.json.ParseOptions(schema if schema != found else None)

    def batches(indices: Sequence[int], most: int, row: int) -> Iterator[Batch]:
        # Lines are parsed from the beginning, as their lengths differ.
        at = before = 0
        with _open_json(name, options, parse, schema) as (stream, reader):
            for batch in reader:
                nbytes, before = stream.consumed - before, stream.consumed
                if batch.num_rows:
                    yield at, nbytes, [batch.column(index) for index in indices]
                at += batch.num_rows

    return BatchSource(name, schema, None, batches)


@contextmanager
def _open_json(name: str, options: ReadOptions, parse: Any, schema: Any) -> Iterator[tuple[TextStream, Any]]:
    """Yield a file's text and its reader. schema: for messages, None until known. Raises SourceError."""
    blocks = pyarrow.json.ReadOptions(block_size=_JSON_BLOCK)
    with closing(TextStream(name, options.encoding)) as stream:
        try:
            yield stream, pyarrow.json.open_json(stream, blocks, parse)
        except pyarrow.lib.ArrowInvalid as error:
            way, known = "", _JSON_ERROR.search(str(error))
            if known:  # the first block decided the type of a column
                kind = "category" if known[1] and not known[2] else "number"
                whole = [field.name for field in schema or () if pyarrow.types.is_integer(field.type)]
                column = known[1] or (whole[0] if len(whole) == 1 else "COLUMN")
                way = f", or pass {option_text('types', {column: kind})}"
            raise SourceError(
                f"{name}: is no table of JSON lines ({error}); each line is an object, and a name"
                f" has values of one type. Correct it{way}."
            ) from None


def _json_type(field: Any, wanted: str | None) -> Any:
    """Return the Arrow type that a column of JSON is read as. wanted: its type as users name it."""
    if wanted in _JSON_TYPES and (field.type in _JSON_TYPES.values() or pyarrow.types.is_null(field.type)):
        return _JSON_TYPES[wanted]
    return pyarrow.string() if wanted and pyarrow.types.is_null(field.type) else field.type
