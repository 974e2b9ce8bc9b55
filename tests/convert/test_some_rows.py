"""Some rows of a pack: every split and class is among them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from packer import convert_images, open_pack, pack_dataset
from packer.convert.some_rows import SomeRows, spread
from packer.errors import UsageError


@pytest.mark.parametrize(
    ("images", "classes", "splits", "rows"),
    [(1000, 10, 3, 64), (300, 60, 3, 64), (90, 1, 1, 64), (2000, 64, 2, 64), (5, 3, 2, 64), (90, 4, 3, 1)],
)
def test_every_class_and_split_is_seen_as_evenly_as_can_be(
    images: int, classes: int, splits: int, rows: int
) -> None:
    draws = np.random.default_rng(1)
    groups = draws.integers(0, classes, images)
    owners = np.sort(draws.integers(0, splits, images))
    chosen = spread(groups, owners, rows)
    assert len(np.unique(chosen)) == len(chosen) == min(rows, images)
    assert len(np.unique(groups[chosen])) == min(rows, len(np.unique(groups)))
    assert len(np.unique(owners[chosen])) == min(rows, len(np.unique(owners)))
    assert chosen.tolist() == sorted(chosen.tolist(), key=lambda row: (owners[row], groups[row], row))
    if rows < images:
        held = np.bincount(groups[chosen])
        assert held.max() - held[held > 0].min() <= 1


def test_of_too_many_classes_some_are_taken_from_everywhere() -> None:
    chosen = spread(np.arange(1000), np.zeros(1000, np.int64), 5)
    assert chosen.tolist() == [0, 250, 500, 749, 999]


def test_a_rare_class_and_a_small_split_are_not_missed() -> None:
    groups, owners = np.zeros(100_000, np.int64), np.zeros(100_000, np.int64)
    groups[77_777], owners[-3:] = 1, 1
    chosen = spread(groups, owners, 8)
    assert 77_777 in chosen
    assert (owners[chosen] == 1).sum() == 3


def test_the_rows_are_those_of_the_whole_pack(photo_folder: Path, tmp_path: Path) -> None:
    split = "train=0.7,val=0.3"
    convert_images(photo_folder, tmp_path / "whole.h5", size=16, split=split)
    report = convert_images(
        photo_folder, tmp_path / "some.h5", size=16, split=split, engine=SomeRows(9), shards=None
    )
    whole, some = open_pack(tmp_path / "whole.h5"), open_pack(tmp_path / "some.h5")
    assert report.rows == some.rows == 9
    assert {name: b - a for name, ((a, b),) in some.header.splits.items()} == {"train": 5, "val": 4}
    rows = whole.rows_of(some.keys())
    assert np.array_equal(whole.read("image")[rows], some.read("image"))
    assert np.bincount(some.read("label")).tolist() == [3, 3, 3]
    for name, ((start, stop),) in some.header.splits.items():
        ((first, last),) = whole.header.splits[name]
        assert all(first <= row < last for row in rows[start:stop])
    assert sorted(os.listdir(tmp_path)) == ["photos", "some.h5", "whole.h5"]


def test_of_one_split_only(photo_folder: Path, tmp_path: Path) -> None:
    options = {"size": 16, "split": "train=0.7,val=0.3"}
    convert_images(photo_folder, tmp_path / "val.h5", **options, engine=SomeRows(99, "val"))
    assert open_pack(tmp_path / "val.h5").header.splits["train"] == ((0, 0),)
    assert open_pack(tmp_path / "val.h5").rows == 7
    with pytest.raises(UsageError, match=r"photos: has no split 'x'; its splits: train, val. Pass one of th"):
        convert_images(photo_folder, tmp_path / "x.h5", **options, engine=SomeRows(9, "x"))
    with pytest.raises(
        UsageError,
        match=r"photos: has no split 'x'; it has none. To make some, pass split='train=0.9,val=0.1'.",
    ):
        convert_images(photo_folder, tmp_path / "x.h5", engine=SomeRows(9, "x"))


def test_nothing_is_kept_of_a_failure(photo_folder: Path, tmp_path: Path) -> None:
    (photo_folder / "red" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(Exception, match=r"bad.jpg: .* Remove it, or pass on_error='skip'.$"):
        convert_images(photo_folder, tmp_path / "x.h5", engine=SomeRows(99))
    assert os.listdir(tmp_path) == ["photos"]


def test_some_of_the_rows_of_arrays(tmp_path: Path) -> None:
    images = np.arange(40, dtype=np.uint8).repeat(48).reshape(40, 4, 4, 3)
    pack_dataset((images, np.arange(40) % 4), tmp_path / "a.h5", engine=SomeRows(8))
    pack = open_pack(tmp_path / "a.h5")
    assert np.bincount(pack.read("label")).tolist() == [2, 2, 2, 2]
    assert pack.read("image")[:, 0, 0, 0].tolist() == [int(key) for key in pack.keys()]
