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
from packer.tables.reading.record_parser import Record, is_unclosed, one_column, read_texts
from packer.tables.reading.table_header import TableHeader, header_of
from packer.tables.reading.table_source import ReadOptions, TextDialect
from packer.tables.reading.text_stream import without_escapes
from packer.tables.reading.type_inference import MOSTLY, SAMPLE_ROWS, TRIED, fits, infer, valid_of
from packer.tables.transform.column_types import TableColumn, as_category, listed, shortest, unique
from packer.tables.transform.records import BadRow, CellFault, RecordLayout, RecordMember

_SHORT = 40  # most characters of a text that may mean "missing"
_MOMENTS = tuple(kind for kind in TRIED if TableColumn.given("", kind).type in ("date", "time", "timestamp"))
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


class Trial(NamedTuple):
    """A sample as options read it.

    header: of the file; columns: with inferred types; records: the first rows; reading: these options; notes:
    on columns' types, by name.
    """

    header: TableHeader
    columns: tuple[TableColumn, ...]
    records: list[Record]
    reading: ReadOptions
    notes: dict[str, list[str]]


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
    header, cells = begin.header, [row.cells for row in begin.records]
    columns, notes = infer(name, unique(header.names), cells, header.dialect, reading.types)
    return Trial(header, columns, begin.records, reading, notes)


def tried(sample: Sample, reading: ReadOptions, *, strict: bool = True) -> Trial | None:
    """Return the sample as options read it, None unless all its rows have a cell for each name.

    strict: False if nearly all suffice; the others are left out.
    """
    try:
        begin = beginning_of(sample, reading)
        dialect, rows = begin.header.dialect, begin.records
        rows += first_records(sample.later, True, dialect, SAMPLE_ROWS) if sample.later else []
        width = dialect.width + dialect.surplus
        whole = [row for row in rows if not row.fault and len(row.cells) == width]
        if not whole or len(whole) < (1 if strict else MOSTLY) * len(rows):
            return None
        if not reading.quote and any(
            cell[:1] == b'"' == cell[-1:] and len(cell) > 1 for row in whole for cell in row.cells
        ):
            return None
        trial = trial_of(sample.name, begin._replace(records=whole), reading)
    except (Undecided, SourceError, UsageError):
        return None
    return trial if _is_table(trial) else None


def _is_table(trial: Trial) -> bool:
    """Return False if a delimiter stands repeated between cells, or if a single column holds several."""
    header, first = trial.header, trial.records[:_EXAMINED]
    names = header.names
    if not header.lines and header.dialect.delimiter not in DELIMITERS:
        names = [""] * len(names)
    blank = (not name and not any(row.cells[n].strip() for row in first) for n, name in enumerate(names))
    if header.dialect.delimiter not in DELIMITERS and any(blank):
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
            marked = _notations(sample, trial, {name: one.cells for name, one in odd.items()})
            for (marks, _), read in marked:
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
        f"{option_text('types', value) if name == 'types' else option_text(f'Csv.{name}', value)}"
        for name, value in changes.items()
        if name == "types" or value != getattr(_DEFAULT, name)
    )
    values = f", which reads {values_of(trial, shown)}" if several else ""
    return f"{options}{' ' if when else ''}{when}{values}"


def values_of(trial: Trial, cells: Collection[bytes] = ()) -> str:
    """Return values of three rows of a trial, for messages: rows and columns with the given cells first."""
    some = (row for row in trial.records if any(cell.strip() in cells for cell in row.cells))
    lines, rows = [], list(islice(some, _SHOWN_ROWS)) or trial.records[:_SHOWN_ROWS]
    alone = one_column(trial.header.dialect)
    numbers = sorted(
        range(len(trial.columns)), key=lambda n: all(r.cells[n].strip() not in cells for r in rows)
    )
    for row in rows:
        values = []
        for number in sorted(numbers[:_SHOWN_COLUMNS]):
            text, column = row.cells[number], trial.columns[number]
            shown = repr(text.decode(errors="replace")[:_SHOWN_CELL])
            if column.type in ("number", "integer"):
                layout = RecordLayout((RecordMember(0, TableColumn("", "number")),))
                read, bad = read_texts([text], layout, alone)
                shown = shown if bad or read[0] != read[0] else shortest(read[0].item())
            values.append(shown)
        lines.append("(" + ", ".join(values) + (", ..." if len(trial.columns) > len(values) else "") + ")")
    return listed(lines)


