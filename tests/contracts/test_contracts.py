"""Readers that keep their contract, and what the checks find. Codecs and orders pass beside their own tests."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyfive
import pytest
from numpy.typing import NDArray

from packer import PackedBatchDataset, Rows, open_pack
from packer.codecs.block_codecs import Gzip
from tests.contracts.codec_contract import check_block_codec
from tests.contracts.order_contract import check_order
from tests.contracts.reader_contract import check_reader


def in_rows(arrays: dict[str, Any]) -> dict[str, Any]:
    """Cut the arrays of ragged fields into their rows."""
    cuts = {name: arrays.pop(name) for name in [*arrays] if name.endswith(".offsets")}
    for name, offsets in cuts.items():
        blob = arrays[name.removesuffix(".offsets")].tobytes()
        arrays[name.removesuffix(".offsets")] = [blob[a:b] for a, b in pairwise(offsets.tolist())]
    return arrays


def with_numpy(path: str) -> dict[str, Any]:
    return in_rows({file.stem: np.load(file) for file in Path(path).glob("*.npy")})


def with_hdf5(library: Any, path: str) -> dict[str, Any]:
    file = library.File(path)
    return in_rows({name: file[name][:] for name in file if name != "packer"})


def with_packer(path: str) -> dict[str, Any]:
    pack = open_pack(path)
    found: dict[str, Any] = {}
    for field in pack.fields:
        name = field.name
        if field.compressed:
            (batch,) = PackedBatchDataset(path, pack.rows, fields=[name], output="numpy")
            found[name] = batch.image
        else:
            found[name] = pack.read_ragged(name) if field.ragged else pack.read(name)
    return found


def test_packer_reads_packs(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    check_reader(with_packer, tmp_path)


def test_hdf5_and_numpy_read_packs(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    pytest.importorskip("hdf5plugin")
    for name, read, options in (
        ("h5py", lambda path: with_hdf5(h5py, path), {"containers": ["h5"]}),
        (
            "pyfive",
            lambda path: with_hdf5(pyfive, path),
            {"containers": ["h5"], "stores": ["raw", "jpeg", "gzip"]},
        ),
        ("numpy", with_numpy, {"containers": ["npy"]}),
    ):
        (tmp_path / name).mkdir()
        check_reader(read, tmp_path / name, seals=False, **options)


class Trusting(Gzip):
    def decompress_into(self, data: bytes | memoryview, out: NDArray[np.uint8]) -> None:
        try:
            super().decompress_into(data, out)
        except ValueError as error:
            if "end" not in str(error):
                raise


class Forgetful(Rows):
    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        return super().rows_at(positions, 0)


class Halving(Rows):
    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        return positions // 2


class Counting(Rows):
    def rows_at(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        return (np.arange(len(positions)) + epoch) % self.length


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (lambda: check_block_codec(Trusting), "the error does not name the length of the block"),
        (lambda: check_order(Forgetful(), 50), "the same sequence for all these seeds and epochs"),
        (lambda: check_order(Halving(), 50), "an epoch does not hold every row once"),
        (lambda: check_order(Counting(), 50), "rows depend on the other positions of a request"),
    ],
)
def test_broken_promises_are_found(check: Any, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check()


def test_a_reader_that_takes_a_damaged_pack_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"npy, raw: a pack whose trailer was damaged is accepted"):
        check_reader(with_numpy, tmp_path, containers=["npy"])
