"""The first half of converting a table: its rows in raw form, in the input's order, in one file beside the output.

Only when all rows are there is it known how many there are, what fills a missing cell, and which categories a column has. So they
are read once, in parallel, into `staging/records` (packed structures, see ``packer/tables/transform/records.py``) and `staging/texts` (the
bytes of kept texts), and everything else is done from there, at the speed of memory. Each piece of the input is journalled when it
is down: an interrupted conversion goes on behind the last one whose bytes are as they were written.
"""

from __future__ import annotations

import mmap
import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.conversion_run import Conversion
from packer.convert.row_maker import RowMaker
from packer.errors import SourceError, UsageError
from packer.format.checksums import block_checksum
from packer.format.file_io import pread_all, pwrite_all
from packer.format.pack_writer import Rows
from packer.format.working_folder import WorkingFolder, check_space, failure
from packer.sentence import Option
from packer.tables.reading.table_source import TableChunk, TableSource
from packer.tables.table_order import ShuffledFile
from packer.tables.transform.column_sums import check_categories
from packer.tables.transform.column_types import as_category
from packer.tables.transform.records import BadRow, CellFault, ParsedRows
from packer.tables.transform.row_mapper import RowMapper
from packer.tables.transform.table_transform import TableTransform

FOLDER = "staging"  # in the workplace
MAX_SKIPPED = 1000  # listed in the header; all are counted
_SHORT = 40  # characters of a text that may mean missing
_AHEAD = 2  # pieces of the input read ahead, a worker


def stage(source: TableSource, plan: TableTransform, place: WorkingFolder, run: Conversion) -> Staged:
    """Read a table, or the rest of it, into the workplace. run: its options, and the bar that shows the bytes of input read.

    Raises SourceError (a bad row, a file that is damaged or changes), UsageError (too many categories), SpaceError, PackerError.
    """
    run.bar.start(source.nbytes, "B")
    staged = Staged(source, plan, place, run.running.skip)
    try:
        after, done = staged.take_over()
        if done or staged.resumed:
            run.running.progress(staged.bytes_done)
        if not done:
            for piece in _pieces(source, plan, after, run.running.workers):
                staged.add(*piece)
                run.running.progress(staged.bytes_done)
            staged.finish()
    except SourceError:
        staged.check_unchanged()
        raise
    except OSError as error:
        raise failure(place.out, error) from error
    finally:
        staged.close()
    return staged


_Read = tuple[TableChunk, ParsedRows, "Counter[str]"]
"""A piece of the input, its rows, and why rows were left out -> how many."""


def _read(chunk: TableChunk, plan: TableTransform) -> _Read:
    """Take a piece apart, and leave out the rows that have no place in the pack."""
    parsed = chunk.read()
    reasons = Counter(_reason(b, plan) for b in parsed.bad)
    mask, found = plan.bad_rows(parsed.records, parsed.dictionaries)
    if mask is not None:
        first = {b.line: b for b in reversed(found)}
        reasons.update(_reason(b, plan) for b in first.values())
        parsed.leave_out(mask, found)
    if parsed.bad_rows > reasons.total():
        reasons["not told apart, as there are so many"] = parsed.bad_rows - reasons.total()
    return chunk, parsed, reasons


def _reason(bad: BadRow, plan: TableTransform) -> str:
    return str(bad.reason) if bad.column is None else f"column {plan.columns[bad.column].name!r} {bad.reason}"


