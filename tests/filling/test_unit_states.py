"""The file of states: mapped by all, kept, and made anew when it is of other units."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from packer.filling.filling_messages import UnitStates


def test_what_one_marks_the_others_see(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    writer, reader = UnitStates.open(path, 9, writable=True), UnitStates.open(path, 9)
    assert reader.missing(np.array([8, 0, 3])).tolist() == [8, 0, 3]
    writer.values[np.array([3, 5])] = np.array([77, 1 << 63], np.uint64)
    assert reader.missing(np.array([8, 3, 0, 5])).tolist() == [8, 0]
    writer.values[np.array([3])] = np.array([0], np.uint64)
    assert reader.missing(np.arange(9)).tolist() == [0, 1, 2, 3, 4, 6, 7, 8]


def test_it_outlives_its_writer_but_not_another_number_of_units(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    UnitStates.open(path, 9, writable=True).values[np.array([4])] = np.array([6], np.uint64)
    assert UnitStates.open(path, 9, writable=True).values.tolist() == [0, 0, 0, 0, 6, 0, 0, 0, 0]
    assert not UnitStates.open(path, 10, writable=True).values.any()


def test_readers_cannot_write_and_do_not_make_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        UnitStates.open(str(tmp_path / "state"), 9)
    UnitStates.open(str(tmp_path / "state"), 9, writable=True)
    with pytest.raises(ValueError, match="read-only"):
        UnitStates.open(str(tmp_path / "state"), 9).values[np.array([1])] = np.array([1], np.uint64)


def test_its_room_is_promised_when_it_is_made(tmp_path: Path) -> None:
    """Else a full disk would kill the process that writes a state into the mapped file."""
    (tmp_path / "other").write_bytes(b"x" * 8192)
    if not os.stat(tmp_path / "other").st_blocks:
        pytest.skip("this file system does not say what it has promised")
    states = UnitStates.open(str(tmp_path / "state"), 5000, writable=True)
    assert os.stat(tmp_path / "state").st_blocks * 512 >= 8 * 5000
    states.values[np.array([7])] = np.array([9], np.uint64)
    again = UnitStates.open(str(tmp_path / "state"), 5000)
    assert again.missing(np.array([6, 7, 8])).tolist() == [6, 8]
