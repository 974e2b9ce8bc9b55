from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from packer.codecs.block_codecs import Gzip
from packer.format.block_files import BlockFiles, MovedRows
from packer.format.header import Field

ROWS = st.lists(st.binary(max_size=9), min_size=1, max_size=12)


def write(folder: Path, rows: list[bytes], block_rows: int) -> BlockFiles:
    files = BlockFiles(str(folder), "x")
    for block, start in enumerate(range(0, len(rows), block_rows)):
        files.write_rows(block, rows[start : start + block_rows])
    return files


def test_a_file_is_its_pieces_and_gives_their_checksum(tmp_path: Path):
    files = BlockFiles(str(tmp_path), "x")
    assert files.write(3, b"ab", memoryview(b""), b"c") == xxhash.xxh3_64_intdigest(b"abc")
    assert (tmp_path / "x.3").read_bytes() == files.read(3) == b"abc"
    assert files.write(3, b"d") == xxhash.xxh3_64_intdigest(b"d")
    assert files.read(3) == b"d"


def test_a_file_is_checked(tmp_path: Path):
    files = BlockFiles(str(tmp_path), "x")
    checksum = files.write(0, b"abc")
    assert files.check(0, checksum)
    assert not files.check(1, checksum)
    assert not files.check(0, checksum ^ 1)
    (tmp_path / "x.0").write_bytes(b"ab")
    assert not files.check(0, checksum)


@given(ROWS)
def test_rows_of_any_length_come_back(tmp_path_factory: pytest.TempPathFactory, rows: list[bytes]):
    files = BlockFiles(str(tmp_path_factory.mktemp("blocks")), "x")
    checksum = files.write_rows(7, rows)
    assert files.rows(7, len(rows)) == rows
    assert files.lengths(7, len(rows)).tolist() == [len(row) for row in rows]
    assert files.read(7) == np.array([len(row) for row in rows], "<i8").tobytes() + b"".join(rows)
    assert files.check(7, checksum)


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
    moved = MovedRows(files, block_rows=block_rows, planned=len(rows), kept=kept, moves=moves)
    final = [rows[moves.get(row, row)] for row in range(kept)]
    assert list(moved.ragged()) == [
        b"".join(final[start : start + block_rows]) for start in range(0, kept, block_rows)
    ]
    assert moved.ragged_offsets().tolist() == np.cumsum([0, *map(len, final)]).tolist()
    assert moved.ragged_offsets().dtype.str == "<i8"


@given(planned())
def test_moved_rows_of_compressed_blocks(
    tmp_path_factory: pytest.TempPathFactory, plan: tuple[list[bytes], int, int, dict[int, int]]
):
    rows, block_rows, kept, moves = plan
    field, codec = Field("x", "<i4", (3,)), Gzip()
    values = np.arange(3 * len(rows), dtype="<i4").reshape(-1, 3) + 1

    def packed(array: np.ndarray, size: int) -> list[bytes]:
        full = np.zeros((-(-len(array) // size) * size, 3), "<i4")
        full[: len(array)] = array
        return [codec.compress(full[start : start + size]) for start in range(0, len(array), size)]

    files = BlockFiles(str(tmp_path_factory.mktemp("blocks")), "x")
    for block, data in enumerate(packed(values, block_rows)):
        files.write(block, data)
    moved = MovedRows(files, block_rows=block_rows, planned=len(rows), kept=kept, moves=moves)
    final = values[[moves.get(row, row) for row in range(kept)]]
    assert list(moved.coded(field, codec)) == packed(final, min(block_rows, kept))


def test_blocks_without_moves_are_not_unpacked(tmp_path: Path):
    rows = [b"a", b"bc", b"", b"d", b"e"]
    files = write(tmp_path, rows, 2)
    moved = MovedRows(files, block_rows=2, planned=5, kept=4, moves={1: 4})
    assert [moved.changed(block) for block in range(moved.blocks)] == [True, False]
    files.write(1, np.array([0, 1], "<i8").tobytes(), b"X")  # as it is, whatever it holds
    assert list(moved.ragged()) == [b"ae", b"X"]
