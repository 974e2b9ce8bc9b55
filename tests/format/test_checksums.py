from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xxhash

from packer.format.checksums import MAGIC, SIZE, Trailer, block_checksum, digest, file_ranges


def test_block_checksum_is_xxh3_of_the_bytes():
    data = np.arange(24, dtype="<i8").reshape(2, 3, 4)
    assert block_checksum(data) == xxhash.xxh3_64_intdigest(data.tobytes())
    assert block_checksum(data[:0]) == xxhash.xxh3_64_intdigest(b"")


def test_digest_joins_pieces():
    assert digest([b"ab", np.frombuffer(b"cd", np.uint8), memoryview(b"e")]) == xxhash.xxh3_128_digest(
        b"abcde"
    )


def test_file_ranges_gives_the_bytes_in_order(tmp_path: Path):
    (tmp_path / "x").write_bytes(bytes(range(100)))
    read = partial(read_at, tmp_path / "x")
    assert b"".join(file_ranges(read, [(0, 3), (50, 50), (98, 100)])) == bytes([0, 1, 2, 98, 99])
    with pytest.raises(EOFError):
        list(file_ranges(read, [(99, 101)]))


def read_at(path: Path, offset: int, nbytes: int) -> bytes:
    return path.read_bytes()[offset : offset + nbytes]


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
