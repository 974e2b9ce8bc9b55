"""open_table: open the files of a table by the suffixes of their names."""

from __future__ import annotations

from collections.abc import Sequence

from packer.errors import MissingDependencyError, UsageError
from packer.source_kinds import ARROW_TABLES, COMPRESSIONS, TEXT_TABLES, table_suffix
from packer.tables.reading.table_source import ReadOptions, TableSource, expand
from packer.tables.reading.text_table import TextTable


def open_table(sources: Sequence[str], reading: ReadOptions) -> TableSource:
    """Open files that hold one table, one after the other.

    sources: names and globs, either all text, or all Parquet and Arrow; reading: options for reading.
    Raises SourceError if files cannot be read or do not belong together; UsageError for other wrong sources;
    MissingDependencyError.
    """
    if not sources:
        raise UsageError("a table: no file is given; at least one is needed. Pass one.")
    names = expand(sources)
    for name in names:
        if not table_suffix(name):
            raise UsageError(
                f"{name}: is not a table by its name; names of tables end in {', '.join(TEXT_TABLES)} (each"
                f" also with {', '.join(COMPRESSIONS)}), "
                f"or in {', '.join(ARROW_TABLES)}. Rename it."
            )
    arrow = [table_suffix(name) in ARROW_TABLES for name in names]
    if any(arrow) != all(arrow):
        raise UsageError(
            f"{', '.join(names[:3])}: mix text files and others; the files of a table are of one kind. Pass"
            " them separately."
        )
    if arrow[0]:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise MissingDependencyError("pyarrow", "reading Parquet and Arrow files") from None
        from packer.tables.reading.arrow_table import ArrowTable  # which imports pyarrow

        return ArrowTable(names, reading)
    return TextTable(names, reading)
