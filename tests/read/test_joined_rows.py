"""packer.read.field_rows: packs read as one, rows of each as they come there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packer.orders.runs import Runs, one_run
from packer.packs.joined_pack import join_packs
from packer.packs.pack import Pack
from packer.read.field_rows import FieldRows, FixedRows, JoinedRows, open_rows
from tests.read.conftest import make_pack

ROWS = 20, 7, 30


class Passing(Pack):
    """A pack whose labels come as negative numbers where they are even ones, and from its file where they are odd."""

    def arrival(self, array: str) -> Any:
        return self if array == "label" else None

    def take(self, starts: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[np.uint8]) -> bool:
        asked.append((self.path, Runs(starts, lengths).rows().tolist()))
        rows = Runs(starts, lengths).rows()
        if (rows % 2).any():
            return False
        out.reshape(-1).view("<i8")[:] = -rows
        return True

    def ahead(self, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        asked.append((self.path, Runs(starts, lengths).rows().tolist()))


asked: list[tuple[str, list[int]]] = []


@pytest.fixture(scope="module")
def array(tmp_path_factory: pytest.TempPathFactory) -> FieldRows:
    folder = tmp_path_factory.mktemp("joined")
    packs = [make_pack(folder / f"{name}.h5", rows) for name, rows in zip("abc", ROWS, strict=True)]
    packs[1] = Passing("b", packs[1].header, packs[1].seal)
    object.__setattr__(packs[1], "_path", lambda file: str(folder / "b.h5"))
    both = join_packs(packs, ["label"])
    assert isinstance(open_rows(both, "image"), FixedRows)
    found = open_rows(both, "label")
    assert isinstance(found, JoinedRows)
    return found


def read(array: FieldRows, runs: Runs) -> list[int]:
    out = np.empty((runs.total, 8), np.uint8)
    array.read(runs, out)
    labels: list[int] = out.reshape(-1).view("<i8").tolist()
    return labels


@given(st.lists(st.tuples(st.integers(0, 56), st.integers(1, 57)), max_size=9))
def test_runs_over_all_packs(array: FieldRows, some: list[tuple[int, int]]) -> None:
    runs = Runs(
        np.array([a for a, _ in some], np.int64), np.array([min(n, 57 - a) for a, n in some], np.int64)
    )
    rows = runs.rows()
    own = np.where(rows < 20, rows, np.where(rows < 27, rows - 20, rows - 27))
    passed = (rows >= 20) & (rows < 27)
    even = not (own[passed] % 2).any()
    assert read(array, runs) == np.where(passed & even, -own, 3 * own).tolist()


def test_each_pack_is_asked_for_its_own_rows(array: FieldRows) -> None:
    asked.clear()
    array.willneed(one_run(18, 30))
    array.willneed(one_run(0, 20))
    assert asked == [("b", [0, 1, 2, 3, 4, 5, 6])]
    with pytest.raises(IndexError):
        array.willneed(one_run(50, 58))
