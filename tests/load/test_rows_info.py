"""What a dataset tells of its rows, under torchvision's names."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import convert_images, pack_dataset
from packer.format.fields import Field
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.row_dataset import PackedDataset
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.writing.pack_writer import PackWriter
from tests.read.conftest import ROWS, SPLITS, make_stored

torch = pytest.importorskip("torch")


def batches(pack: Pack, **options: Any) -> PackedBatchDataset:
    return PackedBatchDataset(pack, 4, **options)


BOTH = pytest.mark.parametrize("kind", [batches, PackedDataset], ids=["batches", "rows"])


@BOTH
@pytest.mark.parametrize("subset", [None, slice(3, 20), [20, 1, 7]], ids=["all", "slice", "list"])
def test_classes_targets_and_keys_are_those_of_the_rows(
    photo_folder: Path, tmp_path: Path, kind: Callable[..., Any], subset: Any
):
    convert_images(photo_folder, tmp_path / "p.h5", size=16)
    pack = open_pack(tmp_path / "p.h5")
    dataset = kind(pack, subset=subset)
    numbers = list(range(24)) if subset is None else np.arange(24)[subset].tolist()
    assert dataset.classes == ["blue", "green", "red"]
    assert dataset.class_to_idx == {"blue": 0, "green": 1, "red": 2}
    keys = pack.keys()
    assert dataset.keys == [keys[row] for row in numbers]
    assert dataset.targets == [dataset.classes.index(key.split("/")[0]) for key in dataset.keys]
    assert all(type(label) is int for label in dataset.targets)
    read = PackedDataset(pack, fields=["label", "key"], subset=subset)[:]
    assert (read.label.tolist(), read.key) == (dataset.targets, dataset.keys)
    assert dataset.targets is dataset.targets  # read once


@BOTH
def test_what_a_pack_does_not_have_is_no_attribute(tmp_path: Path, kind: Callable[..., Any]):
    with PackWriter(
        str(tmp_path / "p.h5"), fields=[Field("x", "<f4", (2,))], rows=5, block_rows=5, format="h5"
    ) as writer:
        writer.write_block(0, {"x": np.zeros((5, 2), "<f4")})
        writer.finish(rows=5, ragged={})
    dataset = kind(open_pack(tmp_path / "p.h5"))
    for name in ("classes", "class_to_idx", "targets", "keys"):
        assert not hasattr(dataset, name)
    with pytest.raises(
        AttributeError, match=r"p\.h5: has no class names\. Labels are in targets, if there are any\.$"
    ):
        dataset.classes


def test_several_labels_a_row_are_lists_and_classes_their_columns(tmp_path: Path):
    hot = np.eye(5, 3, dtype=np.uint8)
    field = Field("label", "|u1", (3,), {"columns": ["a", "b", "c"]})
    with PackWriter(str(tmp_path / "p.h5"), fields=[field], rows=5, block_rows=5, format="h5") as writer:
        writer.write_block(0, {"label": hot})
        writer.finish(rows=5, ragged={})
    dataset = PackedDataset(tmp_path / "p.h5", classes=["b", "c"])
    assert (dataset.classes, dataset.targets) == (["a", "b", "c"], [[0, 1, 0], [0, 0, 1]])


def test_dataset_is_the_same_rows(tmp_path: Path):
    pack = make_stored(tmp_path, "h5", "raw", None)
    loader = PackedBatchDataset(
        pack, 4, shuffle=True, split="val", fields=["label", "key"], rank=1, world_size=2, ends="pad"
    )
    assert len(loader.dataset) == len(loader.dataset.targets) == 33  # of all ranks
    assert loader.dataset is loader.dataset
    assert loader.dataset[0]._fields == ("label", "key")
    assert (
        loader.dataset.targets == loader.targets == [3 * row for a, b in SPLITS["val"] for row in range(a, b)]
    )
    assert len(pickle.loads(pickle.dumps(loader)).dataset) == 33


OVERLOOKED = (
    "rows of all its splits are loaded: 'none' (0 rows), 'train' (70 rows), 'val' (33 rows). Pass split='train' for one of them,"
    " or split='all' if every row is meant."
)


@BOTH
def test_a_pack_with_splits_of_which_none_is_named_warns_once(tmp_path: Path, kind: Callable[..., Any]):
    pack = make_stored(tmp_path, "h5", "raw", None)
    with pytest.warns(UserWarning, match="rows of all its splits") as said:
        dataset = kind(pack, classes=None)
    assert [(str(one.message), one.filename) for one in said] == [(f"{pack.path}: {OVERLOOKED}", __file__)]
    for options in ({"split": "all"}, {"split": "train"}, {"subset": slice(None)}, {"subset": [4]}):
        kind(pack, **options)  # warnings are errors here
    assert len(kind(pack, split="all").targets) == ROWS
    assert len(dataset.targets) == ROWS
    again = pickle.loads(pickle.dumps(dataset))
    next(iter(again))


@BOTH
def test_one_split_of_all_rows_is_no_choice(tmp_path: Path, kind: Callable[..., Any]):
    with PackWriter(
        str(tmp_path / "p.h5"), fields=[Field("x", "<f4", ())], rows=5, block_rows=5, format="h5"
    ) as writer:
        writer.write_block(0, {"x": np.zeros(5, "<f4")})
        writer.finish(rows=5, ragged={}, splits={"train": ((0, 5),)})
    kind(open_pack(tmp_path / "p.h5"))


@BOTH
def test_a_split_named_all_wins(tmp_path: Path, kind: Callable[..., Any]):
    with PackWriter(
        str(tmp_path / "p.h5"), fields=[Field("x", "<f4", ())], rows=5, block_rows=5, format="h5"
    ) as writer:
        writer.write_block(0, {"x": np.zeros(5, "<f4")})
        writer.finish(rows=5, ragged={}, splits={"all": ((0, 2),), "val": ((2, 5),)})
    pack = open_pack(tmp_path / "p.h5")
    with pytest.warns(UserWarning, match=r"or subset=slice\(None\) if every row is meant"):
        kind(pack)
    assert kind(pack, split="all").subset.rows == 2


def test_a_description_of_batches(tmp_path: Path):
    pack = make_stored(tmp_path, "h5", "raw", None)
    dataset = PackedBatchDataset(
        pack, 8, split="train", order="rows", seed=3, fields=["label", "key"], ends="drop"
    )
    list(dataset)
    assert repr(dataset).splitlines() == [
        f"PackedBatchDataset of {pack.path}",
        "    rows: 70 of 103 (split='train')",
        "    fields: label int64, key of any length",
        "    batches: 8 of 8 rows on this rank, ends 'drop'",
        "    order: Rows(), seed 3, epoch 0",
        "    placement: 'disk': 560 bytes of rows are read through the page cache, which all processes share",
        "    device: 'cpu', output 'torch'",
        "    ranks: rank 0 of 1: no process group, Ray Train or torchrun",
    ]


def test_a_description_of_rows(tmp_path: Path):
    pack = make_stored(tmp_path, "h5", "raw", None)
    dataset = PackedDataset(pack, subset=range(9), target_transform=int)
    assert repr(dataset).splitlines() == [
        f"PackedDataset of {pack.path}",
        "    rows: 9 of 103 (subset=range(0, 9))",
        "    fields: image uint8[8, 6, 3], label int64, text of any length",
        "    target_transform: <class 'int'>",
        "    placement: 'disk': read when asked for",
    ]
    assert "(subset=...)" in repr(PackedDataset(pack, subset=np.arange(5)))
    pack_dataset({"x": np.arange(3), "caption": list("abc")}, tmp_path / "texts.h5")
    said = "fields: x int64 (not loaded: caption; name them by fields=)"
    assert said in repr(PackedBatchDataset(tmp_path / "texts.h5", 2))
    assert "(subset=[0, 1, 2, 3, 4, 5, ...])" in repr(PackedDataset(pack, subset=list(range(100))))


def test_the_bench_and_the_preview_mean_every_row(photo_folder: Path, tmp_path: Path):
    """Those that look at the whole pack warn nobody."""
    from packer import preview
    from packer.bench.image_baseline import check_same, source_indices
    from packer.bench.lanes import Packed
    from packer.inputs.image_sources import open_source

    convert_images(photo_folder, tmp_path / "p.h5", size=32, split="train=0.5,val=0.5")
    pack = open_pack(tmp_path / "p.h5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        preview(pack.path, tmp_path / "a.png")
        Packed(pack, 4, "rows", threads=1).batches.close()
        with open_source(photo_folder) as source:
            assert check_same(source, pack, source_indices(source, pack)) > 0
