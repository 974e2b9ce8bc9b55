"""The interface of table readers, the options for reading, and the names of input files."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

import numpy as np

from packer.arguments import whole
from packer.declared_types import checked_class
from packer.errors import SourceError, UsageError
from packer.format.checksums import digest
from packer.format.file_io import InputFile, newest_file
from packer.given_values import option_text
from packer.path_text import as_text
from packer.source_kinds import folder_tables, table_suffix
from packer.split_names import split_of
from packer.tables.reading.text_stream import TextStream, unreadable
from packer.tables.transform.cell_values import NA_TEXTS
from packer.tables.transform.column_types import (
    NOTATIONS,
    TYPES,
    TableColumn,
    as_category,
    is_missing,
    nearest,
)
from packer.tables.transform.records import BadRow, ParsedRows, RecordLayout

_DIGESTED_BYTES = 4 << 20  # bytes of a file hashed at once


@dataclass(frozen=True)
class TextDialect:
    """Marks and missing texts of a text table. A mark is one ASCII character.

    delimiter: between cells; quote: around cells, b"" for none; decimal: decimal point; thousands: ignored
    groups of three digits, b"" for none; na: texts that mean "missing"; width: cells per record; comment:
    prefix of lines without a record, b"" for none; surplus: empty cells after those; keep_spaces: texts keep
    the spaces around them.
    """

    delimiter: bytes
    quote: bytes
    decimal: bytes
    thousands: bytes
    na: frozenset[bytes]
    width: int
    comment: bytes = b""
    surplus: int = 0
    keep_spaces: bool = False

    @cached_property
    def marks(self) -> tuple[int, int, int, int, int]:
        """The marks for the parser: delimiter, quote, decimal, thousands, comment; -1 for none."""
        marks = self.delimiter, self.quote, self.decimal, self.thousands, self.comment
        delimiter, quote, point, thousands, comment = (mark[0] if mark else -1 for mark in marks)
        return delimiter, quote, point, thousands, comment

    @cached_property
    def missing(self) -> tuple[bytes, ...]:
        """The texts that mean "missing", shortest first."""
        return tuple(sorted(self.na, key=len))


@checked_class
@dataclass(frozen=True)
class Csv:
    """Options for reading text files.

    header: the first line holds names; delimiter: one character, None to detect it; quote: one character, ""
    for none; decimal: decimal point; thousands: character ignored between groups of three digits, "" for
    none; na: texts that mean "missing", in addition to the standard ones; instead of them if "" is among
    them; encoding: of the files; skip_rows: lines to skip at the beginning of each file; comment: one
    character, lines that begin with it are skipped, None for none; keep_spaces: texts keep the spaces around
    them; escape: one character before another one that is meant literally, as in "a \\" b", None for none
    (the delimiter must be given with it); escape + N is a missing cell.

    >>> Csv(decimal=",", na="?").na
    ('?',)
    """

    header: bool = True
    delimiter: str | None = None
    quote: str = '"'
    decimal: str = "."
    thousands: str = ""
    na: str | Sequence[str] = ()
    encoding: str = "utf-8"
    skip_rows: int = 0
    comment: str | None = None
    keep_spaces: bool = False
    escape: str | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for invalid marks, and for two equal marks.

        If cells can be quoted, the delimiter may also be the decimal point or thousands separator, as in
        "2,100".
        """
        object.__setattr__(self, "na", (self.na,) if isinstance(self.na, str) else tuple(self.na))
        whole("skip_rows", self.skip_rows, 0)
        if self.escape and self.delimiter is None:
            raise UsageError(
                f"csv=Csv(escape={self.escape!r}): needs the delimiter, because it may stand before one."
                " Pass csv=Csv(delimiter=',') too, or the file's delimiter."
            )
        marks = ("delimiter", "quote", "decimal", "thousands", "comment", "escape")
        given = [(name, mark) for name in marks if (mark := getattr(self, name)) is not None]
        for at, (name, mark) in enumerate(given):
            optional = name in ("quote", "thousands", "comment", "escape")
            if not (mark == "" and optional) and (
                len(mark) != 1 or not mark.isascii() or mark in "\r\n\0+-" or mark.isalnum()
            ):
                raise UsageError(
                    f"{option_text(f'Csv.{name}', mark)}: is not a mark; one ASCII character other than a"
                    f" letter, digit, sign or line end is allowed{', or none' if optional else ''}. Pass one."
                )
            for other, same in given[:at]:
                in_quotes = other == "delimiter" and name in ("decimal", "thousands") and self.quote
                if mark and mark == same and not in_quotes:
                    raise UsageError(
                        f"{option_text(f'Csv.{name}', mark)}: is the same as {option_text(f'Csv.{other}')};"
                        " each mark means one thing. Change one."
                    )

    def dialect(self, width: int = 0) -> TextDialect:
        """Return the dialect, with a comma if no delimiter is given."""
        quote = '"' if self.escape else self.quote  # TextStream writes the cells again
        marks = (self.delimiter or ",", quote, self.decimal, self.thousands, self.comment or "")
        delimiter, around, decimal, thousands, comment = (mark.encode() for mark in marks)
        given = [text.strip(" \t") for text in self.na]
        na = frozenset(text.encode() for text in (*(() if "" in given else NA_TEXTS), *given))
        return TextDialect(
            delimiter, around, decimal, thousands, na, width, comment, keep_spaces=self.keep_spaces
        )

    def open(self, name: str) -> TextStream:
        """Open a file as text. Raises as TextStream does."""
        escape = (self.escape, self.delimiter or "", self.quote) if self.escape else ()
        return TextStream(name, self.encoding, escape)


