"""First half of a table's conversion: stage its raw rows, in the input's order, in files beside the output.

The number of rows, the values that fill missing cells, and the categories of a column are known only after
all rows have been read. So they are read once, in parallel, into records (packed structures, see
``packer/tables/transform/records.py``) and the bytes of kept texts (``packer/convert/staged_rows.py``); all
later steps use these, at the speed of memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.conversion_run import Conversion
from packer.convert.row_maker import RowMaker
from packer.convert.row_sequence import RowSequence
from packer.convert.staged_rows import ShuffledFile, StagedRows
from packer.errors import SourceError, UsageError
from packer.format.part_files import Rows
from packer.format.table_record import MAX_SKIPPED
from packer.packs.file_rows import SEQUENCE_ROW, SOURCE_ROW
from packer.packs.output_names import check_space
from packer.tables.reading.table_source import TableChunk, TableSource
from packer.tables.transform.column_sums import check_categories
from packer.tables.transform.records import BadRow, CellFault, ParsedRows, RecordLayout
from packer.tables.transform.row_mapper import RowMapper
from packer.tables.transform.table_transform import TableTransform
from packer.writing.working_folder import WorkingFolder

_AHEAD = 2  # pieces of the input read ahead per worker


def stage(source: TableSource, plan: TableTransform, place: WorkingFolder, run: Conversion) -> StagedTable:
    """Read a table, or the rest of it, into the working folder.

    run: options, and the progress bar for input bytes.
    Raises SourceError (a bad row, a damaged or changed file), UsageError (too many categories), SpaceError,
    PackerError.
    """
    run.bar.start(source.nbytes, "B")
    staged = StagedTable(source, plan, place, run)
    try:
        after, done = staged.resume()
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
    finally:
        staged.close()
    return staged


_Read = tuple[TableChunk, ParsedRows, "Counter[str]"]
"""A piece of the input, its rows, and the number of rows left out per reason."""


def _read(chunk: TableChunk, plan: TableTransform) -> _Read:
    """Parse a piece, and leave out the rows that cannot be stored in the pack."""
    parsed = chunk.read()
    reasons = Counter(_reason(b, plan) for b in (*parsed.bad, *plan.accept(parsed)))
    if parsed.bad_rows > reasons.total():
        reasons["not listed, because there are too many"] = parsed.bad_rows - reasons.total()
    return chunk, parsed, reasons


def _reason(bad: BadRow, plan: TableTransform) -> str:
    return str(bad.reason) if bad.column is None else f"column {plan.columns[bad.column].name!r} {bad.reason}"


def _pieces(
    source: TableSource, plan: TableTransform, after: list[Any] | None, workers: int
) -> Iterator[_Read]:
    """Yield the parsed pieces in order; meanwhile this thread reads (and decompresses) the next ones."""
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


class StagedTable(StagedRows):
    """The rows of a table, written in order as they are read, with a journal for resuming.

    layout: layout of the records; dictionaries: column number -> texts of its codes; skipped: at most
    MAX_SKIPPED of the rows left out; reasons: reason -> number of rows left out; rows_of_files: name of each
    input -> its rows, those left out included; bytes_read: input bytes read in this run; resumed: rows taken
    over from an earlier run.
    """

    bytes_read: int
    bytes_done: int

    def __init__(
        self, source: TableSource, plan: TableTransform, place: WorkingFolder, run: Conversion
    ) -> None:
        super().__init__(place, plan.layout.dtype, run.out)
        self._source, self._plan, self._skip = source, plan, run.running.skip
        self.layout: RecordLayout = plan.layout
        self.resumed = self.bytes_read = self.bytes_done = 0
        self.skipped: list[dict[str, str]] = []
        self.reasons: Counter[str] = Counter()
        self.rows_of_files = dict.fromkeys(source.names, 0)
        self._gaps: list[NDArray[np.int64]] = []
        self._all_rows = self._lines = 0
        self._input = ""
        self._codes: dict[int, dict[str, int]] = {
            w.index: dict(plan.known.get(w.index, {}))
            for w in plan.layout.members
            if w.column.type == "category"
        }

    @property
    def dictionaries(self) -> dict[int, list[str]]:
        """Column number -> texts of its codes."""
        return {index: list(codes) for index, codes in self._codes.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the header's record of the rows left out."""
        return {"rows": self.reasons.total(), "reasons": dict(self.reasons), "first": self.skipped}

    @property
    def gaps(self) -> NDArray[np.int64]:
        """Number of staged rows before each row that was left out, ascending."""
        left = np.concatenate([np.empty(0, np.int64), *self._gaps])
        return left - np.arange(len(left))

    def resume(self) -> tuple[list[Any] | None, bool]:
        """Take over the rows that an interrupted run has read.

        Pieces from the first bad row on are read again, unless bad rows are skipped.
        Returns: where the next piece begins, None for the beginning; True if all pieces have been read.
        """
        pieces, done = self.take_over(lambda piece: self._skip or not piece["reasons"])
        for piece in pieces:
            self._note(piece)
        self.resumed = self.rows
        return pieces[-1]["after"] if pieces else None, done

    def add(self, chunk: TableChunk, parsed: ParsedRows, reasons: Counter[str]) -> None:
        """Write and journal a piece. Raises SourceError for a bad row, UsageError for too many categories."""
        self._enter(chunk.name)
        bad = [self._record_of(b) for b in parsed.bad]
        for b, record in zip(parsed.bad, bad, strict=True):
            quoted = b.reason in (CellFault.AFTER_QUOTE, CellFault.UNCLOSED)
            if not self._skip or (quoted and "\n" in b.value):  # it holds several rows
                raise SourceError(f"{record['key']}: {record['reason']}. {self._remedy(b, parsed, chunk)}")
        fresh, first = self._merge(parsed), not self.rows
        note = {
            "after": chunk.after,
            "input": chunk.name,
            "lines": parsed.lines,
            "nbytes": parsed.nbytes,
            "all_rows": len(parsed.records) + parsed.bad_rows,
            "gaps": parsed.gaps.tolist(),
            "new": {str(index): texts for index, texts in fresh.items()},
            "skipped": bad[: max(0, MAX_SKIPPED - len(self.skipped))],
            "reasons": dict(reasons),
        }
        self.append(parsed.records, parsed.texts, note)
        self._note(note)
        self.bytes_read += parsed.nbytes
        if first:
            # Estimate from the first piece: records, and at least half their size again for the pack.
            expected = self.rows * self._source.nbytes / max(1, parsed.nbytes)
            check_space(self.name, round(1.5 * self.dtype.itemsize * (expected - self.rows)))

    def finish(self) -> None:
        """Record that all pieces were read. Raises SourceError if no row remains, or files have changed."""
        self.check_unchanged()
        if not self.rows:
            names = ", ".join(self._source.names[:3])
            self._place.recorded = False  # nothing to resume
            first = f"the first of {self.reasons.total():,} that were left out: " if self.skipped else ""
            why = self.skipped[0]["reason"] if self.skipped else "there is none"
            raise SourceError(
                f"{names}: none of its rows can be stored; {first}{why}. Check the columns' types."
            )
        super().finish()

    def check_unchanged(self) -> None:
        """Raise SourceError if a file changed after reading began, and discard the rows read so far."""
        try:
            self._source.check_unchanged()
        except SourceError:
            self._place.recorded = False
            raise

    def _enter(self, name: str) -> None:
        """Start the line count of the next input."""
        if name != self._input:
            self._input, self._lines = name, self._source.first_line(name)

    def _note(self, piece: Mapping[str, Any]) -> None:
        """Count a piece that was written in this run or taken over."""
        self._enter(piece["input"])
        self._lines += piece["lines"]
        self._gaps.append(np.array(piece["gaps"], np.int64) + self._all_rows)
        self.rows_of_files[piece["input"]] += piece["all_rows"]
        self._all_rows += piece["all_rows"]
        self.bytes_done += piece["nbytes"]
        self.skipped += piece["skipped"]
        self.reasons.update(piece["reasons"])
        for index, texts in piece["new"].items():
            self._add_categories(int(index), texts)

    def _add_categories(self, index: int, texts: Iterable[str]) -> list[str]:
        """Give the new ones of some categories of a column their codes, and return them."""
        codes = self._codes[index]
        fresh = list(dict.fromkeys(text for text in texts if text not in codes))
        codes.update(zip(fresh, count(len(codes)), strict=False))
        check_categories(self._source.columns[index].name, len(codes), self._plan.max_categories)
        return fresh

    def _merge(self, parsed: ParsedRows) -> dict[int, list[str]]:
        """Replace the piece's category codes by those of the table; return the new categories by column."""
        fresh: dict[int, list[str]] = {}
        for index, texts in parsed.dictionaries.items():
            fresh[index] = self._add_categories(index, texts)
            member, codes = parsed.records[f"c{index}"], self._codes[index]
            take = np.array([codes[text] for text in texts] + [-1], "<i4")  # [-1]: missing
            member[...] = take[member]
        return fresh

    def _record_of(self, bad: BadRow) -> dict[str, str]:
        """Return the header's record of a bad row."""
        where = f"{self._input}: {self._source.unit} {self._lines + bad.line:,}"
        if bad.column is None:
            return {"key": where, "reason": str(bad.reason)}
        return {
            "key": f"{where}, column {self._source.columns[bad.column].name!r}",
            "reason": f"{bad.value!r} {bad.reason}" if bad.value else str(bad.reason),
        }

    def _remedy(self, bad: BadRow, parsed: ParsedRows, chunk: TableChunk) -> str:
        """Return the remedy for a bad row of a piece."""
        # A given mapping has its dtype and classes.
        faults = [CellFault.NOT_UTF8] if self._plan.fit_name else list(_WAYS)
        ways = [_WAYS[fault] for fault in faults if bad.reason == fault]
        if not ways and (bad.column is None or bad.value):
            ways = self._source.ways(bad, bytes(chunk.text))
        quoted = bad.reason in (CellFault.AFTER_QUOTE, CellFault.UNCLOSED) and ways
        if "\n" not in bad.value and not quoted and len(parsed.records):  # it may hold several rows
            ways.append("on_error='skip' to leave such rows out")
        return f"Correct it, or pass {', or '.join(ways)}." if ways else "Correct it."


