from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from packer.codecs.block_codecs import Gzip, codec_record
from packer.format.block_files import BlockFiles
from packer.format.fields import Field

RAGGED = Field("x", "|u1", None)
ROWS = st.lists(st.binary(max_size=9), min_size=1, max_size=12)


def of(folder: Path, rows: int, block_rows: int, field: Field = RAGGED) -> BlockFiles:
    return BlockFiles(str(folder), field, rows, block_rows)


def write(folder: Path, rows: list[bytes], block_rows: int) -> BlockFiles:
    files = of(folder, len(rows), block_rows)
    for block, start in enumerate(range(0, len(rows), block_rows)):
        files.store(block, rows[start : start + block_rows])
    return files


def test_a_file_is_its_pieces_and_gives_their_checksum(tmp_path: Path):
    files = of(tmp_path, 9, 2)
    assert files.write(3, b"ab", memoryview(b""), b"c") == xxhash.xxh3_64_intdigest(b"abc")
    assert (tmp_path / "x.3").read_bytes() == files.read(3) == b"abc"
    assert files.write(3, b"d") == xxhash.xxh3_64_intdigest(b"d")
    assert files.read(3) == b"d"


def test_a_file_is_checked(tmp_path: Path):
    files = of(tmp_path, 9, 2)
    checksum = files.write(0, b"abc")
    assert files.check(0, checksum)
    assert not files.check(1, checksum)
    assert not files.check(0, checksum ^ 1)
    (tmp_path / "x.0").write_bytes(b"ab")
    assert not files.check(0, checksum)


@given(ROWS)
def test_rows_of_any_length_come_back(tmp_path_factory: pytest.TempPathFactory, rows: list[bytes]):
    files = of(tmp_path_factory.mktemp("blocks"), 7 * len(rows), len(rows))
    checksum = files.store(6, rows)
    assert files.load(6) == rows
    assert files.read(6) == np.array([len(row) for row in rows], "<i8").tobytes() + b"".join(rows)
    assert files.check(6, checksum)


@st.composite
def planned(draw: st.DrawFn) -> tuple[list[bytes], int, int, dict[int, int]]:
    """Rows, rows a block, rows kept, and moves into kept rows, each from a row that no earlier one has filled."""
    rows = draw(st.lists(st.binary(max_size=4), min_size=1, max_size=14))
    kept = draw(st.integers(1, len(rows)))
    moves: dict[int, int] = {}
    for to in draw(st.lists(st.integers(0, kept - 1), unique=True, max_size=4)):
        moves[to] = draw(st.sampled_from([r for r in range(len(rows)) if r not in moves] or [to]))
    return rows, draw(st.integers(1, len(rows))), kept, moves


@given(planned())
def test_moved_rows_of_any_length(
    tmp_path_factory: pytest.TempPathFactory, plan: tuple[list[bytes], int, int, dict[int, int]]
):
    rows, block_rows, kept, moves = plan
    files = write(tmp_path_factory.mktemp("blocks"), rows, block_rows)
    files.move(list(moves.items()))
    final = [rows[moves.get(row, row)] for row in range(kept)]
    assert list(files.blob(kept)) == [
        b"".join(final[start : start + block_rows]) for start in range(0, kept, block_rows)
    ]
    assert files.offsets(kept).tolist() == np.cumsum([0, *map(len, final)]).tolist()
    assert files.offsets(kept).dtype.str == "<i8"


@given(planned())
def test_moved_rows_of_compressed_blocks(
    tmp_path_factory: pytest.TempPathFactory, plan: tuple[list[bytes], int, int, dict[int, int]]
):
    rows, block_rows, kept, moves = plan
    codec = Gzip()
    field = Field("x", "<i4", (3,), codec=codec_record(codec))
    values = np.arange(3 * len(rows), dtype="<i4").reshape(-1, 3) + 1

    def packed(array: np.ndarray, size: int) -> list[bytes]:
        full = np.zeros((-(-len(array) // size) * size, 3), "<i4")
        full[: len(array)] = array
        return [codec.compress(full[start : start + size]) for start in range(0, len(array), size)]

    files = of(tmp_path_factory.mktemp("blocks"), len(rows), block_rows, field)
    for block, data in enumerate(packed(values, block_rows)):
        files.write(block, data)
    files.move(list(moves.items()))
    final = values[[moves.get(row, row) for row in range(kept)]]
    assert list(files.packed(kept)) == packed(final, min(block_rows, kept))


def test_blocks_without_moves_are_not_unpacked(tmp_path: Path):
    files = write(tmp_path, [b"a", b"bc", b"", b"d", b"e"], 2)
    files.write(1, np.array([0, 1], "<i8").tobytes(), b"X")  # as it is, whatever it holds
    files.move([(1, 4)])
    assert list(files.blob(4)) == [b"ae", b"X"]
