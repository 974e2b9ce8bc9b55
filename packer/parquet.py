"""Parquet files by pyarrow: of tables, labels and images. Its errors become SourceErrors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from packer.errors import MissingDependencyError, SourceError
from packer.given_values import brief

_BUFFER = 1 << 20  # bytes read per column at once; without it, pyarrow reads entire row groups of any size


@contextmanager
def reading_arrow(name: str) -> Iterator[Any]:
    """Yield pyarrow, with the errors that it raises for a file as SourceError. Raises MissingDependencyError.

    name: of what is read, for messages.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError("pyarrow", name, error) from None
    try:
        yield pyarrow
    except (pyarrow.lib.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        raise SourceError(f"{name}: cannot be read ({brief(reason)}). Check it, or write it again.") from None


def open_parquet(name: str, metadata: Any = None) -> Any:
    """Open a file, whose pages are read where they are used. metadata: of the file, if it was opened before.

    Raises SourceError, MissingDependencyError.
    """
    with reading_arrow(name) as arrow:
        file = arrow.parquet.ParquetFile(
            name, metadata=metadata, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True
        )
        if metadata is None:
            str(file.schema_arrow)  # raises for names that are not UTF-8
        return file
