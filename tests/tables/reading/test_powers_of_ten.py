from __future__ import annotations

from fractions import Fraction

from packer.tables.reading.record_parser import _LARGEST as LARGEST
from packer.tables.reading.record_parser import _SMALLEST as SMALLEST
from packer.tables.reading.record_parser import powers_of_ten, significand


def test_the_table_holds_both_halves_of_each_power() -> None:
    words = powers_of_ten()
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