@dataclass(frozen=True)
class ReadOptions(Csv):
    """Options for reading files: those of Csv, and others for files of any kind and frames.

    types: column -> one of TYPES, where the first rows are misleading; alike: "like" or "append" if they are
    those of a pack, which may name columns that the files lack; no remedy changes them, and for "append" no
    option at all; words: texts of Arrow sources are read like those of the pack's files of text.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    alike: str = ""
    words: bool = False

    def __post_init__(self) -> None:
        """Check the options. Raises UsageError."""
        super().__post_init__()
        types = (*TYPES, *NOTATIONS)
        for column, type in self.types.items():
            if type not in types:
                raise UsageError(
                    f"{option_text('types', {column: type})}: is not a type; types are {', '.join(types)};"
                    f" {nearest(type, types)}. Correct it."
                )


@dataclass(frozen=True)
class TableChunk:
    """A piece of the input, some thousand rows.

    name: of the input, for messages; after: where the next piece begins, plain JSON; nbytes: size in the
    file; parse: converts the piece to records, once; text: of the piece, for messages.
    """

    name: str
    after: list[Any]
    nbytes: int
    parse: Callable[[], ParsedRows]
    text: bytes | memoryview = b""

    def read(self) -> ParsedRows:
        """Parse the piece; thread-safe for different pieces, mostly without the GIL. Raises SourceError."""
        parsed = self.parse()
        parsed.nbytes = self.nbytes
        return parsed


class TableSource:
    """One or several files that hold one table; opened by open_table.

    columns: columns of the input in order, with inferred or given types; notes: sentences for the user;
    column_notes: notes on inferred types, by column name; indexes: names of columns that are the index of a
    data frame; unit: "line" or "row", unit of BadRow.line; names: of the inputs; state: size and modification
    time (ns since 1970) of each file before it was read; nbytes: size of all inputs; rows: number of rows,
    None if not known yet.
    """

    columns: tuple[TableColumn, ...]
    notes: tuple[str, ...]
    column_notes: dict[str, list[str]]
    indexes: tuple[str, ...] = ()
    unit: str
    rows: int | None = None

    def __init__(self, names: Sequence[str], reading: ReadOptions) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self._reading = reading
        self.state: list[tuple[int, int]] = [_state(name) for name in names]
        self.nbytes: int = sum(size for size, _ in self.state)

    def chunks(self, layout: RecordLayout, after: list[Any] | None = None) -> Iterator[TableChunk]:
        """Yield the pieces in order, from the beginning or from `after`. Raises SourceError.

        Equal inputs give equal pieces.
        """
        raise NotImplementedError

    def empty_label(self, layout: RecordLayout) -> str:
        """Return the name of a column of the label that is empty in every row, "" if there is none.

        Reads on until each of these columns has shown a value. Raises SourceError.
        """
        empty = tuple(w for w in layout.members if w.column.role == "label")
        for chunk in self.chunks(RecordLayout(empty)) if empty else ():
            parsed = chunk.read()
            wrong = {bad.column for bad in parsed.bad}
            empty = tuple(
                w for w in empty if w.index not in wrong and is_missing(parsed.records[w.name]).all()
            )
            if not empty:
                break
        return empty[0].column.name if empty else ""

    def ways(self, bad: BadRow, text: bytes) -> list[str]:
        """Return the remedies for a bad row, tried where possible. text: of its piece."""
        typed = bad.column is None or self._reading.alike
        return [] if typed else [as_category(self.columns[bad.column or 0].name)]

    def first_line(self, name: str) -> int:
        """Return the line (row) number of an input's first piece for messages: 1, or more after a header."""
        return 1

    def fingerprint(self) -> dict[str, Any]:
        """Return an identity of the inputs that holds on any machine.

        Names relative to the common folder, sizes, options.
        """
        folder = os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name in self.names])
        reading = asdict(replace(self._reading, types={}) if self._reading.alike else self._reading)
        del reading["alike"], reading["words"]
        if reading["escape"] is None:
            del reading["escape"]
        return {
            "names": [as_text(os.path.relpath(name, folder)) for name in self.names],
            "sizes": [size for size, _ in self.state],
            "reading": {**reading, "na": list(self._reading.na)},
        }

    def digests(self) -> list[str]:
        """Return the digest of each input. Raises SourceError if a file changed after reading began."""
        digests = [file_digest(name) for name in self.names]
        self.check_unchanged()
        return digests

    def check_unchanged(self) -> None:
        """Raise SourceError if an input changed after reading began."""
        for name, before in zip(self.names, self.state, strict=True):
            if _state(name) != before:
                raise SourceError(
                    f"{name}: was changed while it was read. Run the same command again when it is whole."
                )

    def newest(self) -> InputFile:
        """Return the input with the latest modification time."""
        times = np.array([time for _, time in self.state])
        return newest_file([as_text(os.path.basename(name)) for name in self.names], times)


