"""Remedies, tried before they are proposed: the beginning of a file, read again under other options.

An error that proposes reading options names its candidates. Each candidate reads the sample again, all of its
columns, and is proposed only if it explains every row.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import isnan
from typing import NamedTuple

from packer.errors import SourceError, UsageError
from packer.given_values import option_text
from packer.tables.reading.dialect import (
    DELIMITERS,
    NUMBER,
    Candidate,
    Undecided,
    delimiter_of,
    endless,
    first_line_at,
    first_records,
)
from packer.tables.reading.record_parser import Record, is_unclosed
from packer.tables.reading.table_header import TableHeader, header_of
from packer.tables.reading.table_source import ReadOptions, TextDialect
from packer.tables.reading.text_stream import without_escapes
from packer.tables.reading.type_inference import (
    MOSTLY,
    SAMPLE_ROWS,
    TRIED,
    fits,
    infer,
    kinds_that_fit,
    may_mean_missing,
    numbers_of,
    valid_of,
)
from packer.tables.transform.column_types import TableColumn, as_category, listed, shortest, unique
from packer.tables.transform.records import BadRow, CellFault

_MOMENTS = tuple(kind for kind in TRIED if TableColumn.given("", kind).type in ("date", "time", "timestamp"))
_NUMBERS = ("number", "integer")
_DEFAULT = ReadOptions()
_SHOWN_ROWS, _SHOWN_COLUMNS, _SHOWN_CELL = 3, 4, 24
_NUMBER = re.compile(rb"[+-]?(?:\d[\d., '_]*|[.,]\d+)(?:[eE][+-]?\d+)?")
_BETWEEN = re.compile(rb"[\s;|]+|::+|\^+|~+|&+")
_EXAMINED = 1000
_GROUPED = re.compile(rb"[+-]?\d{1,3}(,\d{3})+")
_MARKED = re.compile(rb"[., '_]")
_WITHIN = {"header", "decimal", "thousands"}
"""Options that leave the cells of each row as they are."""
_NOTATIONS = ((",", "."), ("'", "."), ("_", "."), (" ", "."), ("", ","), (".", ","), (" ", ","), ("'", ","))
"""Common thousands separators and decimal points; "" for none."""


@dataclass(frozen=True)
class Sample:
    """The beginning of a file.

    name: for messages; text: from the file's first byte; ended: True if that is all; later: complete records
    from another place of the file.
    """

    name: str
    text: bytes
    ended: bool
    later: bytes = b""


class Beginning(NamedTuple):
    """The header and the first rows of a file.

    records: the first rows; begin, line: where the rows begin, offset in the text and number from 1;
    has_rows: True if there are rows.
    """

    header: TableHeader
    records: list[Record]
    begin: int
    line: int
    has_rows: bool

    @property
    def complete(self) -> list[Record]:
        """The first rows that have a cell for each column."""
        width = self.header.dialect.width + self.header.dialect.surplus
        return [row for row in self.records if not row.fault and len(row.cells) == width]


class Trial(NamedTuple):
    """A sample as options read it.

    header: of the file; columns: with inferred types; records: its complete first rows; reading: these
    options; notes: on columns' types, by name.
    """

    header: TableHeader
    columns: tuple[TableColumn, ...]
    records: list[Record]
    reading: ReadOptions
    notes: dict[str, list[str]]

    def cells(self, number: int) -> dict[bytes, list[int]]:
        """Return the texts of a column, stripped, -> their lines from 0; missing ones are left out."""
        lines: dict[bytes, list[int]] = {}
        for row in self.records:
            lines.setdefault(row.cells[number].strip(b" \t"), []).append(row.line)
        return {text: at for text, at in lines.items() if text not in self.header.dialect.na}

    def noted(self) -> Iterator[tuple[TableColumn, dict[bytes, list[int]]]]:
        """Yield the columns whose inferred type is noted as doubtful, with their cells."""
        for number, column in enumerate(self.columns):
            if column.name in self.notes:
                yield column, self.cells(number)


def beginning_of(sample: Sample, reading: ReadOptions, dialect: TextDialect | None = None) -> Beginning:
    """Read a file's beginning. dialect: None to detect it. Raises Undecided, SourceError, UsageError."""
    begin = first_line_at(sample.name, sample.text, reading.skip_rows)
    rest = sample.text[begin:]
    if dialect is None:
        mark = delimiter_of(sample.name, rest, sample.ended, reading)
        dialect = replace(reading.dialect(), delimiter=mark)
    records = first_records(rest, sample.ended, dialect, SAMPLE_ROWS + 1)
    if not records and not rest.strip():
        raise SourceError(f"{sample.name}: holds no row; at least one is needed. Check it.")
    if spaced := _quoted_after_spaces(rest, records, dialect):
        line = reading.skip_rows + spaced.line + 1
        raise Undecided(f"line {line:,}: a cell stands in quotes after spaces, which are part of it", ())
    if not records or is_unclosed(rest[: records[0].end], dialect):
        raise endless(begin, dialect.delimiter)
    header = header_of(sample.name, [record.cells for record in records], dialect, reading)
    line = 1 + reading.skip_rows
    if header.lines:
        begin += min(records[header.lines - 1].end, len(rest))
        line += records[header.lines - 1].next_line
    rows = records[header.lines :][:SAMPLE_ROWS]
    return Beginning(header, rows, begin, line, bool(rows) or not sample.ended)


