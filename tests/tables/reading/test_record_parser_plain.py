"""What only plain.py has; what it shares with the form in C is tested in test_parse.py."""

from __future__ import annotations

import csv
import io

from hypothesis import given, settings
from hypothesis import strategies as st

from packer.tables.reading import record_parser_plain as plain
from packer.tables.reading.table_source import TextDialect

FORM = TextDialect(b",", b'"', b".", b"", frozenset({b""}), 2)


def test_lines_of_records() -> None:
    records = list(plain.records_of(b'a,b\n\n"x\ny",c\r\nd', FORM))
    assert [(r.line, r.next_line) for r in records] == [(0, 1), (2, 4), (4, 4)]
    assert [r.cells for r in records] == [[b"a", b"b"], [b"x\ny", b"c"], [b"d"]]
    assert not any(r.fault for r in records)


def test_faults_of_quotes() -> None:
    records = list(plain.records_of(b'"a"b,"c"d\ne,"f\n', FORM))
    assert [(r.fault, r.column, r.value) for r in records] == [
        (plain.AFTER_QUOTE, 0, b'"a"b'),
        (plain.UNCLOSED, 1, b'"f\n'),
    ]


@given(st.lists(st.lists(st.text('ab,"\n é', max_size=6), min_size=2, max_size=4), max_size=8), st.booleans())
@settings(max_examples=200, deadline=None)
def test_what_the_csv_module_writes_comes_back(rows: list[list[str]], windows: bool) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n" if windows else "\n").writerows(rows)
    records = list(plain.records_of(text.getvalue().encode(), FORM))
    assert [[cell.decode() for cell in r.cells] for r in records] == rows
    assert not any(r.fault for r in records)


@given(st.text('ab,"\n', max_size=60))
@settings(max_examples=300, deadline=None)
def test_text_without_stray_quotes_is_what_the_csv_module_reads(text: str) -> None:
    records = list(plain.records_of(text.encode(), FORM))
    if any(r.fault for r in records):
        return
    wanted = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    assert [[cell.decode() for cell in r.cells] for r in records] == wanted
