from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packer import convert_table
from packer.bench.lanes import fixed_fields
from packer.bench.table_comparison import HeldRows, SoughtRows, check_epoch, epoch_sum, reading_of, row_keys
from packer.errors import PackerError, UsageError
from packer.format.pack import open_pack
from packer.load.batch_dataset import PackedBatchDataset
from packer.tables.reading.table_source import ReadOptions

COLUMNS = [
    np.random.default_rng(0).standard_normal((500, 3)).astype(np.float32),
    np.arange(500, dtype=np.int64),
    (np.arange(500) % 2).astype(np.uint8),
]


def test_keys_of_different_rows_differ_and_those_of_equal_ones_do_not() -> None:
    keys = row_keys(COLUMNS)
    assert keys.dtype == np.uint64
    assert len(set(keys.tolist())) == 500
    order = np.random.default_rng(1).permutation(500)
    np.testing.assert_array_equal(row_keys([column[order] for column in COLUMNS]), keys[order])


@given(row=st.integers(0, 499), bit=st.integers(0, 8 * 21 - 1))
def test_every_bit_counts(row: int, bit: int) -> None:
    changed = [column.copy() for column in COLUMNS]
    views = [column.reshape(500, -1).view(np.uint8) for column in changed]
    byte, left = divmod(bit, 8)
    for view in views:
        if byte < view.shape[1]:
            view[row, byte] ^= 1 << left
            break
        byte -= view.shape[1]
    assert np.flatnonzero(row_keys(changed) != row_keys(COLUMNS)).tolist() == [row]


def test_swapped_cells_and_columns_count() -> None:
    a, b = np.array([1, 2], np.int64), np.array([2, 1], np.int64)
    assert not (row_keys([a, b]) == row_keys([b, a])).any()
    assert not (row_keys([np.stack([a, b], 1)]) == row_keys([np.stack([b, a], 1)])).any()


def test_an_epoch_is_the_same_in_any_order_and_cut() -> None:
    tensors = [torch.from_numpy(column) for column in COLUMNS]
    order = torch.randperm(500)
    whole = epoch_sum([tensors])
    assert whole == epoch_sum([tuple(t[order][a : a + 64] for t in tensors) for a in range(0, 500, 64)])
    twice = torch.cat([order[1:], order[1:2]])  # a row for another one
    assert whole != epoch_sum([tuple(t[twice] for t in tensors)])


def test_held_rows_are_the_packs_first_ones_and_an_epoch_that_lacks_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("a,b\n" + "".join(f"{i},{i / 7}\n" for i in range(300)))
    convert_table(tmp_path / "n.csv", tmp_path / "n.h5", label="a")
    pack = open_pack(tmp_path / "n.h5")
    fields = fixed_fields(pack)
    held = HeldRows(pack, fields, 120, threads=1, sought=SoughtRows(np.empty(0, np.uint64)))
    with PackedBatchDataset(pack, 300) as batches:
        (batch,) = batches
        for tensor, expected in zip(held.tensors, batch, strict=True):
            assert torch.equal(tensor, expected[:120])
        check_epoch(pack, "whole", [batch], held.total)
        check_epoch(pack, "held", [held.tensors], held.own)
        short = [tuple(tensor[:-1] for tensor in batch)]
        with pytest.raises(
            PackerError, match=r"an epoch of 'short' is not the pack's rows, each once; .* Run packer verify"
        ):
            check_epoch(pack, "short", short, held.total)


def test_a_pack_that_was_made_from_a_pack_is_refused(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("a,b\n1,2\n3,4\n")
    convert_table(tmp_path / "n.csv", tmp_path / "n.h5", na=["none"])
    pack = open_pack(tmp_path / "n.h5")
    assert reading_of(pack) == ReadOptions(na=("none",))
    del pack.header.provenance["source"]["reading"]
    with pytest.raises(
        UsageError, match=r"n\.h5: was made from another pack; .* Pass one that packer convert wrote\.$"
    ):
        reading_of(pack)
