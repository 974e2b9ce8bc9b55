"""export_table: the rows of a pack of a table become a CSV or Parquet file again, its columns in the order of the source.

=================  ============================================================================================================
column             in the file
=================  ============================================================================================================
feature            the number that the pack holds, as a network gets it: filled, log1p and standardized as the header says; of a
                   timestamp ``name`` and ``name.seconds``, of a one-hot column ``name=category``; an empty cell for NaN
category           its text; an empty cell for 0, missing or unknown
label              the name of the class, or the number
kept               as in the source: numbers, true and false, texts, dates, times and timestamps in ISO 8601; an empty cell for missing
=================  ============================================================================================================

Columns that were left out are not there. The rows are in the order of the pack.
"""

from __future__ import annotations

import csv
import fcntl
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, MissingDependencyError, PackerError, UsageError
from packer.format.file_io import remove
from packer.format.pack import Pack, open_pack
from packer.format.working_folder import check_output, failure
from packer.progress import Progress
from packer.read.row_selection import select_rows
from packer.tables.table_packs import TablePackRows, is_table
from packer.tables.transform.table_transform import TableTransform, unique

SUFFIX = ".exporting"
"""Of the file's name while it is being written."""
ENDINGS = (".csv", ".tsv", ".parquet")
_SLAB = 8192  # rows at a time
_GROUP = 16  # of them in a row group of Parquet
_WHOLE = 2.0**53


@dataclass(frozen=True)
class TableExportReport:
    """The report of an export. rows: written; nbytes: of the file; seconds: wall time."""

    out: str
    rows: int
    nbytes: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self)