def file_digest(name: str) -> str:
    """Return the digest of a file's content. Raises SourceError."""
    try:
        with open(name, "rb", buffering=0) as file:
            return digest(iter(partial(file.read, _DIGESTED_BYTES), b"")).hex()
    except OSError as error:
        raise unreadable(name, error) from None


def _state(name: str) -> tuple[int, int]:
    """Return size and modification time of a file; they show if it changed. (-1, 0) if it does not exist."""
    try:
        status = os.stat(name)
    except FileNotFoundError:
        return -1, 0
    return status.st_size, status.st_mtime_ns


def compare_names(name: str, actual: Sequence[str], first: str, columns: Sequence[str]) -> None:
    """Raise SourceError if a file does not have the columns of the first file."""
    for number, (here, there) in enumerate(zip_longest(actual, columns)):
        if here != there:
            held, other = (f"is {x!r}" if x is not None else "is missing" for x in (here, there))
            raise SourceError(
                f"{name}: column {number} (from 0) {held}, in {first} it {other}; all files must have the"
                " same columns in the same order. Leave the file out, or change its columns."
            )


def expand(sources: Sequence[str]) -> list[str]:
    """Expand globs and folders; keep the given order, and sort the matches of each glob or folder.

    Raises SourceError for a file that cannot be read, a glob without a match, a folder of other files than
    tables or of several splits, or a repeated file.
    """
    names: list[str] = []
    for source in sources:
        if os.path.isdir(source):
            names += _files_of(source)
            continue
        if glob.has_magic(source) and not os.path.lexists(source):
            matches = sorted(name for name in glob.glob(source, recursive=True) if not os.path.isdir(name))
            if not matches:
                raise SourceError(f"{source}: matches no file; at least one is needed. Check the pattern.")
            names += matches
        else:
            names.append(source)
    seen: dict[tuple[int, int], str] = {}
    for name in names:
        try:
            status = os.stat(name)
            if stat.S_ISREG(status.st_mode):
                os.close(os.open(name, os.O_RDONLY))
        except OSError as error:
            raise unreadable(name, error) from None
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{name}: is not a regular file; files are read. Pass a file.")
        first = seen.setdefault((status.st_dev, status.st_ino), name)
        if first is not name:
            raise SourceError(
                f"{name}: is the same file as {first}; each file is read once. Pass one of them."
            )
    return names


def _files_of(folder: str) -> list[str]:
    """Return the tables of a folder. Raises SourceError if it holds other files, or one file per split."""
    folder = folder.rstrip("/") or "/"
    names = folder_tables(folder)
    if not names:
        raise SourceError(
            f"{folder}: holds other files than tables, or none; a folder of a table holds nothing else. Pass"
            f" the files, for example as '{folder}/*.csv'."
        )
    splits: dict[str, str] = {}
    for name in names:
        splits.setdefault(split_of(os.path.relpath(name, folder)) or "", name)
    if len(splits) > 1 and splits.keys() - {""}:
        shown = " and ".join(os.path.relpath(name, folder) for name in list(splits.values())[:2])
        raise SourceError(
            f"{folder}: holds {shown}, which look like splits; the files of a folder become one table. Pass"
            " the files of each split alone, the others with like='train.h5'; or if all are"
            f" one table, '{folder}/**/*{table_suffix(names[0])}'."
        )
    return names
