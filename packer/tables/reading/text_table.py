"""CSV and similar files as a table: the beginning of each file, and pieces that end where records end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sentence import Option
from packer.tables.reading.dialect import (
    column_names,
    delimiter_of,
    first_line_at,
    first_records,
    index_columns,
    renamed,
)
from packer.tables.reading.record_parser import end_of_records, parse_records, records_of
from packer.tables.reading.table_source import (
    ReadOptions,
    TableChunk,
    TableSource,
    TextDialect,
    compare_names,
)
from packer.tables.reading.text_stream import TextStream
from packer.tables.reading.type_inference import SAMPLE_ROWS, infer
from packer.tables.transform.column_types import unique
from packer.tables.transform.records import RecordLayout

PIECE = 2 << 20  # bytes of text; 8 MiB, which exceed a core's cache, took 15 % longer to read and parse
LONGEST = 64 << 20  # most bytes of a record
_SAMPLE = 2 << 20  # bytes of a file from which types are inferred: 3,000 rows of 700 bytes
_HEAD = 64 << 10  # bytes read of each other file to compare its header
_OTHERS = {
    rb"PAR1": ("a packed Parquet file", "Unpack it; Parquet files are read as they are."),
    rb"\x1f\x8b|PK\x03\x04|BZh|\xfd7zXZ": ("packed twice", "Unpack it once."),
    rb"\x89HDF": ("an HDF5 file", "Rename it to .h5."),
    rb"SQLite format 3": (
        "an SQLite database",
        "Pass a query's result: convert_table(sqlite3.connect(FILE).execute('select * from t'), OUT).",
    ),
    rb"\xd0\xcf\x11\xe0": ("an old Excel file", "Save it as .xlsx or as CSV."),
    rb"\x80[\x02-\x05]": ("a pickle", "Pass the frame: convert_table(pandas.read_pickle(FILE), OUT)."),
    rb"version https://git-lfs": ("a pointer of Git LFS, not the file", "Get the file: git lfs pull."),
    rb"<(!DOCTYPE|html)": ("a web page", "Check the address that it was downloaded from."),
    rb"\[\s*[{[]": ("a JSON document", "Pass the frame: convert_table(pandas.read_json(FILE), OUT)."),
}
"""Begin of files that people take for tables of text -> what they are, and what to do."""
_BINARY = 4096  # first bytes, searched for zeros: text has none


@dataclass(frozen=True)
class _Head:
    """The beginning of a file.

    cells: cells of its first record; begin: offset of the first row; line: line number of the first row;
    rows: True if there are rows.
    """

    cells: list[bytes]
    begin: int
    line: int
    rows: bool


class TextTable(TableSource):
    """Text files that hold one table."""

    column_notes: dict[str, list[str]]

    unit = "line"

    def __init__(self, names: Sequence[str], reading: ReadOptions) -> None:
        """Read the beginnings of the files, which exist. Raises SourceError, UsageError."""
        super().__init__(names, reading)
        first = names[0]
        text, ended = self._beginning(first, _SAMPLE)
        rest = text[first_line_at(first, text, reading.skip_rows) :]
        dialect = replace(reading.dialect(), delimiter=delimiter_of(first, rest, ended, reading))
        head = self._head(first, text, ended, dialect)
        written = [str(number) for number in range(len(head.cells))]
        if reading.header:
            written = column_names(first, head.cells, dialect)
        columns = unique(written)
        self._form = replace(dialect, width=len(columns))
        room = _HEAD + 2 * head.begin
        self._heads = [head, *(self._other(name, written, room) for name in names[1:])]
        if not any(head.rows for head in self._heads):
            raise SourceError(f"{first}: holds a header and no rows; at least one row is needed. Check it.")
        at = next(k for k, head in enumerate(self._heads) if head.rows)
        if at:
            text, ended = self._beginning(names[at], _SAMPLE)
        records = first_records(text[self._heads[at].begin :], ended, self._form, SAMPLE_ROWS)
        cells = [record.cells for record in records]
        self.columns, self.column_notes = infer(names[at], columns, cells, self._form, reading.types)
        if reading.header:
            self.indexes: tuple[str, ...] = index_columns(written, self.columns)
        notes = renamed(first, written, columns, self.indexes)
        notes += [
            f"{name} holds a header and no rows."
            for name, head in zip(names, self._heads, strict=True)
            if not head.rows
        ]
        if reading.skip_rows:
            line = text[: text.find(b"\n")][:80].decode(errors="replace").strip()
            notes.append(
                f"{first}: lines skipped at its beginning: {reading.skip_rows:,}, the first is {line!r}."
            )
        self.notes: tuple[str, ...] = tuple(notes)

    # Beginnings

    def _beginning(self, name: str, size: int) -> tuple[bytes, bool]:
        """Return the first `size` bytes of a file's text; True if that is all. Raises SourceError."""
        with closing(self._reading.open(name)) as stream:
            buffer = bytearray(size)
            have = stream.fill(memoryview(buffer))
        text, ended = bytes(memoryview(buffer)[:have]), have < size
        _check_text(name, text, ended)
        return text, ended

    def _head(self, name: str, text: bytes, ended: bool, dialect: TextDialect) -> _Head:
        begin = first_line_at(name, text, self._reading.skip_rows)
        text, line = text[begin:], 1 + self._reading.skip_rows
        record = next(records_of(text, dialect), None)
        end = min(len(text), record.end) if record else 0
        is_whole = record is not None and record.end <= len(text)
        if not (is_whole or ended) or _is_unclosed(text[: end or len(text)], dialect):
            raise _endless(name, begin)
        if record is None:
            raise SourceError(f"{name}: holds no row; at least one is needed. Check it.")
        if not self._reading.header:
            return _Head(record.cells, begin, line, True)
        rows = not ended or bool(first_records(text[end:], True, dialect, 1))
        return _Head(record.cells, begin + end, line + record.next_line, rows)

    def _other(self, name: str, columns: Sequence[str], size: int) -> _Head:
        """Read the beginning of a file other than the first. Raises SourceError if its columns differ.

        size: number of bytes that suffices.
        """
        head = self._head(name, *self._beginning(name, size), self._form)
        written = [str(number) for number in range(len(head.cells))]
        if self._reading.header:
            written = column_names(name, head.cells, self._form)
        compare_names(name, written, self.names[0], columns)
        return head

    def first_line(self, name: str) -> int:
        """Return the number of the first line of an input's first piece, from 1."""
        return self._heads[self.names.index(name)].line

    # Pieces

    def chunks(self, layout: RecordLayout, after: list[Any] | None = None) -> Iterator[TableChunk]:
        """Yield pieces of about 2 MiB, from the beginning or `after`: [file number, offset in its text]."""
        first, offset = after or (0, 0)
        for number in range(first, len(self.names)):
            yield from self._pieces(number, offset if number == first else 0, layout)

    def _pieces(self, number: int, offset: int, layout: RecordLayout) -> Iterator[TableChunk]:
        name = self.names[number]
        with closing(self._reading.open(name)) as stream:
            begin = max(offset, self._heads[number].begin)
            stream.seek(begin)
            consumed = stream.consumed if offset else 0  # the header counts as part of the first piece
            text = np.empty(0, np.uint8)  # the text from the piece's beginning; may hold several pieces
            while True:
                # The content of a piece depends only on where it begins.
                size, end = PIECE, 0
                while not end:
                    text = _extended(text, size, stream)
                    ended = len(text) < size
                    end = end_of_records(text[:size].data, 0, self._form)
                    if ended:
                        break
                    if not end and size >= LONGEST:
                        raise _endless(name, begin)
                    size *= 2
                if ended:
                    if _is_unclosed(text[end:].tobytes(), self._form):
                        raise _endless(name, begin + end)
                    end = len(text)
                if not end:
                    return
                piece, text = text[:end], text[end:]
                begin += end
                taken, consumed = stream.consumed - consumed, stream.consumed
                parse = partial(parse_records, piece.data, self._form, layout)
                yield TableChunk(name, [number, begin], taken, parse)
                if ended:
                    return


