"""How the text of a table is written: what stands between its cells, and what in them means what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """Each mark is one ASCII character, or none of two of them.

    delimiter: between cells; quote: around cells, b"" for none; decimal: the decimal point; thousands: passed over between digits
    of the whole part of a number, b"" for none; na: the texts that mean "missing"; width: cells of a record.
    """

    delimiter: bytes
    quote: bytes
    decimal: bytes
    thousands: bytes
    na: frozenset[bytes]
    width: int