class Odd(NamedTuple):
    """A number in another notation: its line from 0, and all cells of its column that look like numbers."""

    line: int
    text: str
    cells: list[bytes]


def other_numbers(trial: Trial) -> dict[str, Odd]:
    """Return the columns with numbers in another notation.

    Dates, addresses and versions (1.2.3) are no numbers: no notation reads them.
    """
    columns, records, reading = trial.columns, trial.records, trial.reading
    dialect = reading.dialect()
    found = {}
    for number, column in enumerate(columns):
        wrong_type = column.type == "category" or (column.type == "number" and column.name in trial.notes)
        if not wrong_type or column.name in reading.types:
            continue
        distinct = {row.cells[number].strip(b" \t") for row in records if number < len(row.cells)}
        if not any(_MARKED.search(cell) and _NUMBER.fullmatch(cell) for cell in distinct):
            continue
        present = [
            (row.line, cell)
            for row in records
            if number < len(row.cells) and (cell := row.cells[number].strip(b" \t")) not in dialect.na
        ]
        odd = [(line, cell) for line, cell in present if _NUMBER.fullmatch(cell)]
        marked = [(line, cell) for line, cell in odd if _MARKED.search(cell)]
        if not marked or len(odd) < MOSTLY * len(present):
            continue
        cells = list({cell for _, cell in odd})
        valid = valid_of(cells, "number", dialect)
        wrong = [(line, cell) for line, cell in marked if cell not in valid]
        given = bool(dialect.thousands) and any(dialect.thousands in cell for cell in valid)
        if wrong and (given or any(_reads(cells, marks) for marks in _NOTATIONS)):
            found[column.name] = Odd(wrong[0][0], wrong[0][1].decode(), cells)
    return found


def _reads(cells: Sequence[bytes], marks: tuple[str, str]) -> bool:
    return fits(
        cells, "number", ReadOptions(thousands=marks[0], decimal=marks[1], delimiter="\x1f").dialect()
    )


def check_notation(sample: Sample, trial: Trial) -> None:
    """Raise SourceError for numbers in another notation, with the notations that read all columns.

    trial: the sample as its options read it.
    """
    odd, reading = other_numbers(trial), trial.reading
    if not odd:
        return
    found = _notations(sample, trial, {name: o.cells for name, o in odd.items()})
    seen = " and ".join(
        f"line {reading.skip_rows + o.line + 1:,}, column {name!r} holds {o.text[:40]!r}"
        for name, o in list(odd.items())[:2]
    )
    dialect = reading.dialect()
    marks = f"the decimal point {dialect.decimal.decode()!r}"
    marks += f" and {dialect.thousands.decode()!r} between groups of three digits" * bool(dialect.thousands)
    marked = {o.text.encode() for o in odd.values()} | {
        cell for o in odd.values() for cell in o.cells if _MARKED.search(cell)
    }
    if len(found) == 1:
        ways = [way(_with_value(found[0][0], next(iter(odd.values())).text.encode()), found[0][1])]
    else:
        ways = [way(*remedy, several=True, shown=marked) for remedy in found]
    ways = ways or ["a file in one notation, as none reads all columns"]
    if not any(_changes(trial, read, set(odd)) for _, read in found):
        ways.append(f"types={dict.fromkeys(list(odd)[:4], 'category')!r} if they are not numbers")
    raise SourceError(
        f"{sample.name}: {seen}, numbers in another notation than {marks}. Pass {', or '.join(ways)}."
    )


def check_forms(sample: Sample, trial: Trial) -> None:
    """Raise SourceError for a column of dates or times in several forms, with a line of each.

    trial: the sample as its options read it.
    """
    dialect = trial.reading.dialect()
    for number, column in enumerate(trial.columns):
        if column.type != "category" or column.name not in trial.notes or column.name in trial.reading.types:
            continue
        lines: dict[bytes, int] = {}
        for row in trial.records:
            lines.setdefault(row.cells[number].strip(b" \t") if number < len(row.cells) else b"", row.line)
        cells = [cell for cell in lines if cell not in dialect.na]
        forms = {kind: valid_of(cells, kind, dialect) for kind in _MOMENTS}
        valid = set().union(*forms.values())
        most = max(forms.values(), key=len)
        others = sorted(valid - most, key=lines.__getitem__)
        if not others or len(valid) < MOSTLY * len(cells):
            continue
        seen = [(lines[cell], cell.decode()) for cell in (min(most, key=lines.__getitem__), others[0])]
        first, second = (f"line {trial.reading.skip_rows + at + 1:,} {cell!r}" for at, cell in sorted(seen))
        raise SourceError(
            f"{sample.name}: column {column.name!r} holds dates or times in several forms, in {first} and in"
            f" {second}; all cells of a column need one. Correct it, or pass {as_category(column.name)} for texts."
        )


