"""Parquet and Arrow files in parts of some rows, each told where it ends. All that pyarrow raises is made a SourceError."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from packer.errors import MissingDependencyError, SourceError
from packer.tables.reading.arrow_values import Arrow

_PARQUET = (".parquet", ".pq")
_BUFFER = 1 << 20  # bytes of a column read at once; without it a row group is read whole, whatever its size


class ArrowPart(NamedTuple):
    """Neighbouring rows.

    after: [row group or batch, row in it] of the first row behind them; load: gives an array for each column asked for, by any
    thread, once; nbytes: of the file.
    """

    after: list[int]
    load: Callable[[], Sequence[Arrow]]
    nbytes: int


class ArrowFile(Protocol):
    """A file. rows: None if only reading tells."""

    name: str
    schema: Arrow
    rows: int | None

    def parts(self, indices: Sequence[int], most: int, group: int, row: int) -> Iterator[ArrowPart]:
        """Yield parts of at most so many rows, from a row of a group on. indices: of columns."""


def pyarrow() -> Arrow:
    """Import pyarrow with its formats. Raises MissingDependencyError."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("pyarrow", "reading Parquet and Arrow files", "tables") from None
    return pyarrow


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Make a SourceError of what pyarrow raises about a file."""
    try:
        yield
    except (pyarrow().lib.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        said = (str(error).strip().splitlines() or ["nothing is said why"])[0].rstrip(".")
        raise SourceError(f"{name}: cannot be read ({said}). Check it, or write it again.") from None


def open_file(name: str) -> ArrowFile:
    """Open a file by its suffix and its first bytes, and read its schema. Raises SourceError."""
    with open(name, "rb") as file:
        begin = file.read(6)
    if begin.startswith(b"FEA1"):
        raise SourceError(
            f"{name}: is in version 1 of Feather, which is no longer read. Rewrite it, as by"
            " pyarrow.feather.write_feather(pyarrow.feather.read_table(OLD), NEW)."
        )
    with reading(name):
        if name.lower().endswith(_PARQUET) or begin.startswith(b"PAR1"):
            return _Parquet(name)
        return _Ipc(name, stream=begin != b"ARROW1")


class _Parquet:
    def __init__(self, name: str) -> None:
        self.name = name
        self._size = os.stat(name).st_size
        self._metadata = None
        with self._open() as file:
            self._metadata = file.metadata
            self.schema = file.schema_arrow
        self.rows: int | None = self._metadata.num_rows
        groups = [self._metadata.row_group(g) for g in range(self._metadata.num_row_groups)]
        self._rows = [group.num_rows for group in groups]
        self._before = [0, *accumulate(group.total_byte_size for group in groups)]

    def parts(self, indices: Sequence[int], most: int, group: int, row: int) -> Iterator[ArrowPart]:
        # Columns may have equal names: which of those with this one.
        counts: Counter[str] = Counter()
        every: list[tuple[str, int]] = []
        for name in self.schema.names:
            every.append((name, counts[name]))
            counts[name] += 1
        names, numbers = [every[i][0] for i in indices], [every[i][1] for i in indices]
        done = self._bytes(group, row)
        for g in range(group, len(self._rows)):
            count, first = self._rows[g], row if g == group else 0
            if not count:
                continue
            if count <= most:
                ends = self._bytes(g + 1, 0)
                yield ArrowPart([g + 1, 0], partial(self._group, g, names, numbers), ends - done)
                done = ends
                continue
            with reading(self.name), self._open() as file:
                at = 0
                for batch in file.iter_batches(most, [g], columns=list(dict.fromkeys(names))):
                    start, at = at, at + batch.num_rows
                    if at <= first:
                        continue  # done by an interrupted run; there is no way to them but through these
                    arrays = _picked(batch.slice(max(0, first - start)), names, numbers)
                    ends = self._bytes(g, at)
                    after = [g, at] if at < count else [g + 1, 0]
                    yield ArrowPart(after, partial(list, arrays), ends - done)
                    done = ends

    def _group(self, group: int, names: Sequence[str], numbers: Sequence[int]) -> list[Arrow]:
        """Read a row group's columns; workers have one each, so no more threads are begun."""
        with self._open() as file:
            table = file.read_row_group(group, columns=list(dict.fromkeys(names)), use_threads=False)
        return _picked(table, names, numbers)

    def _open(self) -> Any:
        return pyarrow().parquet.ParquetFile(
            self.name, metadata=self._metadata, pre_buffer=False, buffer_size=_BUFFER
        )

    def _bytes(self, group: int, row: int) -> int:
        """Return the bytes of the file before a row, as if rows lay in order."""
        if group >= len(self._rows):
            return self._size
        weight = self._before[group + 1] - self._before[group]
        before = self._before[group] + weight * row // max(1, self._rows[group])
        return int(self._size * before // max(1, self._before[-1]))


class _Ipc:
    """Arrow's own format. What is not compressed is mapped, and read where it is used."""

    rows: int | None = None

    def __init__(self, name: str, *, stream: bool) -> None:
        self.name, self._stream = name, stream
        self._size = os.stat(name).st_size
        with pyarrow().memory_map(name) as file:
            self.schema = self._reader(file, []).schema

    def parts(self, indices: Sequence[int], most: int, group: int, row: int) -> Iterator[ArrowPart]:
        with reading(self.name), pyarrow().memory_map(self.name) as file:
            # Whoever reads fewer columns than there are is given them in the file's order, as they are asked for here.
            reader = self._reader(file, indices)
            for g, batch, begin, end in self._batches(file, reader, 0 if self._stream else group):
                if g < group:
                    continue
                count = batch.num_rows
                done = begin
                for start in range(row if g == group else 0, count, most):
                    stop = min(start + most, count)
                    at = begin + (end - begin) * stop // count
                    after = [g, stop] if stop < count else [g + 1, 0]
                    yield ArrowPart(after, partial(list, batch.slice(start, stop - start).columns), at - done)
                    done = at

    def _batches(self, file: Arrow, reader: Arrow, group: int) -> Iterator[tuple[int, Arrow, int, int]]:
        """Yield each batch's number, it, and where it begins and ends in the file, about."""
        if self._stream:
            begin = 0
            for g, batch in enumerate(reader):
                end = int(file.tell())
                yield g, batch, begin, end
                begin = end
        else:
            count = reader.num_record_batches
            for g in range(group, count):
                yield g, reader.get_batch(g), self._size * g // count, self._size * (g + 1) // count

    def _reader(self, file: Arrow, indices: Sequence[int]) -> Arrow:
        ipc = pyarrow().ipc
        options = ipc.IpcReadOptions(included_fields=list(indices) or None)
        return (ipc.open_stream if self._stream else ipc.open_file)(file, options=options)


def _picked(table: Arrow, names: Sequence[str], numbers: Sequence[int]) -> list[Arrow]:
    """Return the columns, each as one array. numbers: which of those with the same name."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(table.schema.names):
        places.setdefault(name, []).append(place)
    found = []
    for name, number in zip(names, numbers, strict=True):
        column = table.column(places[name][number])
        if hasattr(column, "combine_chunks"):
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        found.append(column)
    return found