def _quoted_after_spaces(text: bytes, records: Sequence[Record], dialect: TextDialect) -> Record | None:
    """Return the first record with a cell such as ` "a b"`, or ` "a` if the records have several lengths."""
    begin = b" +" + re.escape(dialect.quote)
    if not dialect.quote or not re.search(re.escape(dialect.delimiter) + begin, text):
        return None
    even = len({len(row.cells) for row in records}) == 1
    pattern = re.compile(b"(?s)" + begin + b".*" + (re.escape(dialect.quote) + b" *" if even else b""))
    return next((row for row in records if any(map(pattern.fullmatch, row.cells))), None)


def trial_of(name: str, begin: Beginning, reading: ReadOptions) -> Trial:
    """Return the beginning of a file with the types of its columns. name: of the file."""
    header, rows = begin.header, begin.complete
    cells = [row.cells for row in rows]
    columns, notes = infer(name, unique(header.names), cells, header.dialect, reading.types)
    return Trial(header, columns, rows, reading, notes)


def tried(sample: Sample, reading: ReadOptions, *, strict: bool = True) -> Trial | None:
    """Return the sample as options read it, None unless all its rows have a cell for each name.

    strict: False if nearly all suffice; the others are left out.
    """
    try:
        begin = beginning_of(sample, reading)
        begin.records.extend(first_records(sample.later, True, begin.header.dialect, SAMPLE_ROWS))
        rows = begin.complete
        if not rows or len(rows) < (1 if strict else MOSTLY) * len(begin.records):
            return None
        if not reading.quote and any(
            cell[:1] == b'"' == cell[-1:] and len(cell) > 1 for row in rows for cell in row.cells
        ):
            return None
        trial = trial_of(sample.name, begin, reading)
    except (Undecided, SourceError, UsageError):
        return None
    return trial if _is_table(trial) else None


def _is_table(trial: Trial) -> bool:
    """Return False if a delimiter stands repeated between cells, or if a single column holds several."""
    names, lines, first = trial.header.names, trial.header.lines, trial.records[:_EXAMINED]
    if trial.header.dialect.delimiter not in DELIMITERS and any(
        not (lines and name) and not any(row.cells[n].strip() for row in first)
        for n, name in enumerate(names)
    ):
        return False
    if len(names) > 1 or trial.columns[0].type != "category":
        return True
    parts = any(mark in names[0] and f"{mark} " not in names[0] for mark in ",;|\t")
    return not parts and 2 * sum(_holds_several(row.cells[0]) for row in first) < len(first)


def _holds_several(cell: bytes) -> bool:
    """Return True for a text most of whose words are numbers."""
    words = [word for word in _BETWEEN.split(cell.strip()) if word]
    return len(words) > 1 and 2 * sum(bool(NUMBER.fullmatch(word)) for word in words) >= len(words)


