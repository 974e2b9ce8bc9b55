"""Packs written by earlier versions stay readable, and the bytes we write do not drift."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from packer.packs.pack_opening import open_pack
from tests.format.make_golden import GOLDEN, H5_NAME, KEEP, MEMBERS, NPY_NAME, ROWS, make
from tests.format.packs import keys_of, rows_of

PACKS = sorted(path for path in GOLDEN.iterdir() if path.name.startswith("format1-"))


def test_none_is_missing():
    assert [path.name[:12] for path in PACKS] == ["format1-hdf5", "format1-npy"]


@pytest.mark.parametrize("path", PACKS, ids=lambda path: path.name)
def test_content_is_read(path: Path):
    pack = open_pack(path)
    assert pack.sealed
    for name, array in rows_of(ROWS).items():
        assert (pack.read(name) == array[:KEEP]).all()
    assert [os.fsencode(key) for key in pack.keys()] == keys_of(KEEP)
    for name, value in MEMBERS.items():
        assert getattr(pack.header, name) == value


def test_bytes_are_written_again(tmp_path: Path):
    make(tmp_path)
    for path in sorted((GOLDEN / NPY_NAME).iterdir()):
        assert (tmp_path / NPY_NAME / path.name).read_bytes() == path.read_bytes()
    if (GOLDEN / H5_NAME).exists():  # made by this version of the HDF5 library
        assert (tmp_path / H5_NAME).read_bytes() == (GOLDEN / H5_NAME).read_bytes()
