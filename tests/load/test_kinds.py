"""Both datasets over every way to store a pack, with and without splits: every row once, with its own content."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.codecs import jpeg
from packer.convert.image_conversion import convert_images
from packer.errors import FormatError, UsageError
from packer.filling.opening import open_pack
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.row_dataset import PackedDataset
from packer.orders.blocks import Blocks
from packer.orders.row_orders import Rows
from packer.packs.pack import Pack
from packer.read.field_rows import CompressedRows
from tests.format.packs import Content, begin, write_content
from tests.load.conftest import ORDERS
from tests.read.conftest import ROWS, SHAPE, SPLITS, STORED, content_of, make_stored, store_of

torch = pytest.importorskip("torch")
from torch.utils.data import BatchSampler, DataLoader, RandomSampler  # noqa: E402

from packer.augment import RandomCrop  # noqa: E402

FIELDS = ("image", "label", "text", "key")
ALL = list(range(ROWS))


def rows_of(split: str) -> list[int]:
    return ALL if split == "all" else [row for a, b in SPLITS[split] for row in range(a, b)]


class Checked:
    """Looks at the rows of batches, and returns their numbers."""

    def __init__(self, images: np.ndarray) -> None:
        self.images = images

    def __call__(self, batch) -> list[int]:
        image, label = batch.image, np.asarray(batch.label)
        if isinstance(image, torch.Tensor):
            image = image.permute(0, 2, 3, 1).numpy()
        rows = (label // 3).tolist()
        assert (label == 3 * np.array(rows)).all()
        assert (image == self.images[rows]).all()
        if "key" in batch._fields:
            assert batch.key == [f"row/{row}" for row in rows]
            assert batch.text == [b"abcd"[: row % 5] for row in rows]
        return rows


@pytest.fixture
def check(stored: Pack, expected: dict[str, np.ndarray]) -> Checked:
    return Checked(expected[store_of(stored)])


@pytest.mark.parametrize(
    ("order", "split"),
    [*((order, "train") for order in ORDERS), ("sequential", "all"), ("rows", "all"), ("slices", "val")],
)
def test_every_row_once_an_epoch(stored: Pack, check: Checked, order: str, split: str):
    wanted = rows_of(split)
    for output in ("numpy", "torch") if split == "all" else ("numpy",):
        with PackedBatchDataset(
            stored, 9, order=order, output=output, fields=FIELDS, split=split, threads=2
        ) as dataset:
            assert dataset.rows == len(wanted)
            first, second = ([row for batch in dataset for row in check(batch)] for _ in range(2))
        assert sorted(first) == sorted(second) == wanted
        assert (first == wanted) == (second == wanted) == (order == "sequential")
        assert (first == second) == (order == "sequential")


@pytest.mark.parametrize("split", ["all", "train"])
def test_checked_against_their_checksums_and_by_many_threads(
    stored: Pack, check: Checked, split: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("packer.load.fillers.SPLIT_BYTES", 1)
    monkeypatch.setattr("packer.load.fillers.SPLIT_CODED_BYTES", 1)
    with PackedBatchDataset(
        replace(stored, verify=True), 32, order="rows", output="numpy", fields=FIELDS, split=split, threads=3
    ) as dataset:
        assert sorted(row for batch in dataset for row in check(batch)) == rows_of(split)


@pytest.mark.parametrize("order", ["slices", "blocks", "regions"])
def test_ranks_share_one_sequence_of_a_split(stored: Pack, check: Checked, order: str):
    def batches(**ranks: int) -> list[list[int]]:
        size = 4 if ranks else 12
        with PackedBatchDataset(
            stored, size, order=order, seed=5, split="train", ends="uneven", output="numpy", **ranks
        ) as dataset:
            return [check(batch) for batch in dataset]

    alone, ranks = batches(), [batches(rank=rank, world_size=3) for rank in range(3)]
    steps = max(map(len, ranks))
    joined = [row for step in range(steps) for rank in ranks if step < len(rank) for row in rank[step]]
    assert joined == [row for batch in alone for row in batch]
    assert sorted(joined) == rows_of("train")


def test_the_same_rows_are_augmented_alike_in_a_split(stored: Pack, check: Checked):
    def images(split: str, order: str) -> dict[int, torch.Tensor]:
        with PackedBatchDataset(
            stored,
            7,
            order=order,
            split=split,
            fields=("image", "label"),
            augment=[RandomCrop((5, 5), padding=2)],
        ) as dataset:
            return {
                int(label): image.clone() for batch in dataset for image, label in zip(*batch, strict=True)
            }

    everything, split = images("all", "sequential"), images("train", "rows")
    assert sorted(split) == [3 * row for row in rows_of("train")]
    assert all(torch.equal(everything[label], image) for label, image in split.items())


def test_pickled_datasets_go_on(stored: Pack, check: Checked):
    with PackedBatchDataset(
        replace(stored, verify=True), 9, order="rows", seed=3, split="val", fields=FIELDS
    ) as dataset:
        epochs = [[check(batch) for batch in dataset] for _ in range(2)]
        with pickle.loads(pickle.dumps(dataset)) as copy:
            copy.set_epoch(1)
            assert [check(batch) for batch in copy] == epochs[1]
    rows = PackedDataset(stored, split="val", fields=FIELDS)
    assert check(pickle.loads(pickle.dumps(rows))[3:7]) == check(rows[3:7]) == rows_of("val")[3:7]


@pytest.mark.parametrize("split", ["all", "train", "val"])
def test_rows_one_by_one_and_together(stored: Pack, check: Checked, split: str):
    dataset, wanted = PackedDataset(stored, fields=FIELDS, split=split), np.array(rows_of(split))
    n = len(dataset)
    assert n == len(wanted)
    for index in ([0, n - 1, 5, 5, -1], slice(None), slice(25, 35), slice(n, 0, -7), []):
        assert check(dataset[index]) == wanted[index].tolist()
    for row in (0, 29, 30, -1):
        sample = dataset[row]
        assert sample.image.shape == (3, *SHAPE[:2])
        assert (int(sample.label), sample.key) == (3 * wanted[row], f"row/{wanted[row]}")
        assert (sample.image.permute(1, 2, 0).numpy() == check.images[wanted[row]]).all()
    for index in (n, -n - 1):
        with pytest.raises(IndexError, match=f"^row {index} of {n}$"):
            dataset[index]
    dataset.close()


WORKERS = [
    ("h5-jpeg-shards", "fork"),
    ("h5-jpeg-shards", "forkserver"),
    ("h5-gzip-one", "fork"),
    ("npy-raw-shards", "fork"),
]


@pytest.mark.parametrize(
    ("kind", "context"),
    [
        pytest.param(param.values[0], context, id=f"{param.id}-{context}", marks=param.marks)
        for param in STORED
        for kind, context in WORKERS
        if kind == param.id
    ],
)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_worker_processes(
    tmp_path: Path,
    kind: tuple[str, str, tuple[int, ...] | None],
    context: str,
    expected: dict[str, np.ndarray],
):
    pack, check = make_stored(tmp_path, *kind), Checked(expected[kind[1]])
    # Where they are not forked, each imports torch anew.
    options = {"num_workers": 2 if context == "fork" else 1, "multiprocessing_context": context}
    with PackedBatchDataset(
        replace(pack, verify=True), 9, order="rows", fields=FIELDS, split="train"
    ) as batches:
        assert sorted(row for batch in batches for row in check(batch)) == rows_of("train")
    rows = PackedDataset(pack, fields=FIELDS, split="val")
    check(rows[:3])
    sampler = BatchSampler(RandomSampler(rows), batch_size=8, drop_last=False)
    loader = DataLoader(rows, sampler=sampler, batch_size=None, **options)
    assert sorted(row for batch in loader for row in check(batch)) == rows_of("val")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_reads_on(stored: Pack, check: Checked):
    """What the parent has opened and decoded is of no use to the child, and does it no harm."""
    dataset = PackedDataset(stored, fields=FIELDS, split="all")
    assert check(dataset[20:24]) == [20, 21, 22, 23]
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check(dataset[21:60]) == list(range(21, 60)) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert check(dataset[10:70]) == list(range(10, 70))
    dataset.close()


def test_an_empty_split(stored: Pack):
    """As a share of few rows gives; in shards, a split without rows is not recorded."""
    found = "has no split 'none'; its splits: train, val. Pass one of these."
    if "none" in stored.header.splits:
        found = "none of its 103 rows is left by split='none'. Pass another selection of rows."
    for make in (
        lambda: PackedBatchDataset(stored, 4, split="none"),
        lambda: PackedDataset(stored, split="none"),
    ):
        with pytest.raises(UsageError) as error:
            make()
        assert str(error.value) == f"{stored.path}: {found}"


def test_no_rows_are_an_empty_batch(stored: Pack):
    batch = PackedDataset(stored, split="val", fields=FIELDS)[[]]
    assert (batch.image.shape, batch.label.shape, batch.text) == ((0, 3, *SHAPE[:2]), (0,), [])


def test_unknown_splits_are_a_sentence(stored: Pack, pack: Pack):
    for make in (lambda p, **o: PackedBatchDataset(p, 4, **o), PackedDataset):
        with pytest.raises(
            UsageError, match=r"has no split 'test'; its splits: .*train, val\. Pass one of these"
        ):
            make(stored, split="test")
        with pytest.raises(UsageError) as error:
            make(pack, split="test")
        assert str(error.value) == f"{pack.path}: has no split 'test'; its splits: none. Pass one of these."


def test_verify_takes_one_word(stored: Pack):
    with pytest.raises(UsageError) as error:
        open_pack(stored.path, verify="all")
    assert str(error.value) == "verify='all': is neither None nor 'blocks'. Pass one of them."


def test_damage_is_an_error_in_the_loop_only_where_it_is_looked_for(tmp_path: Path):
    """A flipped pixel: without verify it is loaded; with it, its block is refused, and the others are read."""
    pack = make_stored(tmp_path, "npy", "raw", (40, 1, 62))
    with open(Path(pack.path) / "00002" / "image.npy", "r+b") as file:
        file.seek(128 + 20 * int(np.prod(SHAPE)))
        file.write(b"\0\0\0\0\0\0\0\0\0")
    with PackedBatchDataset(pack, 9, split="all", output="numpy") as dataset:
        assert sum(len(batch.label) for batch in dataset) == ROWS
    with PackedBatchDataset(open_pack(pack.path, verify="blocks"), 9, split="all", output="numpy") as dataset:
        assert len(dataset.batch(0).label) == len(dataset.batch(11).label) + 5 == 9
        with pytest.raises(FormatError) as error:
            list(dataset)
    assert str(error.value) == (
        f"{pack.path}/00002: rows 16 to 31 of 'image' are damaged (their checksum differs)."
        " Run packer verify, or convert the images again."
    )


def test_a_shard_that_vanishes_is_a_sentence(tmp_path: Path):
    pack = make_stored(tmp_path, "npy", "jpeg", (40, 1, 62))
    shutil.rmtree(Path(pack.path) / "00001")
    with (
        PackedBatchDataset(pack, 9, split="all", output="numpy") as dataset,
        pytest.raises(FormatError) as error,
    ):
        list(dataset)
    assert str(error.value) == (
        f"{pack.path}/00001: cannot be read (No such file or directory). Check the name and the permissions."
    )


def test_images_of_their_own_sizes(tmp_path: Path):
    """JPEG rows without a common shape: a list with an image a row."""
    content = content_of("jpeg", 12)
    sizes = [(8 + row, 20 - row, 3 if row % 3 else 1) for row in range(12)]
    files = [jpeg.encode(np.full(size, 20 * row, np.uint8), 95) for row, size in enumerate(sizes)]
    codec = {"name": "jpeg", "shape": None, "quality": 95}
    fields = (replace(content.fields[0], codec=codec), *content.fields[1:])
    with begin(tmp_path / "p.h5", content, fields=fields, block_rows=12) as writer:
        writer.write_block(0, {"image": files, "label": content.labels, "text": content.texts})
        writer.finish(rows=12, ragged={"key": content.keys})
    pack = open_pack(tmp_path / "p.h5")
    with PackedBatchDataset(pack, 5, order="rows", output="numpy") as dataset:
        for batch in dataset:
            for image, label in zip(batch.image, batch.label.tolist(), strict=True):
                assert image.shape == (*sizes[label // 3][:2], 3)
                assert abs(image.astype(int) - 20 * (label // 3)).max() <= 2
    with PackedBatchDataset(pack, 5, order="rows") as dataset:
        batch = dataset.batch(0)
        assert [tuple(i.shape) for i in batch.image] == [
            (3, *sizes[k // 3][:2]) for k in batch.label.tolist()
        ]
    sample = PackedDataset(pack)[4]
    assert (sample.image.dtype, tuple(sample.image.shape)) == (torch.uint8, (3, 12, 16))


def test_shuffled_each_block_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_content(tmp_path / "p.h5", Content.random("gzip", ROWS), block_rows=4, seed=0)
    decoded: list[int] = []
    decode = CompressedRows._decode

    def count(self: CompressedRows, block: int, out: np.ndarray) -> None:
        decoded.append(block)
        decode(self, block, out)

    monkeypatch.setattr(CompressedRows, "_decode", count)
    options: Any = {"shuffle": True, "placement": "disk", "output": "numpy"}
    with PackedBatchDataset(tmp_path / "p.h5", 8, **options) as dataset:
        assert dataset.order == Blocks(256, 4)
        assert sum(len(batch.image) for batch in dataset) == ROWS
    assert sorted(decoded) == list(range(-(-ROWS // 4)))


def test_compressed_rows_that_were_not_shuffled_are_warned_of(tmp_path: Path):
    write_content(tmp_path / "p.h5", Content.random("gzip", ROWS), block_rows=4)
    options: Any = {"shuffle": True, "output": "numpy"}
    with pytest.warns(
        UserWarning, match=r"compressed in blocks of 4 and were not shuffled .* shuffle=False, or"
    ) as caught:
        dataset = PackedBatchDataset(tmp_path / "p.h5", 8, placement="disk", **options)
    assert [w.filename for w in caught] == [__file__]
    assert dataset.order == Rows()
    for more in ({"placement": "ram"}, {"placement": "disk", "order": "rows"}):
        PackedBatchDataset(tmp_path / "p.h5", 8, **options | more)


def test_whole_pictures_are_lists_and_their_sizes_come_where_they_are_named(
    photo_folder: Path, tmp_path: Path
):
    Image.new("RGB", (90, 30), (9, 8, 7)).save(photo_folder / "red" / "wide.png")
    for name, size in (("p.h5", "max=40"), ("q.h5", "max=20")):
        convert_images(photo_folder, tmp_path / name, size=size, store="jpeg")
    with PackedBatchDataset(tmp_path / "p.h5", 25, fields=["image", "height", "width"]) as dataset:
        (batch,) = dataset
    sizes = list(zip(batch.height.tolist(), batch.width.tolist(), strict=True))
    assert {*sizes} == {(33, 40), (13, 40)}
    assert [tuple(image.shape[1:]) for image in batch.image] == sizes
    with PackedBatchDataset([tmp_path / "p.h5", tmp_path / "q.h5"], 50) as dataset:
        images, labels = next(iter(dataset))
    assert {image.shape[1] for image in images} == {33, 13, 16, 6}
    assert labels.shape == (50,)
    assert PackedDataset(tmp_path / "p.h5")[0]._fields == ("image", "label")