def remedies(
    sample: Sample, reading: ReadOptions, candidates: Iterable[Candidate]
) -> list[tuple[Candidate, Trial]]:
    """Return the candidates that explain every row of the sample, and what they read.

    Their numbers are numbers in all columns: none is left in another notation.
    """
    found: list[tuple[Candidate, Trial]] = []
    for changes, when in candidates:
        if any(other.items() <= changes.items() for (other, _), _ in found):
            continue
        if reading.alike and changes.get("header") is False:
            continue
        try:
            other = replace(reading, **changes)
            text = _unescaped(sample, other) if "escape" in changes else sample
            trial = tried(text, other, strict=not changes.keys() <= _WITHIN)
        except (UsageError, UnicodeDecodeError, csv.Error):
            continue  # as if two marks would be the same
        if trial is None:
            continue
        if not (odd := other_numbers(trial)):
            found.append(((changes, when), trial))
        elif not {"thousands", "decimal"} & changes.keys():
            for (marks, _), read in _notations(sample, trial, odd):
                given = {name: mark for name, mark in marks.items() if mark != getattr(_DEFAULT, name)}
                found.append((({**changes, **given}, when), read))
    return found


def _unescaped(sample: Sample, reading: ReadOptions) -> Sample:
    """Return a sample without escape characters. Raises UnicodeDecodeError, csv.Error."""
    marks = reading.escape or "", reading.delimiter or "", reading.quote
    text, later = (
        without_escapes(text[: text.rfind(b"\n") + 1], *marks) for text in (sample.text, sample.later)
    )
    return replace(sample, text=text, later=later)


def refusal(sample: Sample, reading: ReadOptions, undecided: Undecided) -> SourceError:
    """Return the error for a file that its options do not explain, with the remedies that do."""
    found = remedies(sample, reading, undecided.candidates)
    typed = [remedy for remedy in found if any(c.type != "category" for c in remedy[1].columns)]
    single = [remedy for remedy in found if len(remedy[1].columns) == 1]
    alone = [remedy for remedy in found if remedy in single or "delimiter" not in remedy[0][0]]
    found = typed or (alone if single else found)  # texts alone explain less, and spaces stand in texts
    ways = [way(*remedy, several=len(found) > 1) for remedy in found]
    ways += [undecided.otherwise] if undecided.otherwise and not reading.alike else []
    ways = ways or _rewritings(sample, reading, {c.get("delimiter") for c, _ in undecided.candidates})
    ends = f"Pass {', or '.join(ways)}" if ways else "No option that was tried explains all rows; correct it"
    return SourceError(f"{sample.name}: {undecided.problem}. {ends}.")


def _rewritings(sample: Sample, reading: ReadOptions, marks: Collection[str | None]) -> list[str]:
    """Return the first command after which the options explain every row, for messages, [] for none.

    marks: those that may separate cells.
    """
    whole = sample.text[: None if sample.ended else sample.text.rfind(b"\n") + 1]
    for command, text in _rewritten(whole, marks):
        for header in dict.fromkeys((reading.header, reading.header and bool(reading.alike))):
            trial = tried(replace(sample, text=text), replace(reading, header=header))
            if trial is not None and len(trial.columns) > 1:
                also = " and with csv=Csv(header=False)" if header != reading.header else ""
                return [f"the file rewritten{also}, for example with: {command}"]
    return []


def _rewritten(text: bytes, marks: Collection[str | None]) -> Iterator[tuple[str, bytes]]:
    """Yield commands, and the text that they write."""
    if " " in marks:
        plain = re.sub(rb"^ +| +$", b"", text, flags=re.MULTILINE)
        yield r"perl -pe 's/^ +| +$//g; s/ +/\t/g'", re.sub(rb" +", b"\t", plain)
    if ":" in marks:
        yield r"perl -pe 's/::/\t/g'", text.replace(b"::", b"\t")
    for mark in ",;|\t":
        if re.search(re.escape(mark.encode()) + b' +"', text):
            options = f"skipinitialspace=True{'' if mark == ',' else f', delimiter={mark!r}'}"
            out = io.StringIO()
            rows = csv.reader(
                io.StringIO(text.decode(errors="replace"), ""), delimiter=mark, skipinitialspace=True
            )
            csv.writer(out).writerows(rows)
            code = f"import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, {options}))"
            yield f'python -c "{code}"', out.getvalue().encode()


def way(candidate: Candidate, trial: Trial, *, several: bool = False, shown: Collection[bytes] = ()) -> str:
    """Return the words for a remedy, with what it makes of three rows if there are several.

    shown: cells whose rows are shown before others.
    """
    changes, when = candidate
    options = " ".join(
        option_text(name if name == "types" else f"Csv.{name}", value)
        for name, value in changes.items()
        if name == "types" or value != getattr(_DEFAULT, name)
    )
    values = f", which reads {values_of(trial, shown)}" if several else ""
    return f"{options}{' ' if when else ''}{when}{values}"


