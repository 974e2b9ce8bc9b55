from __future__ import annotations

import pytest

from packer.format.trailer import MAGIC, SIZE, Trailer

TRAILER = Trailer(1, 2, 3, b"h" * 16, 4, 5, b"c" * 16, b"r" * 16)


def test_bytes_of_format_1_do_not_change():
    data = TRAILER.to_bytes()
    assert len(data) == SIZE
    assert data[:24] == bytes([1, *[0] * 7, 2, *[0] * 7, 3, *[0] * 7])
    assert data[88:112] == bytes(24)
    assert data[112:120].hex() == "b66dc9f4bcdf113d"
    assert data[-8:] == MAGIC == b"\x89PKR\r\n\x1a\x01"


def test_round_trip():
    assert Trailer.from_bytes(TRAILER.to_bytes()) == TRAILER


@pytest.mark.parametrize("place", range(0, SIZE, 5))
def test_every_changed_byte_is_seen(place: int):
    data = bytearray(TRAILER.to_bytes())
    data[place] ^= 1
    assert Trailer.from_bytes(bytes(data)) is None


def test_other_lengths_are_no_trailer():
    assert Trailer.from_bytes(TRAILER.to_bytes()[1:]) is None
    assert Trailer.from_bytes(b"") is None