def _pieces(
    source: TableSource,
    plan: TableTransform,
    after: list[Any] | None,
    workers: int,
) -> Iterator[_Read]:
    """Yield the pieces as they are taken apart, in order; this thread reads (and decompresses) the next ones meanwhile."""
    chunks = source.chunks(plan.layout, after)
    waiting: deque[Future[_Read]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="packer-parse") as pool:
        try:
            while True:
                some = islice(chunks, _AHEAD * workers - len(waiting))
                waiting.extend(pool.submit(_read, chunk, plan) for chunk in some)
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class Staged:
    """Rows of a table: put down as they are read, in order, with a note of how far that came; then all of them.

    path: of the records; texts: path of the blob that text members point into; layout: of the records; rows: how many;
    dictionaries: column number -> the texts that its codes mean; skipped: at most MAX_SKIPPED of the rows that were left out;
    reasons: why, and how many for each reason; bytes_read: of the inputs, this time; resumed: rows taken over.
    """

    def __init__(self, source: TableSource, plan: TableTransform, place: WorkingFolder, skip: bool) -> None:
        """skip: leave bad rows out, else the first one ends the run."""
        self._source, self._plan, self._place, self._skip = source, plan, place, skip
        folder = os.path.join(place.path, FOLDER)
        os.makedirs(folder, exist_ok=True)
        self.path, self.texts = os.path.join(folder, "records"), os.path.join(folder, "texts")
        self._records, self._blob = (
            os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666) for path in (self.path, self.texts)
        )
        self.layout, self._size = plan.layout, plan.layout.dtype.itemsize
        self.rows = self.resumed = self.bytes_read = self.bytes_done = 0
        self.skipped: list[dict[str, str]] = []
        self.reasons: Counter[str] = Counter()
        self._pieces = self._text_bytes = self._lines = 0
        self._input = ""
        self._codes: dict[int, dict[str, int]] = {
            w.index: dict(plan.known.get(w.index, {}))
            for w in plan.layout.members
            if w.column.type == "category"
        }

    @property
    def dictionaries(self) -> dict[int, list[str]]:
        """Column number -> the texts that its codes mean."""
        return {index: list(codes) for index, codes in self._codes.items()}

    def to_json(self) -> dict[str, Any]:
        """Return what was left out, as the header tells it."""
        return {"rows": self.reasons.total(), "reasons": dict(self.reasons), "first": self.skipped}

    def take_over(self) -> tuple[list[Any] | None, bool]:
        """Replay what an interrupted run has journalled, as far as its bytes are there.

        Returns: where the next piece begins, None for the beginning; and whether all of them are there.
        """
        pieces: list[dict[str, Any]] = []
        done = False
        for record in self._place.resumed:
            if record == "staged":
                done = True
            elif isinstance(record, dict) and "piece" in record:
                done = False
                del pieces[record["piece"] :]  # written anew since
                pieces.append(record)
        after: list[Any] | None = None
        for number, piece in enumerate(pieces):
            if not self._same(piece) or (piece["reasons"] and not self._skip):
                done = False  # from here on it is read again: a bad row is then told
                break
            after = piece["after"]
            self._pieces = number + 1
            self._note(piece)
        self.resumed = self.rows
        return after, done and self._pieces == len(pieces)

    def add(self, chunk: TableChunk, parsed: ParsedRows, reasons: Counter[str]) -> None:
        """Write one piece, and journal it. Raises SourceError for a bad row, UsageError for too many categories."""
        self._enter(chunk.name)
        bad = [self._told(b) for b in parsed.bad]
        if bad and not self._skip:
            raise SourceError(f"{bad[0]['key']}: {bad[0]['reason']}. {self._remedy(parsed.bad[0])}")
        fresh = self._merge(parsed)
        records = parsed.records
        for w in self.layout.members:
            if w.column.type == "text":
                records[w.name]["at"] += self._text_bytes
        nbytes = records.nbytes
        data = records.view(np.uint8).reshape(-1) if nbytes else np.empty(0, np.uint8)
        pwrite_all(self._records, data.data, self.rows * self._size)
        if parsed.texts:
            pwrite_all(self._blob, parsed.texts, self._text_bytes)
        piece = {
            "piece": self._pieces,
            "rows": len(records),
            "sum": block_checksum(data),
            "texts": [len(parsed.texts), block_checksum(np.frombuffer(parsed.texts, np.uint8))],
            "after": chunk.after,
            "input": chunk.name,
            "lines": parsed.lines,
            "nbytes": parsed.nbytes,
            "new": {str(index): texts for index, texts in fresh.items()},
            "skipped": bad[: max(0, MAX_SKIPPED - len(self.skipped))],
            "reasons": dict(reasons),
        }
        self._place.record(piece)
        if not self._pieces:
            self._check_room(len(records), parsed.nbytes)
        self._pieces += 1
        self.bytes_read += parsed.nbytes
        self._note(piece)

    def finish(self) -> None:
        """Record that all pieces are there. Raises SourceError if no row is, or the files have been changed."""
        self.check_unchanged()
        if not self.rows:
            names = ", ".join(self._source.names[:3])
            self._place.recorded = False  # there is nothing to go on with
            first = f"the first of {self.reasons.total():,} that were left out: " if self.skipped else ""
            why = self.skipped[0]["reason"] if self.skipped else "there is none"
            raise SourceError(
                f"{names}: none of its rows can be taken; {first}{why}. Check the columns' types."
            )
        self._place.record("staged")

    def check_unchanged(self) -> None:
        """Raise SourceError if a file is another one than when reading began: what has been read then is no table."""
        try:
            self._source.check_unchanged()
        except SourceError:
            self._place.recorded = False
            raise

    def _check_room(self, rows: int, nbytes: int) -> None:
        """Refuse early when the disk has less room than all rows take, if the others are like those of the first piece."""
        expected = rows * self._source.nbytes / max(1, nbytes)
        # Records, and at least half as much again for the pack.
        check_space(self._place.out, round(1.5 * self._size * (expected - rows)))

    def close(self) -> None:
        """Let go of the files."""
        os.close(self._records)
        os.close(self._blob)

    def _enter(self, name: str) -> None:
        """Count lines anew where another input begins."""
        if name != self._input:
            self._input, self._lines = name, self._source.first_line(name)

    def _note(self, piece: Mapping[str, Any]) -> None:
        """Count a piece that is down, new or taken over."""
        self._enter(piece["input"])
        self._lines += piece["lines"]
        self.bytes_done += piece["nbytes"]
        self._text_bytes += piece["texts"][0]
        self.rows += piece["rows"]
        self.skipped += piece["skipped"]
        self.reasons.update(piece["reasons"])
        for index, texts in piece["new"].items():
            codes = self._codes[int(index)]
            codes.update({text: len(codes) + i for i, text in enumerate(texts)})

    def _same(self, piece: Mapping[str, Any]) -> bool:
        """Tell whether a journalled piece's bytes are those that were written."""
        size = self._size
        data = pread_all(self._records, piece["rows"] * size, self.rows * size)
        texts = pread_all(self._blob, piece["texts"][0], self._text_bytes)
        sums = [block_checksum(np.frombuffer(part, np.uint8)) for part in (data, texts)]
        return sums == [piece["sum"], piece["texts"][1]] and len(data) == piece["rows"] * size

    def _merge(self, parsed: ParsedRows) -> dict[int, list[str]]:
        """Give the piece's categories their numbers in the whole table; returns those that are new, by column."""
        fresh: dict[int, list[str]] = {}
        for index, texts in parsed.dictionaries.items():
            codes, name = self._codes[index], self._source.columns[index].name
            fresh[index] = [text for text in texts if text not in codes]
            check_categories(name, len(codes) + len(fresh[index]), self._plan.max_categories)
            numbers = {text: len(codes) + i for i, text in enumerate(fresh[index])}
            take = np.array(
                [codes[t] if t in codes else numbers[t] for t in texts] + [-1], "<i4"
            )  # [-1]: missing
            member = parsed.records[f"c{index}"]
            member[...] = take[member]
        return fresh

    def _told(self, bad: BadRow) -> dict[str, str]:
        """Return a bad row as the header lists it."""
        where = f"{self._input}: {self._source.unit} {self._lines + bad.line:,}"
        if bad.column is None:
            return {"key": where, "reason": str(bad.reason)}
        return {
            "key": f"{where}, column {self._source.columns[bad.column].name!r}",
            "reason": f"{bad.value!r} {bad.reason}" if bad.value else str(bad.reason),
        }

    def _remedy(self, bad: BadRow) -> str:
        """Return what can be done about a bad row."""
        skip = f"{Option('on_error', 'skip')} to leave such rows out."
        way = _WAYS.get(bad.reason, "")
        if not way and bad.column is not None and bad.value and not self._plan.fit_name:
            name = self._source.columns[bad.column].name
            types = {CellFault.LEADING_ZEROS: "integer", CellFault.NOT_WHOLE: "number"}
            way = f"{as_category(name)}"
            if bad.reason in types:
                way += f" or {Option('types', {name: types[CellFault(bad.reason)]})}"
            elif bad.reason != CellFault.ROUNDED and bad.value.isprintable() and len(bad.value) <= _SHORT:
                way += f", {Option('Csv.na', (bad.value,))}"
        return f"Mend it, pass {way}, or {skip}" if way else f"Mend it, or pass {skip}"


