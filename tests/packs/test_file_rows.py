"""Numbers of rows among the rows of files: of one pack, and of packs that count different files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from packer.format.header import Header
from packer.packs.file_rows import FILES, counted_files, fits, recounted, to_json

NONE = Header(0, 1, (), {})


def header(*files: tuple[str, int]) -> Header:
    return replace(NONE, provenance={"source": {FILES: [list(file) for file in files]}})


def test_files_count_once_over_all_packs_but_equal_ones_of_one_pack_each() -> None:
    files = counted_files([header(("a", 3), ("b", 2), ("a", 3)), header(("b", 2), ("c", 4)), NONE])
    assert files == [("a", 3, 0), ("b", 2, 0), ("a", 3, 1), ("c", 4, 0)]
    assert to_json(files) == [["a", 3], ["b", 2], ["a", 3], ["c", 4]]


def test_numbers_move_with_their_files() -> None:
    own, files = (
        counted_files([header(("b", 2), ("c", 4))]),
        counted_files([header(("c", 4), ("a", 3), ("b", 2))]),
    )
    assert recounted(np.array([0, 1, 2, 5], "<i4"), own, files).tolist() == [7, 8, 0, 3]
    assert recounted(np.array([5, 0]), own, own).tolist() == [5, 0]


def test_files_without_rows_count_none() -> None:
    own = counted_files([header(("a", 0), ("b", 2), ("c", 0))])
    assert recounted(np.array([0, 1]), own, [*own[::-1]]).tolist() == [0, 1]


@pytest.mark.parametrize("numbers", [[-1], [6], [0, 1 << 30]])
def test_numbers_beyond_the_files_are_damage(numbers: list[int]) -> None:
    own = counted_files([header(("b", 2), ("c", 4))])
    with pytest.raises(ValueError, match="not all are below the number of rows"):
        recounted(np.array(numbers), own, own)
    with pytest.raises(ValueError, match="not all are below the number of rows"):
        recounted(np.array([0]), [], own)


def test_more_rows_than_32_bits_do_not_fit() -> None:
    assert fits([("a", (1 << 31) - 1, 0)])
    assert not fits([("a", 1 << 30, 0), ("b", 1 << 30, 0)])
