"""CSV and similar files as a table: the beginning of each file, and pieces that end where records end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.tables.reading.dialect import COMMENTS, Undecided, endless, index_columns, renamed
from packer.tables.reading.record_parser import end_of_records, is_unclosed, parse_records
from packer.tables.reading.remedies import (
    Beginning,
    Sample,
    beginning_of,
    check_forms,
    check_notation,
    refusal,
    remedies,
    trial_of,
    tried,
    way,
    wrong_cell,
)
from packer.tables.reading.table_source import (
    ReadOptions,
    TableChunk,
    TableSource,
    TextDialect,
    compare_names,
)
from packer.tables.reading.text_stream import TextStream
from packer.tables.reading.type_inference import notes_on_texts
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
_BINARY = 4096  # first bytes, searched for zeros: text has none


class TextTable(TableSource):
    """Text files that hold one table."""

    unit = "line"

    def __init__(self, names: Sequence[str], reading: ReadOptions) -> None:
        """Read the beginnings of the files, which exist. Raises SourceError, UsageError."""
        super().__init__(names, reading)
        first = names[0]
        sample = self._sample = self._read(first, _SAMPLE)
        head = self._head(sample)
        header, self._form = head.header, head.header.dialect
        self._heads = [head]
        for name in names[1:]:
            other = self._head(self._read(name, _HEAD + 2 * head.begin), self._form)
            compare_names(name, other.header.names, first, header.names)
            self._heads.append(other._replace(records=[]))
        at = next((k for k, head in enumerate(self._heads) if head.has_rows), None)
        if at is None:
            raise SourceError(f"{first}: holds a header and no rows; at least one row is needed. Check it.")
        trial = trial_of(
            names[at], self._head(self._read(names[at], _SAMPLE), self._form) if at else head, reading
        )
        cells = [record.cells for record in trial.records]
        self.columns, self.column_notes = trial.columns, trial.notes
        if not (at or reading.alike):
            check_notation(sample, trial)
            check_forms(sample, trial)
        if reading.header:
            self.indexes = index_columns(header.names, self.columns)
        used = [column.name for column in self.columns]
        notes = [*header.notes, *renamed(first, header.names, used, self.indexes)]
        notes += notes_on_texts(first, self.columns, cells, self._form, bool(reading.alike))
        notes += [
            f"{name} holds a header and no rows."
            for name, head in zip(names, self._heads, strict=True)
            if not head.has_rows
        ]
        if reading.skip_rows:
            line = sample.text[: sample.text.find(b"\n")][:80].decode(errors="replace").strip()
            notes.append(
                f"{first}: lines skipped at its beginning: {reading.skip_rows:,}, the first is {line!r}."
            )
        self.notes = tuple(notes)

    # Beginnings

    def _read(self, name: str, size: int) -> Sample:
        """Return the first `size` bytes of a file's text. Raises SourceError."""
        with closing(self._reading.open(name)) as stream:
            text = stream.read(size)
        _check_text(name, text, len(text) < size)
        return Sample(name, text, len(text) < size)

    def _head(self, sample: Sample, dialect: TextDialect | None = None) -> Beginning:
        """Return the beginning of a file. dialect: of the first file, None for itself. Raises SourceError."""
        try:
            return beginning_of(sample, self._reading, dialect)
        except Undecided as undecided:
            raise refusal(sample, self._reading, undecided) from None

    def _endless(self, name: str, place: int, text: bytes) -> SourceError:
        """Return the error for a record without an end. place, text: of its beginning in the file's text."""
        later = text[: text.rfind(b"\n") + 1]
        return refusal(
            replace(self._sample, name=name, later=later), self._reading, endless(place, self._form.delimiter)
        )

    def first_line(self, name: str) -> int:
        """Return the number of the first line of an input's first piece, from 1."""
        return self._heads[self.names.index(name)].line

    def ways(self, bad: BadRow, text: bytes) -> list[str]:
        """Return the tried remedies for a bad row."""
        sample, found = replace(self._sample, later=text), []
        if self._reading.alike == "append":
            return []
        if bad.reason in (CellFault.AFTER_QUOTE, CellFault.UNCLOSED):
            found = remedies(sample, self._reading, endless(0, self._form.delimiter).candidates)
        elif bad.column is None:
            mark = text.split(b"\n", bad.line + 1)[bad.line][:1]
            if mark and mark in COMMENTS:
                found = remedies(sample, self._reading, [({"comment": mark.decode()}, "if it is a comment")])
        elif bad.line == 0 and self._is_header(bad.value, text):
            return ["csv=Csv(header=True) if it holds the names"]
        elif bad.value:
            found = wrong_cell(self._sample, self._reading, self.columns[bad.column], bad)
            found = [one for one in found if not (self._reading.alike and "types" in one[0][0])]
        return [way(*remedy) for remedy in found]

    def _is_header(self, cell: str, text: bytes) -> bool:
        """Return True for a word in the first line, read as a row, that is better read as names."""
        reading, begin = self._reading, self._heads[0].begin
        first = not reading.header and self._sample.text.startswith(text[:_HEAD], begin)
        word = first and any(c.isalpha() for c in cell)
        return word and tried(self._sample, replace(reading, header=True)) is not None

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


def _is_text(text: bytes, encoding: str) -> bool:
    """Return True if the beginning of a file is lines of text in an encoding."""
    decoded = text[: len(text) // 2 * 2 - 2].decode(encoding, "replace")
    shown = (c.isprintable() or c.isspace() for c in decoded)
    return "\n" in decoded and "\ufffd" not in decoded[:-1] and all(shown)


def _check_text(name: str, text: bytes, ended: bool) -> None:
    """Check the beginning of a file. Raises SourceError if it is not text, or has no lines."""
    for begin, (what, remedy) in _OTHERS.items():
        if re.match(begin, text):
            raise SourceError(f"{name}: is {what}; tables of text are read here. {remedy}")
    if b"\0" in text[:_BINARY]:
        codes = [code for code in ("utf-16-le", "utf-16-be") if _is_text(text[:_BINARY], code)]
        way = f"; for UTF-16, pass csv=Csv(encoding={codes[0]!r})" if codes else ""
        raise SourceError(
            f"{name}: contains zero bytes, so it is not text; text files are read. Check it{way}."
        )
    if ended and not text.strip():
        raise SourceError(f"{name}: is empty; at least one row is needed. Check it.")
    if b"\r" in text and b"\n" not in text:
        raise SourceError(
            f"{name}: its lines end in \\r only; \\n and \\r\\n are read. Convert its text, for example with:"
            " tr '\\r' '\\n'."
        )
