"""Packs whose fields are joined, loaded as a pack that has all of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packer.filling.opening
from packer import Mixture, PackedBatchDataset, PackedDataset, Weighted, create, join_fields, open_pack
from packer.augment import RandomCrop, RandomHorizontalFlip
from packer.orders.regions import Regions
from packer.packs.joined_fields import FieldsPack
from packer.packs.pack import Pack
from tests.load.conftest import ORDERS
from tests.remote.conftest import server as server
from tests.remote.object_server import ObjectServer

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

ROWS = 60
FIELDS = ("image", "label", "mask", "embedding", "boxes", "note")


def sample(number: int) -> dict[str, Any]:
    draws = np.random.default_rng(number)
    return {
        "image": draws.integers(0, 256, (8, 6, 3), np.uint8),
        "label": number % 3,
        "key": f"sample/{number}",
        "mask": draws.integers(0, 5, (8, 6), np.uint8),
        "embedding": draws.random(5, np.float32),
        "boxes": draws.uniform(0, 6, (1 + number % 3, 4)).astype(np.float32),
        "note": "n" * (number % 5),
    }


def write(out: Path, names: Sequence[str], numbers: Sequence[int], **options: Any) -> Pack:
    forms = {name: "float32[*,4]" if name == "boxes" else None for name in names}
    with create(out, fields=forms, **{"shuffle": False} | options) as builder:
        for number in numbers:
            builder.write(**{name: value for name, value in sample(number).items() if name in names})
    return open_pack(out)


SPLIT = {"split": "train=0.7,val=0.3", "classes": ["a", "b", "c"]}
FIRST, OTHERS = ("image", "label", "key"), ("mask", "embedding", "boxes", "note", "key")
Join = Callable[[], Pack]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """The pack that has all fields, in the order of its splits."""
    return write(tmp_path_factory.mktemp("whole") / "whole.h5", sample(0), range(ROWS), **SPLIT)


WAYS = ("rows", "keys", "npy", "shards", "gzip", "joined twice")


@pytest.fixture(scope="module", params=WAYS)
def joined(request: pytest.FixtureRequest, whole: Pack, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Packs of FIRST and OTHERS, joined."""
    return make(tmp_path_factory.mktemp("joined"), whole, request.param)


def make(folder: Path, whole: Pack, way: str, suffix: str = ".h5") -> Pack:
    numbers = [int(key.removeprefix("sample/")) for key in whole.keys()]
    first = write(folder / f"first{suffix}", FIRST, range(ROWS), **SPLIT)
    assert first.keys() == whole.keys()
    match = None
    options: dict[str, Any] = {}
    if way == "keys":
        numbers, match = [*np.random.default_rng(0).permutation(ROWS + 9).tolist()], "keys"
    elif way == "gzip":
        options = {"store": "gzip"}
    elif way == "shards":
        options = {"shards": 3}
    out = folder / ("others" if way in ("npy", "shards") else f"others{suffix}")
    if way != "joined twice":
        return join_fields([first, write(out, OTHERS, numbers, **options)], match)
    some = join_fields([first, write(folder / "b.h5", ("mask", "note", "key"), numbers)])
    return join_fields([some, write(folder / "c.h5", ("embedding", "boxes", "key"), numbers)])


def same(one: Any, other: Any) -> None:
    """See that two batches, or two rows, are equal, fields in any order."""
    assert sorted(one._fields) == sorted(other._fields)
    for name in one._fields:
        mine, its = getattr(one, name), getattr(other, name)
        alone = not isinstance(mine, (list, tuple))
        for own, expected in [(mine, its)] if alone else zip(mine, its, strict=True):
            assert np.array_equal(np.asarray(own), np.asarray(expected)), name


def check(joined: Any, whole: Any, epochs: int = 2, **options: Any) -> None:
    options = {"batch_size": 8, "output": "numpy", "fields": FIELDS, "seed": 5} | options
    with PackedBatchDataset(joined, **options) as mine, PackedBatchDataset(whole, **options) as its:
        assert len(mine) == len(its)
        for _ in range(epochs):
            for one, other in zip(mine, its, strict=True):
                same(one, other)
        assert (mine.classes, mine.targets, mine.keys) == (its.classes, its.targets, its.keys)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("split", ["train", "all"])
def test_batches_of_all_orders(joined: Pack, whole: Pack, order: str, split: str):
    check(joined, whole, order=order, split=split)