def values_of(trial: Trial, cells: Collection[bytes] = ()) -> str:
    """Return values of three rows of a trial, for messages: rows and columns with the given cells first."""
    some = (row for row in trial.records if any(cell.strip() in cells for cell in row.cells))
    rows = list(islice(some, _SHOWN_ROWS)) or trial.records[:_SHOWN_ROWS]
    numbers = sorted(
        range(len(trial.columns)), key=lambda n: all(r.cells[n].strip() not in cells for r in rows)
    )
    chosen = sorted(numbers[:_SHOWN_COLUMNS])
    more = ", ..." if len(numbers) > len(chosen) else ""
    return listed([f"({', '.join(_shown(trial, row.cells[n], n) for n in chosen)}{more})" for row in rows])


def _shown(trial: Trial, cell: bytes, number: int) -> str:
    """Return the value of a column's cell for messages."""
    (value,) = numbers_of([cell], trial.header.dialect)
    is_number = trial.columns[number].type in _NUMBERS and not isnan(value)
    return shortest(value) if is_number else repr(cell.decode(errors="replace")[:_SHOWN_CELL])


def other_numbers(trial: Trial) -> dict[str, dict[bytes, list[int]]]:
    """Return the columns with numbers in another notation: their numbers -> lines, one in it first.

    Dates, addresses and versions (1.2.3) are no numbers: no notation reads them.
    """
    dialect, found = trial.header.dialect, {}
    for column, lines in trial.noted():
        odd = {cell: at for cell, at in lines.items() if _NUMBER.fullmatch(cell)}
        if sum(map(len, odd.values())) < MOSTLY * sum(map(len, lines.values())):
            continue
        valid = valid_of([*odd], "number", dialect)
        wrong = {cell: at for cell, at in odd.items() if cell not in valid and _MARKED.search(cell)}
        given = bool(dialect.thousands) and any(dialect.thousands in cell for cell in valid)
        if wrong and (given or any(_reads(odd, marks) for marks in _NOTATIONS)):
            found[column.name] = wrong | odd
    return found


def _reads(cells: Collection[bytes], marks: tuple[str, str]) -> bool:
    dialect = ReadOptions(thousands=marks[0], decimal=marks[1], delimiter="\x1f").dialect()
    return fits([*cells], "number", dialect)


def check_notation(sample: Sample, trial: Trial) -> None:
    """Raise SourceError for numbers in another notation, with the notations that read all columns.

    trial: the sample as its options read it.
    """
    odd, dialect = other_numbers(trial), trial.header.dialect
    if not odd:
        return
    firsts = [(name, *next(iter(cells.items()))) for name, cells in odd.items()]
    seen = " and ".join(
        f"line {trial.reading.skip_rows + lines[0] + 1:,}, column {name!r} holds {cell.decode()[:40]!r}"
        for name, cell, lines in firsts[:2]
    )
    marks = f"the decimal point {dialect.decimal.decode()!r}"
    marks += f" and {dialect.thousands.decode()!r} between groups of three digits" * bool(dialect.thousands)
    found = _notations(sample, trial, odd)
    marked = [cell for cells in odd.values() for cell in cells if _MARKED.search(cell)]
    ways = [way(*remedy, several=len(found) > 1, shown=marked) for remedy in found]
    ways = ways or ["a file in one notation, as none reads all columns"]
    points = any(
        column.type == "number" and column.name not in odd and any(b"." in cell for cell in trial.cells(n))
        for n, column in enumerate(trial.columns)
    )
    if not (points and any(read.reading.thousands == "." for _, read in found)):
        ways.append(f"types={dict.fromkeys(list(odd)[:4], 'category')!r} if they are not numbers")
    raise SourceError(
        f"{sample.name}: {seen}, numbers in another notation than {marks}. Pass {', or '.join(ways)}."
    )


def check_forms(sample: Sample, trial: Trial) -> None:
    """Raise SourceError for a column of dates or times in several forms, with a line of each.

    trial: the sample as its options read it.
    """
    for column, lines in trial.noted():
        if column.type != "category":
            continue
        forms = [valid_of([*lines], kind, trial.header.dialect) for kind in _MOMENTS]
        valid, most = set().union(*forms), max(forms, key=len)
        if valid == most or len(valid) < MOSTLY * len(lines):
            continue
        seen = sorted(min((lines[cell][0], cell.decode()) for cell in some) for some in (most, valid - most))
        first, second = (f"line {trial.reading.skip_rows + at + 1:,} {cell!r}" for at, cell in seen)
        raise SourceError(
            f"{sample.name}: column {column.name!r} holds dates or times in several forms, in {first} and in"
            f" {second}; all cells of a column need one. Correct it, or pass {as_category(column.name)} for"
            " texts."
        )


