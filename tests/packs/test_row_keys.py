"""Rows by their keys."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

from packer import PackedDataset, create, merge_packs, open_pack
from packer.errors import SpaceError, UsageError
from packer.packs import row_keys
from packer.packs.pack import Pack
from packer.packs.row_keys import RowKeys

KEYS = [f"{name}/\udcff{i}.jpg" for i in range(700) for name in ("cat", "dog")]


def of(keys: list[str]) -> RowKeys:
    stored = [key.encode("utf-8", "surrogateescape") for key in keys]
    return RowKeys("p.h5", len(keys), lambda start, stop: stored[start:stop])


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1400])
@pytest.mark.parametrize("in_file", [False, True])
def test_every_key_leads_to_its_row(monkeypatch: pytest.MonkeyPatch, count: int, in_file: bool):
    monkeypatch.setattr(row_keys, "_KEYS_AT_ONCE", 100)
    monkeypatch.setattr(row_keys, "_MEMORY_BYTES", 0 if in_file else 1 << 20)
    rows = np.random.default_rng(0).permutation(count)
    index = of(KEYS[:count])
    assert index.rows([KEYS[row] for row in rows]).tolist() == rows.tolist()
    assert index.rows([]).tolist() == []


def test_keys_of_one_half_of_the_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    hashes = row_keys._hashes
    monkeypatch.setattr(row_keys, "_hashes", lambda keys: hashes(keys) * np.array([0, 1], np.uint64))
    index = of(KEYS)
    assert index.rows([KEYS[900], KEYS[3], KEYS[900]]).tolist() == [900, 3, 900]
    with pytest.raises(UsageError, match="none of its 1,400 rows has the key 'x', and 1 more of these"):
        index.rows([KEYS[1], "x", "y"])
    with pytest.raises(UsageError, match="several rows have the key 'a', 1 and 3 for example"):
        of(["b", "a", "c", "a", "a"]).rows(["c", "a"])


@pytest.mark.parametrize("in_file", [False, True])
def test_parts_are_sorted_each_by_itself(monkeypatch: pytest.MonkeyPatch, in_file: bool):
    monkeypatch.setattr(row_keys, "_SORTED_BITS", 5)
    monkeypatch.setattr(row_keys, "_KEYS_AT_ONCE", 100)
    monkeypatch.setattr(row_keys, "_MEMORY_BYTES", 0 if in_file else 1 << 20)
    index = of(KEYS)
    keys = [key.encode("utf-8", "surrogateescape") for key in KEYS]
    assert index.find([b"x", *keys, b"y"]).tolist() == [-1, *range(1400), -1]
    assert index._table is not None
    assert (np.diff(index._table[0].astype(float)) >= 0).all()


def test_threads_that_ask_at_once_get_their_rows():
    keys = [f"k{i}" for i in range(100_000)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(3):
            index = of(keys)
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(index.rows, [keys[begin::999] for begin in range(4)]))
            assert [each.tolist() for each in found] == [list(range(i, len(keys), 999)) for i in range(4)]
    finally:
        sys.setswitchinterval(interval)


def test_what_is_no_list_of_keys_is_refused():
    index = of(KEYS)
    for asked in ("cat", [1], [b"cat"]):
        with pytest.raises(UsageError, match="the keys of rows are a list of str"):
            index.rows(asked)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"none of its 1,400 rows has the key '\\ud800'"):
        index.rows(["\ud800"])


def test_no_room_for_the_table_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(row_keys, "_MEMORY_BYTES", 0)
    monkeypatch.setattr(row_keys.tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(SpaceError, match=r"p\.h5: the table of its keys \(22,400 bytes\) cannot be written"):
        of(KEYS).rows(KEYS)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    path = tmp_path_factory.mktemp("keys") / "p.h5"
    with create(path, shuffle=False) as builder:
        builder.write_rows(number=np.arange(20), key=[f"k{i}" for i in range(20)])
    return open_pack(path)


def test_rows_of_a_pack_and_of_a_dataset(pack: Pack):
    assert pack.rows_of(["k3", "k19"]).tolist() == [3, 19]
    assert pickle.loads(pickle.dumps(pack)).rows_of(["k7"]).tolist() == [7]
    rows = PackedDataset(pack, fields=["number"], subset=np.array(["k5", "k2", "k9"], object))
    assert rows[:].number.tolist() == [5, 2, 9]
    assert rows["k9"].number == 9
    assert rows[["k9", "k5"]].number.tolist() == [9, 5]
    with pytest.raises(UsageError, match=r"none of its 3 rows has the key 'k3'\. The first row has 'k5'"):
        rows["k3"]


def test_a_key_of_several_rows_and_rows_without_keys(pack: Pack, tmp_path: Path):
    merge_packs([pack.path, pack.path], tmp_path / "m.h5", duplicates="keep", shuffle=False)
    merged = open_pack(tmp_path / "m.h5")
    with pytest.raises(UsageError, match="several rows have the key 'k1', 1 and 21 for example"):
        merged.rows_of(["k1"])
    with create(tmp_path / "n.h5") as builder:
        builder.write_rows(number=np.arange(3))
    without = open_pack(tmp_path / "n.h5")
    for asked in (lambda: without.rows_of(["k1"]), lambda: PackedDataset(without)["k1"]):
        with pytest.raises(UsageError, match="its rows have no keys"):
            asked()


def test_keys_that_are_digits_or_end_with_a_zero(tmp_path: Path):
    keys = ["3", "2", "1", "0", "a\0", "a"]
    with create(tmp_path / "p.h5", shuffle=False) as builder:
        builder.write_rows(number=np.arange(6), key=keys)
    rows = PackedDataset(tmp_path / "p.h5", fields=["number"])
    assert [int(rows[key].number) for key in keys] == list(range(6))
    assert [int(row.number) for row in rows.__getitems__(keys)] == list(range(6))
    assert rows[keys].number.tolist() == list(range(6))
    assert [b.number.tolist() for b in DataLoader(rows, sampler=keys, batch_size=4)] == [[0, 1, 2, 3], [4, 5]]
    assert PackedDataset(tmp_path / "p.h5", fields=["number"], subset=["a", "a\0"])[:].number.tolist() == [
        5,
        4,
    ]
    before = len(list(Path("/proc/self/fd").iterdir()))
    rows.close()
    assert len(list(Path("/proc/self/fd").iterdir())) < before - 1
