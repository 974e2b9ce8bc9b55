"""The interface of readers of tables, whatever the files are; how they are read, and the names of the files."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

import numpy as np

from packer.arguments import whole
from packer.errors import SourceError, UsageError
from packer.format.checksums import digest
from packer.format.file_io import InputFile, newest_file
from packer.path_text import as_text
from packer.sentence import Option
from packer.tables.reading.text_stream import unreadable
from packer.tables.transform.cell_values import NA_TEXTS
from packer.tables.transform.column_types import TableColumn
from packer.tables.transform.records import ParsedRows, RecordLayout

_DIGESTED_BYTES = 4 << 20  # of a file, read at once


@dataclass(frozen=True)
class TextDialect:
    """Each mark is one ASCII character; quote, thousands and comment may be b"" for none.

    delimiter: between cells; quote: around cells; decimal: the decimal point; thousands: passed over between digits of the whole
    part of a number; na: the texts that mean "missing"; width: cells of a record; comment: lines that begin with it hold no record.
    """

    delimiter: bytes
    quote: bytes
    decimal: bytes
    thousands: bytes
    na: frozenset[bytes]
    width: int
    comment: bytes = b""

    @cached_property
    def marks(self) -> tuple[int, int, int, int, int]:
        """The marks as the parser takes them: delimiter, quote, decimal, thousands, comment; -1 for none."""
        marks = self.delimiter, self.quote, self.decimal, self.thousands, self.comment
        delimiter, quote, point, thousands, comment = (mark[0] if mark else -1 for mark in marks)
        return delimiter, quote, point, thousands, comment

    @cached_property
    def missing(self) -> tuple[bytes, ...]:
        """The texts that mean "missing", the shortest first."""
        return tuple(sorted(self.na, key=len))


@dataclass(frozen=True)
class Csv:
    """Options by which text files are read.

    header: the first line holds names; delimiter: one character, None: found out; quote: one character, "" for none; decimal: the
    decimal point; thousands: a character passed over inside whole numbers, "" for none; na: texts that mean "missing", beside the
    standard ones; encoding: of the files; skip_rows: lines passed over at the beginning of each file; comment: one character, lines
    that begin with it are passed over, None for none.

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

    def __post_init__(self) -> None:
        """Raise UsageError for marks that no file can have, and for two that are the same.

        In quotes a delimiter may be a decimal point or stand between thousands, as in "2,100".
        """
        object.__setattr__(self, "na", (self.na,) if isinstance(self.na, str) else tuple(self.na))
        whole("skip_rows", self.skip_rows, 0)
        marks = ("delimiter", "quote", "decimal", "thousands", "comment")
        given = [(name, mark) for name in marks if (mark := getattr(self, name)) is not None]
        for at, (name, mark) in enumerate(given):
            optional = name in ("quote", "thousands", "comment")
            if not (mark == "" and optional) and (
                len(mark) != 1 or not mark.isascii() or mark in "\r\n\0+-" or mark.isalnum()
            ):
                raise UsageError(
                    f"{Option(f'Csv.{name}', mark)}: is no mark; one ASCII character is, no letter, "
                    f"digit, sign or end of line{', or none' if optional else ''}. Pass one."
                )
            for other, same in given[:at]:
                in_quotes = other == "delimiter" and name in ("decimal", "thousands") and self.quote
                if mark and mark == same and not in_quotes:
                    raise UsageError(
                        f"{Option(f'Csv.{name}', mark)}: is the same as {Option(f'Csv.{other}')};"
                        " each mark means one thing. Change one."
                    )

    def dialect(self, width: int = 0) -> TextDialect:
        """Return the dialect; without a delimiter: a comma."""
        marks = (self.delimiter or ",", self.quote, self.decimal, self.thousands, self.comment or "")
        delimiter, quote, decimal, thousands, comment = (mark.encode() for mark in marks)
        na = frozenset(text.encode() for text in (*NA_TEXTS, *(text.strip(" \t") for text in self.na)))
        return TextDialect(delimiter, quote, decimal, thousands, na, width, comment)