@pytest.mark.parametrize("placement", ["disk", "ram"])
def test_what_datasets_are_asked_for(joined: Pack, whole: Pack, placement: str):
    options: dict[str, Any] = {"placement": placement, "split": "all"}
    check(joined, whole, order=Weighted.balanced("label"), **options)
    check(joined, whole, subset=["sample/7", "sample/3", "sample/40"], **options)
    check(joined, whole, classes=["b"], order="rows", **options)
    for rank in range(3):
        check(joined, whole, order="slices", rank=rank, world_size=3, ends="uneven", **options)


def test_masks_and_boxes_of_another_pack_move_with_the_images(joined: Pack, whole: Pack):
    augment = [RandomHorizontalFlip(), RandomCrop(5)]
    check(joined, whole, augment=augment, output="torch", shuffle=True, split="train")


def twice_embedding(sample: dict[str, Any]) -> dict[str, Any]:
    return {"embedding": 2 * sample["embedding"], "label": sample["label"]}


def test_python_transforms_and_processes_of_a_loader(
    joined: Pack, whole: Pack, request: pytest.FixtureRequest
):
    check(joined, whole, 1, transform=twice_embedding, split="train")
    rows, expected = (PackedDataset(pack, fields=FIELDS, split="val") for pack in (joined, whole))
    pickled = "joined twice" in request.node.name  # that all can be pickled is tested below
    for start_method in ("fork", "forkserver") if pickled else ("fork",):
        loader = DataLoader(
            rows, batch_size=None, sampler=[3, 0, 5], num_workers=1, multiprocessing_context=start_method
        )
        for found, number in zip(loader, (3, 0, 5), strict=True):
            same(found, expected[number])


def test_rows_and_what_a_pack_tells(joined: Pack, whole: Pack):
    rows, expected = (PackedDataset(pack, fields=FIELDS, split="all") for pack in (joined, whole))
    same(rows[::-7], expected[::-7])
    key = whole.keys()[11]
    same(rows[key], expected[key])
    same(rows[[key, "sample/2"]], expected[[key, "sample/2"]])
    coded = any(f.compressed for f in joined.fields)
    for name in ("label",) if coded else ("label", "mask", "embedding"):
        assert (joined.read(name, 5, 33) == whole.read(name, 5, 33)).all()
        assert (joined.read(name) == whole.read(name)).all()
        for span in ((40, 40), (60, 61), (70, 80), (58, 99)):
            assert (joined.read(name, *span) == whole.read(name, *span)).all()
            assert joined.read(name, *span).shape == whole.read(name, *span).shape
    assert joined.read_ragged("note", 7, 50) == whole.read_ragged("note", 7, 50)
    assert joined.keys(50) == whole.keys(50)
    assert joined.rows_of([key]).tolist() == [11]
    header = joined.header
    assert (header.splits, header.seed, header.classes) == (
        whole.header.splits,
        whole.header.seed,
        ("a", "b", "c"),
    )
    assert header.normalization == whole.header.normalization
    with pytest.raises(ValueError, match="'note' is not stored in one piece"):
        joined.read("note")
    assert [line.rpartition(": ")[2] for line in joined.describe()][-1].endswith("note") or joined.shards[1:]


def test_an_epoch_goes_on_where_it_was_left_on_other_ranks(joined: Pack, whole: Pack):
    options: dict[str, Any] = {"order": "blocks", "output": "numpy", "fields": FIELDS, "split": "train"}
    with PackedBatchDataset(pickle.loads(pickle.dumps(joined)), 4, rank=0, world_size=2, **options) as begun:
        next(it := iter(begun))
        state = begun.state_dict()
        del it
    with PackedBatchDataset(joined, 8, **options) as mine, PackedBatchDataset(whole, 8, **options) as its:
        mine.load_state_dict(state)
        its.load_state_dict(state)
        for one, other in zip(mine, its, strict=True):
            same(one, other)


@pytest.fixture
def parts(tmp_path: Path) -> list[tuple[Pack, Pack]]:
    """Two whole packs, each beside its rows in two packs that are joined, once by the keys."""
    made = []
    for name, numbers in (("a", range(30)), ("b", range(30, 50))):
        classes = ["a", "b", "c"]
        whole = write(tmp_path / f"{name}.h5", sample(0), numbers, classes=classes)
        first = write(tmp_path / f"{name}1.h5", FIRST, numbers, classes=classes)
        others = write(tmp_path / f"{name}2.h5", OTHERS, numbers if name == "a" else range(50, 20, -1))
        made.append((join_fields([first, others], None if name == "a" else "keys"), whole))
    return made