_WAYS: Mapping[str, str] = {
    CellFault.NOT_UTF8: f"{Option('Csv.encoding')}, for example cp1252 or latin-1",
    CellFault.AFTER_QUOTE: f"{Option('Csv.quote', '')}",
    CellFault.UNCLOSED: f"{Option('Csv.quote', '')}",
    CellFault.BEYOND_SINGLE: f"{Option('dtype', 'float64')}",
}


class TableRows(RowMaker):
    """Rows from staged ones; samples are their numbers in the order of the input."""

    def __init__(self, staged: Staged, records: ShuffledFile, mapper: RowMapper) -> None:
        """records: of `staged`, prepared."""
        self._records, self._mapper = records, mapper
        self._dtype = staged.layout.dtype
        # A label that all files lack (with `like`) is no field; a kept column neither.
        made = mapper.map(np.zeros(0, self._dtype)).fields
        self.fields = tuple(f for f in mapper.transform.fields() if f.name in made)
        size = os.path.getsize(staged.texts)
        self._texts: bytes | mmap.mmap = b""
        if size:
            with open(staged.texts, "rb") as file:
                self._texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        ragged = sum(1 for f in self.fields if f.ragged)
        self.ragged_bytes = size // staged.rows + 8 * ragged

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return all fields of these rows. Raises UsageError if a number does not fit its field."""
        records = self._records.take(samples).view(self._dtype).reshape(-1)
        mapped = self._mapper.map(records, memoryview(self._texts))
        if mapped.beyond is not None:
            record, name = mapped.beyond
            raise UsageError(
                f"row {int(samples[record]) + 1:,} of the rows taken, column {name!r}: its value, "
                f"mapped, is beyond {np.dtype(self._mapper.transform.dtype).name}. Mend it, pass "
                f"{Option('dtype', 'float64')}, or {Option('drop', name)}."
            )
        return mapped.fields
