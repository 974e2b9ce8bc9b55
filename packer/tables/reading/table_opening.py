"""open_table: files of a table, opened by the suffixes of their names."""

from __future__ import annotations

from collections.abc import Sequence

from packer.errors import MissingDependencyError, UsageError
from packer.source_kinds import ARROW_TABLES, COMPRESSIONS, TEXT_TABLES, table_suffix
from packer.tables.reading.table_source import ReadOptions, TableSource, expand
from packer.tables.reading.text_table import TextTable


def open_table(sources: Sequence[str], reading: ReadOptions) -> TableSource:
    """Open files that hold one table, one after the other.

    sources: names and globs; all of text, or all of Parquet and Arrow; reading: how they are read.
    Raises: SourceError for files that cannot be read or do not belong together; UsageError for what else should be passed;
    MissingDependencyError.
    """
    if not sources:
        raise UsageError("a table: no file is given; at least one is needed. Pass one.")
    names = expand(sources)
    for name in names:
        if not table_suffix(name):
            raise UsageError(
                f"{name}: not a table by its name; those end in {', '.join(TEXT_TABLES)} (each also with {', '.join(COMPRESSIONS)}), "
                f"or in {', '.join(ARROW_TABLES)}. Rename it."
            )
    arrow = [table_suffix(name) in ARROW_TABLES for name in names]
    if any(arrow) != all(arrow):
        raise UsageError(
            f"{', '.join(names[:3])}: are files of text and others; those of a table are of one kind. Pass them apart."
        )
    if arrow[0]:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise MissingDependencyError("pyarrow", "reading Parquet and Arrow files") from None
        from packer.tables.reading.arrow_table import ArrowTable  # which imports pyarrow

        return ArrowTable(names, reading)
    return TextTable(names, reading)
