"""Kinds of sources by the suffixes of their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer.source_kinds import COMPRESSIONS, is_array_file, is_table
from packer.tables.reading import text_stream


@pytest.mark.parametrize(
    "name",
    [
        "a.csv",
        "A.CSV",
        "x/*.tsv",
        "a.tab",
        "a.psv",
        "a.data",
        "a.csv.gz",
        "a.tsv.ZST",
        "*.csv.bz2",
        "a.csv.xz",
        "a.parquet",
        "*.pq",
        "a.arrow",
        "a.feather",
        "a.ipc",
        "a.csv.zip",
    ],
)
def test_tables(name: str) -> None:
    assert is_table(name)


@pytest.mark.parametrize("name", ["a.txt", "a.tar.gz", "photos", "csv", "a.gz", "a.parquet.gz", "a.csv.rar"])
def test_what_is_no_table(name: str) -> None:
    assert not is_table(name)


def test_arrays() -> None:
    assert all(map(is_array_file, ("a.H5", Path("a.npy"), "b/a.npz", "a.hdf5")))
    assert not any(map(is_array_file, ("a.csv", "npy", 3, None, "a.npy.gz")))


def test_each_compression_can_be_read() -> None:
    assert set(text_stream._KINDS) == set(COMPRESSIONS)
