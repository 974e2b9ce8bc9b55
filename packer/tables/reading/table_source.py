"""What a reader of tables promises, whatever the files are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from packer.tables.transform.columns import TableColumn
from packer.tables.transform.records import Layout, Parsed


@dataclass(frozen=True)
class Reading:
    """How text files are read; Arrow and Parquet files need only `types`.

    header: the first line holds names; delimiter: one character, None: found out; quote: one character, "" for none; decimal: the
    decimal point; thousands: a character passed over inside whole numbers, "" for none; na: texts that mean "missing", beside the
    standard ones; encoding: of the files; types: column -> one of TYPES, where what the first rows look like is wrong.
    """

    header: bool = True
    delimiter: str | None = None
    quote: str = '"'
    decimal: str = "."
    thousands: str = ""
    na: tuple[str, ...] = ()
    encoding: str = "utf-8"
    types: Mapping[str, str] = field(default_factory=dict)


class TableChunk(Protocol):
    """A piece of the input, some thousand rows. name: of the input, for messages; after: where the next piece begins, plain JSON."""

    name: str
    after: list[Any]

    def read(self) -> Parsed:
        """Take it apart; thread-safe for different chunks, most of it without the GIL. Raises SourceError."""


class TableSource(Protocol):
    """One or several files that hold one table; opened by opening.open_table.

    columns: of the input, in order, types found out or given; notes: sentences a user should see; indexes: names of columns that are
    the index of a data frame, no values -> the beginning of a sentence about each; unit: "line" or "row", what Bad.line counts;
    names: of the inputs; state: size and time of the last change of each, in nanoseconds since 1970, before anything was read of it;
    nbytes: of all inputs, on the disk; rows: how many, None if that is not known beforehand.
    """

    columns: tuple[TableColumn, ...]
    notes: tuple[str, ...]
    indexes: Mapping[str, str]
    unit: str
    names: tuple[str, ...]
    state: list[tuple[int, int]]
    nbytes: int
    rows: int | None

    def chunks(self, layout: Layout, after: list[Any] | None = None) -> Iterator[TableChunk]:
        """The pieces, in order, from the beginning or from where `after` says. Equal inputs give equal pieces. Raises SourceError."""

    def first_line(self, name: str) -> int:
        """The number that messages give to the first line (row) of an input's first chunk: 1, more below a header."""

    def fingerprint(self) -> dict[str, Any]:
        """What tells whether the inputs are still the same, on whatever machine: names, sizes, the Reading."""

    def newest(self) -> str:
        """Which file was changed last, and when; in the manner of sources.Source.newest."""


def fingerprint(names: Sequence[str], sizes: Sequence[int], reading: Reading) -> dict[str, Any]:
    """What tells files, read in a certain way, from others: names below the folder that holds all of them, sizes, the Reading."""
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(name)) for name in names])
    return {
        "names": [os.path.relpath(name, folder) for name in names],
        "sizes": list(sizes),
        "reading": {**asdict(reading), "types": dict(reading.types), "na": list(reading.na)},
    }