_WAYS: Mapping[CellFault, str] = {
    CellFault.NOT_UTF8: "csv=Csv(encoding=), for example cp1252 or latin-1",
    CellFault.BEYOND_SINGLE: "dtype='float64'",
    CellFault.NO_CLASS: "classes= with all names",
}


class TableRows(RowMaker):
    """Mapped rows from staged ones; samples are row numbers in the input's order."""

    ragged_bytes: int

    def __init__(
        self,
        staged: StagedTable,
        records: ShuffledFile,
        mapper: RowMapper,
        *,
        number: int | None,
        sequence: RowSequence | None,
    ) -> None:
        """records: the records of `staged` in the pack's order; number: SOURCE_ROW of the first row, None for
        none; sequence: values of the field SEQUENCE_ROW.
        """
        self._records, self._mapper, self._texts = records, mapper, staged.mapped_blob()
        self._dtype = staged.dtype
        # Columns that all files lack (label with `like`, kept columns) get no field.
        present = mapper.map(np.zeros(0, self._dtype)).fields
        self.fields = tuple(f for f in mapper.transform.fields() if f.name in present)
        self._gaps, self._number = staged.gaps, number
        self.fields += () if number is None else (SOURCE_ROW,)
        self.fields += (SEQUENCE_ROW,) if sequence is not None else ()
        self._places = None if sequence is None else sequence.places
        self.ragged_bytes = staged.blob_bytes // staged.rows + 8 * sum(1 for f in self.fields if f.ragged)

    def columns(self, samples: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return all fields of some rows. Raises UsageError if a number does not fit its field."""
        records = self._records.take(samples).view(self._dtype).reshape(-1)
        mapped = self._mapper.map(records, self._texts)
        if mapped.beyond is not None:
            record, name = mapped.beyond
            raise UsageError(
                f"row {int(samples[record]) + 1:,} of the accepted rows, column {name!r}: its value, "
                f"mapped, is beyond {np.dtype(self._mapper.transform.dtype).name}. Correct it, pass "
                f"dtype='float64', or drop={name!r}."
            )
        columns = dict(mapped.fields)
        if self._number is not None:
            numbers = self._number + samples + np.searchsorted(self._gaps, samples, "right")
            columns[SOURCE_ROW.name] = numbers.astype(SOURCE_ROW.dtype)
        if self._places is not None:
            columns[SEQUENCE_ROW.name] = self._places[samples]
        return columns
