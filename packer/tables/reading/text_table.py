"""CSV and similar files as a table: the beginning of each file, and pieces that end where records end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sentence import Option
from packer.tables.reading.dialect import (
    COMMENTS,
    Undecided,
    endless,
    first_line_at,
    first_records,
    index_columns,
    renamed,
)
from packer.tables.reading.record_parser import end_of_records, is_unclosed, parse_records, records_of
from packer.tables.reading.remedies import (
    Sample,
    Trial,
    begin_of,
    check_forms,
    check_notation,
    refusal,
    remedies,
    way,
    wrong_cell,
)
from packer.tables.reading.table_header import header_of
from packer.tables.reading.table_source import ReadOptions, TableChunk, TableSource, compare_names
from packer.tables.reading.text_stream import TextStream
from packer.tables.reading.type_inference import SAMPLE_ROWS, infer, notes_on_texts
from packer.tables.transform.column_types import unique
from packer.tables.transform.records import BadRow, CellFault, RecordLayout

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
_HALVES = 64  # first bytes whose every second one is zero in UTF-16
_BINARY = 4096  # first bytes, searched for zeros: text has none


@dataclass(frozen=True)
class _Head:
    """The beginning of a file.

    begin: offset of the first row; line: line number of the first row; rows: True if there are rows.
    """

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
        sample = self._sample = Sample(first, text, ended)
        try:
            header, records, _ = begin_of(sample, reading)
        except Undecided as undecided:
            raise refusal(sample, reading, undecided) from None
        self._lines = header.lines
        columns = unique(header.names)
        self._form = header.dialect
        head = self._head(first, text, ended)
        room = _HEAD + 2 * head.begin
        self._heads = [head, *(self._other(name, header.names, room) for name in names[1:])]
        if not any(head.rows for head in self._heads):
            raise SourceError(f"{first}: holds a header and no rows; at least one row is needed. Check it.")
        at = next(k for k, head in enumerate(self._heads) if head.rows)
        records = records[header.lines :][:SAMPLE_ROWS]
        if at:
            text, ended = self._beginning(names[at], _SAMPLE)
            records = first_records(text[self._heads[at].begin :], ended, self._form, SAMPLE_ROWS)
        cells = [record.cells for record in records]
        self.columns, self.column_notes = infer(names[at], columns, cells, self._form, reading.types)
        if not at:
            trial = Trial(header, self.columns, records, reading, frozenset(self.column_notes))
            check_notation(sample, trial)
            check_forms(sample, trial)
        if reading.header:
            self.indexes: tuple[str, ...] = index_columns(header.names, self.columns)
        notes = [*header.notes, *renamed(first, header.names, columns, self.indexes)]
        notes += notes_on_texts(first, self.columns, cells, self._form)
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

    def _head(self, name: str, text: bytes, ended: bool) -> _Head:
        begin, dialect = first_line_at(name, text, self._reading.skip_rows), self._form
        text, line = text[begin:], 1 + self._reading.skip_rows
        lines = max(1, self._lines)
        record = next(islice(records_of(text, dialect), lines - 1, lines), None)
        end = min(len(text), record.end) if record else 0
        is_whole = record is not None and record.end <= len(text)
        if not (is_whole or ended) or is_unclosed(text[: end or len(text)], dialect):
            raise self._endless(name, begin, text)
        if record is None:
            raise SourceError(f"{name}: holds no row; at least one is needed. Check it.")
        if not self._reading.header:
            return _Head(begin, line, True)
        rows = not ended or bool(first_records(text[end:], True, dialect, 1))
        return _Head(begin + end, line + record.next_line, rows)

    def _other(self, name: str, names: Sequence[str], size: int) -> _Head:
        """Read the beginning of a file other than the first. Raises SourceError if its columns differ.

        size: number of bytes that suffices.
        """
        text, ended = self._beginning(name, size)
        head = self._head(name, text, ended)
        rest = text[first_line_at(name, text, self._reading.skip_rows) :]
        cells = [record.cells for record in first_records(rest, ended, self._form, SAMPLE_ROWS)]
        try:
            header = header_of(name, cells, self._form, self._reading)
        except Undecided as undecided:
            raise refusal(Sample(name, text, ended), self._reading, undecided) from None
        compare_names(name, header.names, self.names[0], names)
        return head

    def _endless(self, name: str, place: int, text: bytes) -> SourceError:
        """Return the error for a record without an end. place, text: of its beginning in the file's text."""
        later = text[: text.rfind(b"\n") + 1]
        return refusal(replace(self._sample, name=name, later=later), self._reading, endless(place))

    def first_line(self, name: str) -> int:
        """Return the number of the first line of an input's first piece, from 1."""
        return self._heads[self.names.index(name)].line

    def ways(self, bad: BadRow, text: bytes) -> list[str]:
        """Return the tried remedies for a bad row."""
        if bad.reason in (CellFault.AFTER_QUOTE, CellFault.UNCLOSED):
            sample, candidates = replace(self._sample, later=text), endless(0).candidates
            return [way(*remedy) for remedy in remedies(sample, self._reading, candidates)]
        if bad.column is None:
            sample = replace(self._sample, later=text)
            line = text.split(b"\n", bad.line + 1)[bad.line]
            mark = {"comment": line[:1].decode(errors="replace")} if line[:1] in COMMENTS else {}
            return [
                way(*remedy) for remedy in remedies(sample, self._reading, [(mark, "if it is a comment")])
            ]
        if not bad.value:
            return []
        column = self.columns[bad.column]
        return [way(*remedy) for remedy in wrong_cell(self._sample, self._reading, column, bad)]

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
                        raise self._endless(name, begin, text[:_SAMPLE].tobytes())
                    size *= 2
                if ended:
                    if is_unclosed(text[end:].tobytes(), self._form):
                        raise self._endless(name, begin + end, text[end : end + _SAMPLE].tobytes())
                    end = len(text)
                if not end:
                    return
                piece, text = text[:end], text[end:]
                begin += end
                taken, consumed = stream.consumed - consumed, stream.consumed
                parse = partial(parse_records, piece.data, self._form, layout)
                yield TableChunk(name, [number, begin], taken, parse, piece.data)
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


def _check_text(name: str, text: bytes, ended: bool) -> None:
    """Check the beginning of a file. Raises SourceError if it is not text, or has no lines."""
    for begin, (what, remedy) in _OTHERS.items():
        if re.match(begin, text):
            raise SourceError(f"{name}: is {what}; tables of text are read here. {remedy}")
    if b"\0" in text[:_BINARY]:
        halves = {"utf-16-le": text[1:_HALVES:2], "utf-16-be": text[:_HALVES:2]}
        encoding = next((code for code, half in halves.items() if not any(half)), "utf-16")
        raise SourceError(
            f"{name}: contains zero bytes, so it is not text; text files are read. Check it; for "
            f"UTF-16, pass {Option('Csv.encoding', encoding)}."
        )
    if ended and not text.strip():
        raise SourceError(f"{name}: is empty; at least one row is needed. Check it.")
    if b"\r" in text and b"\n" not in text:
        raise SourceError(
            f"{name}: its lines end in \\r only; \\n and \\r\\n are read. Convert it, for example with: tr"
            " '\\r' '\\n'."
        )