def _notations(
    sample: Sample, trial: Trial, odd: Mapping[str, Collection[bytes]]
) -> list[tuple[Candidate, Trial]]:
    """Return the notations under which the given cells are numbers, and no other column loses its type.

    odd: column -> cells, of which the first shows what a notation makes of it.
    """
    cells = {cell.strip() for row in trial.records for cell in row.cells}
    numbers = [cell for cell in chain(cells, *odd.values()) if _NUMBER.fullmatch(cell)]
    candidates: list[Candidate] = [
        ({"thousands": marks[0], "decimal": marks[1]}, "")
        for marks in _NOTATIONS
        if all(_reads(cells, marks) for cells in odd.values()) and _occur(marks, numbers)
        if marks != ("", ",") or all(map(_is_decimal, odd.values()))
    ]
    was_number = {c.name for c in trial.columns if c.type in _NUMBERS} | odd.keys()
    kept = {(column.name, column.type) for column in trial.columns}
    first = next(iter(next(iter(odd.values()))))
    return [
        ((changes, f"for {shortest(*numbers_of([first], read.header.dialect))}"), read)
        for (changes, _), read in remedies(sample, trial.reading, candidates)
        if all(
            (c.name, c.type) in kept or (c.type in _NUMBERS and c.name in was_number) for c in read.columns
        )
    ]


def _is_decimal(cells: Collection[bytes]) -> bool:
    """Return False for numbers such as 1,250 beside 980: decimals would be 980,000, or 1,25."""
    marked = [cell for cell in cells if b"," in cell]
    whole = any(b"," not in cell and cell != b"0" for cell in cells)
    return not (whole and all(map(_GROUPED.fullmatch, marked)) and any(c.endswith(b"0") for c in marked))


def _occur(marks: tuple[str, str], numbers: Sequence[bytes]) -> bool:
    """Return True if numbers contain the thousands separator and the decimal point.

    Only 1.234.567 shows that a comma is the decimal point where it does not occur.
    """
    thousands = marks[0]
    needed = [thousands] if thousands == "." else [mark for mark in marks if mark not in ("", ".")]
    return all(any(m.encode() in cell and _reads([cell], marks) for cell in numbers) for m in needed)


def wrong_cell(
    sample: Sample, reading: ReadOptions, column: TableColumn, bad: BadRow
) -> list[tuple[Candidate, Trial]]:
    """Return the changes under which a cell does not contradict the column's type any more."""
    plain, value = tried(sample, reading, strict=False), bad.value.strip(" \t").encode()
    names = [c.name for c in plain.columns] if plain else []
    if plain is None or column.name not in names or bad.value.strip() == column.name:
        return []  # the name: a header among the rows
    if bad.reason in (CellFault.LEADING_ZEROS, CellFault.ROUNDED):
        lossy = ["integer"] if bad.reason == CellFault.LEADING_ZEROS else []
        return [(({"types": {column.name: kind}}, ""), plain) for kind in ("category", *lossy)]
    number, dialect = names.index(column.name), plain.header.dialect
    cells = [value, *plain.cells(number)]
    is_number = _NUMBER.fullmatch(value) is not None and column.type in _NUMBERS
    others = {column.notation or column.type, "currency" if is_number else ""}
    found: list[tuple[Candidate, Trial]] = [
        (({"types": {column.name: kind}}, "for texts" if kind == "category" else ""), plain)
        for kind in (*kinds_that_fit(cells, dialect), "category")
        if kind not in others
    ]
    if is_number:
        return [*_notations(sample, plain, {column.name: cells}), *found]
    texts = [plain.cells(n) for n, c in enumerate(plain.columns) if n != number and c.type == "category"]
    among = [some for some in texts if value in some]  # it may be a value
    if may_mean_missing(value) and all(
        2 * len(valid_of([*some], "number", dialect)) > len(some) for some in among
    ):
        na = (*reading.na, bad.value)
        found.insert(-1, (({"na": na}, f"if {bad.value!r} means missing"), plain))
    return found