def _changes(trial: Trial, other: Trial, odd: set[str]) -> bool:
    """Return True if another notation changes the numbers of other columns than the odd ones."""
    mark = other.reading.thousands.encode()
    return mark == b"." and any(
        c.type == "number" and c.name not in odd and any(mark in row.cells[n] for row in trial.records)
        for n, c in enumerate(trial.columns)
    )


def _notations(
    sample: Sample, trial: Trial, odd: Mapping[str, Sequence[bytes]]
) -> list[tuple[Candidate, Trial]]:
    """Return the notations under which the given cells are numbers, and no other column loses its type."""
    cells = {cell.strip() for row in trial.records for cell in row.cells}
    numbers = [cell for cell in chain(cells, *odd.values()) if _NUMBER.fullmatch(cell)]
    typed = {column.name: column.type for column in trial.columns}
    candidates: list[Candidate] = [
        ({"thousands": marks[0], "decimal": marks[1]}, "")
        for marks in _NOTATIONS
        if all(_reads(cells, marks) for cells in odd.values()) and _occur(marks, numbers)
        if marks != ("", ",") or all(map(_is_decimal, odd.values()))
    ]
    return [
        (candidate, read)
        for candidate, read in remedies(sample, trial.reading, candidates)
        if all(_as_good(c, typed.get(c.name), c.name in odd) for c in read.columns)
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


def _as_good(column: TableColumn, before: str | None, is_odd: bool) -> bool:
    """Return True if a column kept its type, or became numbers."""
    numbers = ("number", "integer")
    return column.type == before or (column.type in numbers and (is_odd or before in numbers))


def wrong_cell(
    sample: Sample, reading: ReadOptions, column: TableColumn, bad: BadRow
) -> list[tuple[Candidate, Trial]]:
    """Return the changes under which a cell does not contradict the column's type any more."""
    plain, text, value = tried(sample, reading, strict=False), bad.value, bad.value.encode()
    if plain is None or column.name not in (names := [c.name for c in plain.columns]):
        return []
    number = names.index(column.name)
    cells = [*(row.cells[number] for row in plain.records), value]
    if text.strip() == column.name:
        return []  # a header among the rows
    if bad.reason in (CellFault.LEADING_ZEROS, CellFault.ROUNDED):
        lossy = ["integer"] if bad.reason == CellFault.LEADING_ZEROS else []
        return [(({"types": {column.name: kind}}, ""), plain) for kind in ("category", *lossy)]
    is_number = _NUMBER.fullmatch(value) is not None and column.type in ("number", "integer")
    dialect, types = plain.header.dialect, {column.notation or column.type}
    kinds = [kind for kind in TRIED if kind not in types and fits(cells, kind, dialect)]
    typed: list[Candidate] = [
        ({"types": {column.name: kind}}, "for texts" if kind == "category" else "")
        for kind in (*kinds, "category")
        if kind not in types and not (is_number and kind == "currency")
    ]
    found = [(candidate, plain) for candidate in typed]
    if is_number:
        notations = _notations(sample, plain, {column.name: cells})
        return [*((_with_value(c, value), read) for c, read in notations), *found]
    texts = [n for n, c in enumerate(plain.columns) if n != number and c.type == "category"]
    others = [{row.cells[n] for row in plain.records} for n in texts]
    # Among texts, it may be a value.
    if _may_mean_missing(text) and not any(
        value in some and not _are_numbers(some, dialect) for some in others
    ):
        found.insert(-1, (({"na": (text,)}, f"if {text!r} means missing"), plain))
    return found


def _are_numbers(cells: Collection[bytes], dialect: TextDialect) -> bool:
    return 2 * len(valid_of([*cells], "number", dialect)) > len(cells)


def _with_value(candidate: Candidate, value: bytes) -> Candidate:
    """Return a notation with the number that it makes of a cell."""
    plain = value.replace(candidate[0]["thousands"].encode(), b"").replace(
        candidate[0]["decimal"].encode(), b"."
    )
    return candidate[0], f"for {shortest(float(plain))}"


def _may_mean_missing(text: str) -> bool:
    """Return True for a short text without digits other than those of 0000-00-00."""
    return 0 < len(text) <= _SHORT and text.isprintable() and not re.search("[1-9]|^0$", text)
