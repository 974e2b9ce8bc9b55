"""The file of states: mapped by all, kept, and made anew when it is of other units."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from packer.packs.unit_states import map_states


def test_what_one_marks_the_others_see(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    writer, reader = map_states(path, 9, "<u8", writable=True), map_states(path, 9, "<u8")
    assert not reader.any()
    writer[np.array([3, 5])] = np.array([77, 1 << 63], np.uint64)
    assert np.flatnonzero(reader).tolist() == [3, 5]
    writer[np.array([3])] = np.array([0], np.uint64)
    assert np.flatnonzero(reader).tolist() == [5]


def test_it_outlives_its_writer_but_not_another_number_of_units(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    map_states(path, 9, "<u8", writable=True)[np.array([4])] = np.array([6], np.uint64)
    assert map_states(path, 9, "<u8", writable=True).tolist() == [0, 0, 0, 0, 6, 0, 0, 0, 0]
    assert not map_states(path, 10, "<u8", writable=True).any()


def test_readers_cannot_write_and_do_not_make_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        map_states(str(tmp_path / "state"), 9, "<u8")
    map_states(str(tmp_path / "state"), 9, "<u8", writable=True)
    with pytest.raises(ValueError, match="read-only"):
        map_states(str(tmp_path / "state"), 9, "<u8")[np.array([1])] = np.array([1], np.uint64)


def test_its_room_is_promised_when_it_is_made(tmp_path: Path) -> None:
    """Else a full disk would kill the process that writes a state into the mapped file."""
    (tmp_path / "other").write_bytes(b"x" * 8192)
    if not os.stat(tmp_path / "other").st_blocks:
        pytest.skip("this file system does not say what it has promised")
    states = map_states(str(tmp_path / "state"), 5000, "<u8", writable=True)
    assert os.stat(tmp_path / "state").st_blocks * 512 >= 8 * 5000
    states[np.array([7])] = np.array([9], np.uint64)
    again = map_states(str(tmp_path / "state"), 5000, "<u8")
    assert again[6:9].tolist() == [0, 9, 0]
