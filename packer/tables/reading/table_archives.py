"""The table of an archive or workbook: the only file of a .zip or tar, the only sheet of an .xlsx as CSV."""

from __future__ import annotations

import csv
import datetime as dt
import io
import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any
from zipfile import BadZipFile, ZipFile

from packer.errors import SourceError
from packer.source_kinds import in_passing
from packer.workbooks import ERRORS, filled_sheets

_STEP = 1 << 20  # bytes of a member read at once
_LISTED = 3  # most names in a message


def zip_member(file: io.FileIO) -> Iterator[bytes]:
    """Yield the only file of a zip archive, or a workbook's sheet as CSV. Raises SourceError."""
    name = str(file.name)
    try:
        archive = ZipFile(file)
        held = archive.namelist()
        if "xl/workbook.xml" in held:
            return _sheet(name, file)
        return iter(partial(archive.open(_only(name, held, "a zip archive")).read, _STEP), b"")
    except (BadZipFile, RuntimeError) as error:
        raise SourceError(f"{name}: cannot be unpacked ({error}). Unpack it, and pass the file.") from None


def tar_member(name: str, stream: Any) -> Iterator[bytes]:
    """Yield the only file of a tar archive. Raises SourceError for several, once the first has been read."""
    read: list[str] = []
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        for member in archive:
            if member.isdir() or in_passing(member.name):
                continue
            read.append(member.name)
            data = archive.extractfile(member) if member.isfile() and len(read) == 1 else None
            while data is not None and (piece := data.read(_STEP)):
                yield piece
    _only(name, read, "a tar archive")


def is_tar(begin: bytes) -> bool:
    """Return True for the first 512 bytes of a tar archive."""
    return begin[257:262] == b"ustar"


def _only(name: str, held: Iterable[str], called: str) -> str:
    """Return the only file of an archive. Raises SourceError."""
    files = [one for one in held if not one.endswith("/") and not in_passing(one)]
    if len(files) == 1:
        return files[0]
    shown = ", ".join(files[:_LISTED]) + (" and others" if len(files) > _LISTED else "")
    raise SourceError(
        f"{name}: is {called} of {len(files):,} files{f' ({shown})' if files else ''}; one with a single"
        " table is read. Unpack it, and pass the files."
    )


def _sheet(name: str, file: io.FileIO) -> Iterator[bytes]:
    """Return the lines of the only filled sheet of a workbook as CSV with tabs; line N is the sheet's row N.

    Dates stay dates if no cell of their column has a time of day. Raises SourceError, MissingDependencyError.
    """
    filled = filled_sheets(name, file)
    if len(filled) != 1:
        titles = [*filled]
        shown = f" ({', '.join(map(repr, titles[:_LISTED]))})" if titles else ""
        way = f"pandas.read_excel({name!r}, {(titles or ['NAME'])[0]!r}).to_csv('t.csv', index=False)"
        raise SourceError(
            f"{name}: is a workbook with {len(filled):,} filled sheets{shown}; one with a single table is"
            f" read. Save one sheet as CSV: {way}"
        )
    return _lines(*filled.values())


def _lines(sheet: Any) -> Iterator[bytes]:
    """Yield a sheet's rows, read twice: once for their width and the columns that hold times of day."""
    width, timed = 0, set()
    for row in sheet.iter_rows(values_only=True):
        for place, value in enumerate(row):
            if value is not None:
                width = max(width, place + 1)
            if isinstance(value, dt.datetime) and value.time() != dt.time():
                timed.add(place)
    for row in sheet.iter_rows(values_only=True):
        cells = [_text(value, place in timed) for place, value in enumerate(row[:width])]
        line = io.StringIO()
        if any(cells):
            csv.writer(line, "excel-tab", lineterminator="").writerow(cells + [""] * (width - len(cells)))
        yield line.getvalue().encode() + b"\n"


def _text(value: Any, timed: bool) -> str:
    """Return a cell as text. timed: the column holds times of day."""
    if isinstance(value, dt.datetime) and not timed:
        return value.date().isoformat()
    return "" if value is None or (isinstance(value, str) and value in ERRORS) else str(value)