def _extended(text: NDArray[np.uint8], size: int, stream: TextStream) -> NDArray[np.uint8]:
    """Return the text with at least `size` bytes, read from the stream; fewer at the end of the text."""
    if len(text) >= size:
        return text
    longer = np.empty(size, np.uint8)
    longer[: len(text)] = text
    have = len(text) + stream.fill(memoryview(longer)[len(text) :])
    return longer[:have]


def _endless(name: str, place: int) -> SourceError:
    """Return the error for a record without an end. place: where it begins in the file's text."""
    return SourceError(
        f"{name}: the record at byte {place:,} of its text does not end, or is too long; a quote may be"
        " unclosed."
        f" Correct it, or pass {Option('Csv.quote', '')}."
    )


def _is_unclosed(record: bytes, dialect: TextDialect) -> bool:
    """Return True if the last record has an unclosed quote, so that following lines may be records."""
    if b"\n" not in record.strip(b" \t\r\n"):
        return False  # on a single line: a bad row
    return not end_of_records(record + b"\n", 0, dialect)


def _check_text(name: str, text: bytes, ended: bool) -> None:
    """Check the beginning of a file. Raises SourceError if it is not text, or has no lines."""
    for begin, (what, way) in _OTHERS.items():
        if re.match(begin, text):
            raise SourceError(f"{name}: is {what}; tables of text are read here. {way}")
    if b"\0" in text[:_BINARY]:
        raise SourceError(
            f"{name}: contains zero bytes, so it is not text; text files are read. Check it; for "
            f"UTF-16, pass {Option('Csv.encoding', 'utf-16')}."
        )
    if ended and not text.strip():
        raise SourceError(f"{name}: is empty; at least one row is needed. Check it.")
    if b"\r" in text and b"\n" not in text:
        raise SourceError(
            f"{name}: its lines end in \\r only; \\n and \\r\\n are read. Convert it, for example with: tr"
            " '\\r' '\\n'."
        )