def export_table(
    pack: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    split: str | None = None,
    progress: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> TableExportReport:
    """Write the rows of a pack that was made of a table as one CSV or Parquet file.

    Every block is compared with its checksum. Nothing is left under the file's name unless it is whole.

    Parameters
    ----------
    pack : path
        A pack that was made of a table.
    out : path
        A new file, .csv, .tsv or .parquet.
    split : str, optional
        Write only its rows.
    progress : bool, default False
        Show the progress.
    on_progress : callable, optional
        Called with the rows done so far.

    Returns
    -------
    TableExportReport

    Raises
    ------
    UsageError
        The file exists, the pack is of images, or has no such split.
    FormatError
        The pack is damaged.
    MissingDependencyError
        Parquet needs pyarrow.
    """
    began = time.perf_counter()
    target, opened = os.fspath(out), open_pack(pack)
    if not is_table(opened):
        raise UsageError(f"{opened.path}: was made of images; export_table writes tables. Use export_images.")
    if not target.lower().endswith(ENDINGS):
        raise UsageError(
            f"{target}: ends in none of {', '.join(ENDINGS)}; a table is exported as one such file. Name it so."
        )
    check_output(target, overwrite=False)
    spans = select_rows(opened, split)
    total = sum(stop - start for start, stop in spans)
    try:
        columns = _columns(opened, TableTransform.from_json(opened.parts[0].header.table or {}))
    except ValueError as error:
        raise FormatError(f"{opened.path}: {error}. Convert its table again.") from None
    work = target + SUFFIX
    try:
        fd = os.open(work, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with os.fdopen(fd, "w+b") as file, Progress(progress, "rows", on_progress) as bar:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PackerError(
                    f"{target}: another packer is writing it ({work} is locked). Wait for it."
                ) from None
            try:
                file.truncate()
                bar.start(total)
                _write(file, target, columns, _slabs(opened, spans, bar))
                file.flush()
                nbytes = file.tell()
                os.rename(work, target)
            except BaseException:
                remove(work)
                raise
    except OSError as error:
        raise failure(target, error) from error
    return TableExportReport(target, total, nbytes, time.perf_counter() - began)


class _Column(NamedTuple):
    """A column of the file. field: of the pack; get: its values from the field's rows; kind: what they are; names: of codes."""

    name: str
    field: str
    get: Callable[[Any], Any]
    kind: str
    names: tuple[str, ...] = ()


def _columns(pack: Pack, transform: TableTransform) -> list[_Column]:
    fields = {f.name for f in pack.fields}
    features = iter(enumerate(transform.features))
    coded = {name: k for k, name in enumerate(transform.categories)}
    found: list[_Column] = []
    for c in transform.columns:
        for _ in c.outputs:
            k, name = next(features)
            found.append(_Column(name, "features", _at(k), "feature"))
        if c.coded:
            names = ("", *(c.categories or ()))
            found.append(_Column(c.name, "categories", _at(coded[c.name]), "code", names))
        if c.role == "label" and "label" in fields:
            get = _at(transform.label.index(c.name)) if len(transform.label) > 1 else _same
            if transform.classes is None:
                found.append(_Column(c.name, "label", get, "feature"))
            else:
                found.append(_Column(c.name, "label", get, "code", transform.classes))
        if c.field in fields:
            found.append(_Column(c.name, str(c.field), _same, c.type))
    found += [
        _Column(name, "features", _at(k), "feature") for k, name in features
    ]  # those that tell missing cells
    names_of = unique([column.name for column in found])
    return [column._replace(name=name) for column, name in zip(found, names_of, strict=True)]


def _same(rows: Any) -> Any:
    return rows


def _at(k: int) -> Callable[[Any], Any]:
    return lambda rows: rows[:, k]


def _slabs(pack: Pack, spans: Sequence[tuple[int, int]], bar: Progress) -> Iterator[Mapping[str, Any]]:
    rows, done = TablePackRows(pack), 0
    for start, stop in spans:
        for first in range(start, stop, _SLAB):
            samples = np.arange(first, min(first + _SLAB, stop))
            yield rows.columns(samples)
            done += len(samples)
            bar.move(done)


def _write(
    file: IO[bytes], target: str, columns: Sequence[_Column], slabs: Iterator[Mapping[str, Any]]
) -> None:
    if target.lower().endswith(".parquet"):
        _write_parquet(file, columns, slabs)
        return
    text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="", write_through=True)
    try:
        writer = csv.writer(
            text, delimiter="\t" if target.lower().endswith(".tsv") else ",", lineterminator="\n"
        )
        writer.writerow([column.name for column in columns])
        for slab in slabs:
            cells = [_texts(column, column.get(slab[column.field])) for column in columns]
            writer.writerows(zip(*cells, strict=True))
    finally:
        text.flush()
        text.detach()


def _coded(column: _Column, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the codes. Raises FormatError if one has no name."""
    if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(column.names):
        raise FormatError(
            f"column {column.name!r}: holds the code {int(codes.max())}; the header has {len(column.names)} names."
            " Convert the table again."
        )
    return codes


def _texts(column: _Column, values: Any) -> list[str]:
    """Return the cells of a column as texts."""
    if column.kind == "code":
        return [column.names[code] for code in _coded(column, values).tolist()]
    if column.kind == "text":
        return [os.fsdecode(value) for value in values]
    if column.kind == "boolean":
        return ["true" if value else "false" for value in values.tolist()]
    if column.kind in ("date", "time", "timestamp"):
        return [_moment(column.kind, value) for value in values.tolist()]
    if values.dtype.kind in "iu":
        return list(map(str, values.tolist()))
    whole = (np.abs(values) < _WHOLE) & (values == np.trunc(values))
    if whole.all():
        return list(map(str, values.astype(np.int64).tolist()))
    # The shortest text from which the same number of this dtype is read.
    return ["" if text == "nan" else text for text in values.astype("U32").tolist()]


def _moment(kind: str, value: float) -> str:
    """Write a date, time or timestamp in ISO 8601; beyond years of four digits the number."""
    if value != value:
        return ""
    micros = round(value * 86_400e6) if kind == "date" else round(value * 1e6)
    days, rest = divmod(micros, 86_400_000_000)
    if kind != "time" and not -719_162 <= days <= 2_932_896:
        return repr(value)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + (
        f".{fraction:06}" if fraction else ""
    )
    if kind == "time":
        return clock
    day = str(np.datetime64(days, "D"))
    return day if kind == "date" else f"{day}T{clock}Z"


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("pyarrow", "writing Parquet files", "tables") from None
    return pyarrow


def _write_parquet(file: IO[bytes], columns: Sequence[_Column], slabs: Iterator[Mapping[str, Any]]) -> None:
    pa = _pyarrow()
    writer, waiting = None, []
    try:
        for slab in slabs:
            arrays = [_array(pa, column, column.get(slab[column.field])) for column in columns]
            waiting.append(pa.table(arrays, names=[column.name for column in columns]))
            writer = writer or pa.parquet.ParquetWriter(file, waiting[0].schema)
            if len(waiting) == _GROUP:
                writer.write_table(pa.concat_tables(waiting).combine_chunks())
                waiting = []
        if waiting and writer is not None:
            writer.write_table(pa.concat_tables(waiting).combine_chunks())
    finally:
        if writer is not None:
            writer.close()


def _array(pa: Any, column: _Column, values: Any) -> Any:
    """Return the cells of a column as an Arrow array."""
    if column.kind == "code":
        codes = _coded(column, values)
        missing = codes == 0 if column.field == "categories" else None
        return pa.DictionaryArray.from_arrays(
            pa.array(codes.astype(np.int32), mask=missing), pa.array(column.names, pa.string())
        )
    if column.kind == "text":
        return pa.array([os.fsdecode(value) or None for value in values], pa.string())
    if column.kind == "boolean":
        return pa.array(values.astype(np.bool_))
    if column.kind in ("date", "time", "timestamp"):
        missing = np.isnan(values)
        filled = np.where(missing, 0, values)
        if column.kind == "date":
            return pa.array(np.rint(filled).astype(np.int32), pa.int32(), mask=missing).cast(pa.date32())
        micros = pa.array(np.rint(filled * 1e6).astype(np.int64), pa.int64(), mask=missing)
        return micros.cast(pa.time64("us") if column.kind == "time" else pa.timestamp("us", "UTC"))
    return pa.array(np.ascontiguousarray(values))
