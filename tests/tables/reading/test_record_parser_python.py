"""The parts of the record parser that are in Python alone; test_record_parser.py tests what it shares with the loop in C."""

from __future__ import annotations

import csv
import io
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from packer.tables.reading import record_parser as plain
from packer.tables.reading.record_parser import _LARGEST as LARGEST
from packer.tables.reading.record_parser import _SMALLEST as SMALLEST
from packer.tables.reading.record_parser import powers_of_ten, significand
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
@settings(max_examples=100, deadline=None)
def test_what_the_csv_module_writes_comes_back(rows: list[list[str]], windows: bool) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n" if windows else "\n").writerows(rows)
    records = list(plain.records_of(text.getvalue().encode(), FORM))
    assert [[cell.decode() for cell in r.cells] for r in records] == rows
    assert not any(r.fault for r in records)


@given(st.text('ab,"\n', max_size=60))
@settings(max_examples=150, deadline=None)
def test_text_without_stray_quotes_is_what_the_csv_module_reads(text: str) -> None:
    records = list(plain.records_of(text.encode(), FORM))
    if any(r.fault for r in records):
        return
    wanted = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    assert [[cell.decode() for cell in r.cells] for r in records] == wanted


def test_the_table_holds_both_halves_of_each_power() -> None:
    words = powers_of_ten().astype("<u8").tobytes()
    assert len(words) == 16 * (LARGEST - SMALLEST + 1)
    for q in (SMALLEST, -28, -27, -1, 0, 1, 27, 28, 55, 56, LARGEST):
        upper, lower = (int.from_bytes(words[at : at + 8], "little") for at in (_at(q), _at(q) + 8))
        assert upper << 64 | lower == significand(q)


def test_entries_printed_in_the_paper_and_in_its_code() -> None:
    assert significand(0) == 1 << 127
    assert significand(-1) == 0xCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCCD
    assert significand(SMALLEST) == 0xEEF453D6923BD65A113FAA2906A13B3F
    assert significand(LARGEST) == 0x8E679C2F5E44FF8F570F09EAA7EA7648


def test_each_is_within_one_of_the_power() -> None:
    for q in range(SMALLEST, LARGEST + 1):
        mantissa, power = significand(q), Fraction(5) ** q
        assert mantissa.bit_length() == 128
        scale = 0
        while power >= 2:  # to [1, 2)
            bits = max(1, power.numerator.bit_length() - power.denominator.bit_length() - 1)
            power, scale = power / (1 << bits), scale + bits
        while power < 1:
            bits = max(1, power.denominator.bit_length() - power.numerator.bit_length())
            power, scale = power * (1 << bits), scale - bits
        difference = mantissa - power * (1 << 127)
        assert -1 < difference <= (0 if q >= 0 else 1)


def _at(q: int) -> int:
    return 16 * (q - SMALLEST)