@dataclass(frozen=True)
class ReadOptions(Csv):
    """Options by which files are read: those of Csv, and for files of any kind `types`.

    types: column -> one of TYPES, where what the first rows look like is wrong.
    """

    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableChunk:
    """A piece of the input, some thousand rows.

    name: of the input, for messages; after: where the next piece begins, plain JSON; nbytes: of the file on the disk; parse: makes
    records of it, once.
    """

    name: str
    after: list[Any]
    nbytes: int
    parse: Callable[[], ParsedRows]

    def read(self) -> ParsedRows:
        """Take it apart; thread-safe for different chunks, most of it without the GIL. Raises SourceError."""
        parsed = self.parse()
        parsed.nbytes = self.nbytes
        return parsed


class TableSource:
    """One or several files that hold one table; opened by open_table.

    columns: of the input, in order, types found out or given; notes: sentences a user should see; column_notes: those about what a
    column was taken for, by its name; indexes: names of columns that are the index of a data frame, no values; unit: "line" or "row",
    what BadRow.line counts; names: of the inputs; state: size and time of the last change of each, in nanoseconds since 1970, before
    anything was read of it; nbytes: of all inputs, on the disk; rows: how many, None if that is not known beforehand.
    """

    columns: tuple[TableColumn, ...]
    notes: tuple[str, ...]
    column_notes: dict[str, list[str]]
    indexes: tuple[str, ...] = ()
    unit: str
    rows: int | None = None

    def __init__(self, names: Sequence[str], reading: ReadOptions) -> None:
        self.names = tuple(names)
        self._reading = reading
        self.state = [_state(name) for name in names]
        self.nbytes = sum(size for size, _ in self.state)

    def chunks(self, layout: RecordLayout, after: list[Any] | None = None) -> Iterator[TableChunk]:
        """Yield the pieces in order, from the beginning or from where `after` says. Equal inputs give equal pieces. Raises SourceError."""
        raise NotImplementedError

    def first_line(self, name: str) -> int:
        """Return the number that messages give to the first line (row) of an input's first chunk: 1, more below a header."""
        return 1

    def fingerprint(self) -> dict[str, Any]:
        """Identify the inputs on whatever machine: names below the folder that holds all of them, sizes, the options."""
        folder = os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name in self.names])
        reading = self._reading
        return {
            "names": [as_text(os.path.relpath(name, folder)) for name in self.names],
            "sizes": [size for size, _ in self.state],
            "reading": {**asdict(reading), "types": dict(reading.types), "na": list(reading.na)},
        }

    def digests(self) -> list[str]:
        """Return the digest of each input's content. Raises SourceError for one that was changed since reading began."""
        found = [file_digest(name) for name in self.names]
        self.check_unchanged()
        return found

    def check_unchanged(self) -> None:
        """Raise SourceError for an input that is another one than when reading began."""
        for name, before in zip(self.names, self.state, strict=True):
            if _state(name) != before:
                raise SourceError(
                    f"{name}: was changed while it was read. Run the same command again when it is whole."
                )

    def newest(self) -> InputFile:
        """Return the file that was changed last."""
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
    """Return what tells whether a file is still the same: size and time of the last change; (-1, 0) of one that is gone."""
    try:
        status = os.stat(name)
    except FileNotFoundError:
        return -1, 0
    return status.st_size, status.st_mtime_ns


def compare_names(name: str, found: Sequence[str], first: str, columns: Sequence[str]) -> None:
    """Raise SourceError if a file has other columns than the first one."""
    for number, (here, there) in enumerate(zip_longest(found, columns)):
        if here != there:
            held, other = (f"is {x!r}" if x is not None else "is not there" for x in (here, there))
            raise SourceError(
                f"{name}: column {number} (from 0) {held}, in {first} it {other}; all files must have the same "
                "columns in the same order. Leave it out, or make it alike."
            )


def expand(sources: Sequence[str]) -> list[str]:
    """Expand globs among names of files: in the order given, what a glob matches sorted.

    Raises: SourceError for what is no readable file, for a glob that matches nothing, for a file that comes twice.
    """
    names: list[str] = []
    for source in sources:
        if glob.has_magic(source) and not os.path.lexists(source):
            found = sorted(name for name in glob.glob(source, recursive=True) if not os.path.isdir(name))
            if not found:
                raise SourceError(f"{source}: matches no file; at least one is needed. Check the pattern.")
            names += found
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
            raise SourceError(
                f"{name}: is no regular file; files are read. Pass those of a folder as '{name}/*.csv'."
            )
        first = seen.setdefault((status.st_dev, status.st_ino), name)
        if first is not name:
            raise SourceError(f"{name}: is {first} once more; each file is read once. Drop one.")
    return names
