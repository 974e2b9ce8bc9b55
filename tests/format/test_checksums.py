from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import xxhash

from packer.format.checksums import block_checksum, digest, file_ranges


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
    fd = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        assert b"".join(file_ranges(fd, [(0, 3), (50, 50), (98, 100)])) == bytes([0, 1, 2, 98, 99])
        with pytest.raises(EOFError):
            list(file_ranges(fd, [(99, 101)]))
    finally:
        os.close(fd)