def test_lists_and_mixtures_of_joined_packs(parts: list[tuple[Pack, Pack]]):
    joined, whole = zip(*parts, strict=True)
    for order in (None, "rows", "slices"):
        check(list(joined), list(whole), order=order, placement="ram" if order == "rows" else "disk")
    mixed = [list(zip(packs, (0.7, 0.3), strict=True)) for packs in (joined, whole)]
    check(*mixed, order=Mixture(rows=40), shuffle=True)
    check(*mixed, order=Mixture(rows=12), subset=["sample/45", "sample/3", "sample/31", "sample/4"])
    check([joined[0], whole[1]], list(whole), subset=["sample/45", "sample/3", "sample/31"])
    rows, expected = PackedDataset(list(joined), fields=FIELDS), PackedDataset(list(whole), fields=FIELDS)
    same(rows[::3], expected[::3])
    same(rows["sample/44"], expected["sample/44"])
    assert (rows.pack.read("embedding", 25, 35) == expected.pack.read("embedding", 25, 35)).all()
    assert rows.pack.read_ragged("note", 20, 40) == expected.pack.read_ragged("note", 20, 40)
    assert rows.pack.rows_of(["sample/44", "sample/2"]).tolist() == [44, 2]


def test_equal_files_joined_in_another_way_are_other_rows_in_memory(tmp_path: Path):
    first = write(tmp_path / "a.h5", ("embedding", "key"), range(20))
    with create(tmp_path / "b.h5", shuffle=False) as builder:
        builder.write_rows(embedding=-first.read("embedding"), key=first.keys())
    names = [{"embedding": "one"}, {"embedding": "two"}]
    packs = [join_fields([(tmp_path / "a.h5", names[i]), (tmp_path / "b.h5", names[1 - i])]) for i in (0, 1)]
    options: dict[str, Any] = {"batch_size": 20, "output": "numpy", "placement": "ram", "fields": ["one"]}
    with PackedBatchDataset(packs[0], **options) as held:
        list(held)
        list(held)
        with PackedBatchDataset(packs[1], **options) as beside:
            list(beside)
            assert (next(iter(beside)).one == -first.read("embedding")).all()
    assert packs[0].origin("one") != packs[1].origin("one")


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("way", ["rows", "keys", "gzip"])
def test_packs_at_urls(tmp_path: Path, server: ObjectServer, whole: Pack, way: str, cached: bool):
    joined = make(tmp_path, whole, way)
    urls = []
    for pack in joined.shards:
        server.objects[f"bucket/{pack.name}"] = Path(pack.path).read_bytes()
        urls.append(f"s3://bucket/{pack.name}")
    if cached:
        opened: list[Any] = [packer.filling.opening.open_pack(url, tmp_path / "cache") for url in urls]
    else:
        opened = [joined.shards[0].path, urls[1]]
    match = "keys" if way == "keys" else None
    remote = join_fields(opened, match)
    with PackedBatchDataset(remote, 8, shuffle=True, split="all") as dataset:
        assert isinstance(dataset.order, Regions)
    for order in ("rows", "regions"):
        check(remote, whole, order=order, split="train", placement="disk")
    check([remote], [whole], shuffle=True, split="all", placement="disk", order="rows")
    assert remote.rows_of(["sample/9"]).tolist() == whole.rows_of(["sample/9"]).tolist()
    rows = PackedDataset(remote, fields=FIELDS, split="val")
    same(
        rows["sample/" + rows.keys[4].removeprefix("sample/")],
        PackedDataset(whole, fields=FIELDS, split="val")[4],
    )
    rows.close()


def test_blocks_are_compared_with_their_checksums(tmp_path: Path, whole: Pack):
    for way in ("rows", "keys", "gzip"):
        (tmp_path / way).mkdir()
        joined = make(tmp_path / way, whole, way)
        opened = [packer.filling.opening.open_pack(pack.path, verify="blocks") for pack in joined.shards]
        match = "keys" if way == "keys" else None
        verified = join_fields(opened, match)
        check(verified, whole, split="all")
        extent = opened[1].header.extents["embedding"][0]
        with open(opened[1].path, "r+b") as file:
            file.seek(extent.offset + 12)
            file.write(b"\x55\xaa")
        with (
            PackedBatchDataset(verified, 60, split="all") as dataset,
            pytest.raises(Exception, match=r"others\.h5: rows 0 to .* of 'embedding' are damaged"),
        ):
            list(dataset)


def test_a_pack_that_was_replaced_is_told(tmp_path: Path, whole: Pack):
    joined = make(tmp_path, whole, "rows")
    assert isinstance(joined, FieldsPack)
    dataset = PackedDataset(replace(joined), fields=["embedding"], split="all")
    write(tmp_path / "others.h5", OTHERS, range(ROWS), overwrite=True, seed=9)
    write(tmp_path / "others.h5", OTHERS, range(ROWS + 1), overwrite=True)
    with pytest.raises(Exception, match=r"others\.h5: was replaced or changed after it was opened"):
        dataset[0]
