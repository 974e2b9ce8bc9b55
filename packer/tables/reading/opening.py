"""Tables, opened by the suffixes of their names."""

from __future__ import annotations

from collections.abc import Sequence

from packer.errors import UsageError
from packer.tables.reading.compression import COMPRESSIONS, compression
from packer.tables.reading.table_source import Reading, TableSource
from packer.tables.reading.text_stream import expand

TEXT = (".csv", ".tsv", ".tab", ".psv", ".data")
ARROW = (".parquet", ".pq", ".arrow", ".feather", ".ipc")


def is_table(name: str) -> bool:
    """Whether a file, or the files a glob matches, are tables by name."""
    return bool(_kind(name))


def _kind(name: str) -> str:
    """The suffix of a table: one of TEXT or ARROW; "" of what is none."""
    name = name.lower()
    plain = name.removesuffix(compression(name))
    return next((s for s in TEXT if plain.endswith(s)), next((s for s in ARROW if name.endswith(s)), ""))


def open_table(sources: Sequence[str], reading: Reading) -> TableSource:
    """Open files that hold one table, one after the other.

    sources: names and globs; all of text, or all of Parquet and Arrow; reading: how they are read.
    Raises: SourceError for files that cannot be read or do not belong together; UsageError for what else should be passed;
    MissingDependencyError.
    """
    if not sources:
        raise UsageError("a table: no file is given; at least one is needed. Pass one.")
    names = expand(sources)
    for name in names:
        if not _kind(name):
            raise UsageError(
                f"{name}: not a table by its name; those end in {', '.join(TEXT)} (each also with {', '.join(COMPRESSIONS)}), "
                f"or in {', '.join(ARROW)}. Rename it."
            )
    arrow = [_kind(name) in ARROW for name in names]
    if any(arrow) != all(arrow):
        one, other = names[arrow.index(True)], names[arrow.index(False)]
        raise UsageError(
            f"{one}: is no text file, {other} is one; the files of a table are of one kind. Pass them apart."
        )
    if arrow[0]:
        from packer.tables.reading.arrow_table import ArrowTable

        return ArrowTable(names, reading)
    from packer.tables.reading.text_table import TextTable

    return TextTable(names, reading)
