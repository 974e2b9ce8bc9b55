"""Several packs as one dataset: every row where it belongs, by the packs' weights, on any number of ranks."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.row_dataset import PackedDataset
from packer.orders.mixture import Mixture
from packer.orders.row_orders import Rows, Slices
from packer.orders.sampling import Weighted
from packer.packs.joined_pack import join_packs
from packer.packs.pack import Pack
from tests.format.packs import write_pack
from tests.load.conftest import ORDERS
from tests.read.conftest import ROWS, image_of, make_pack, make_stored

SMALL = 40
ALL = ROWS + SMALL


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> list[Pack]:
    """A pack of ROWS rows, and one of 40, a directory of .npy; rows of the second are numbered on from those of the first."""
    folder = tmp_path_factory.mktemp("mixed")
    return [make_pack(folder / "a.h5"), make_pack(folder / "b", SMALL)]


def mixed(
    packs: list[Pack], batch_size: int = 10, weights: tuple[float, ...] = (0.7, 0.3), **options: Any
) -> PackedBatchDataset:
    """A dataset of packs, each given as its path."""
    given = {"output": "numpy", "fields": ("image", "label", "row"), "seed": 4} | options
    return PackedBatchDataset(
        [(pack.path, weight) for pack, weight in zip(packs, weights, strict=True)], batch_size, **given
    )


def own(rows: np.ndarray) -> np.ndarray:
    """The number that a row has in its own pack."""
    return np.where(rows < ROWS, rows, rows - ROWS)


def check(batch: Any) -> list[int]:
    """See that a batch holds the rows whose numbers it has; return these."""
    assert (batch.label == 3 * own(batch.row)).all()
    for image, row in zip(batch.image, own(batch.row), strict=True):
        assert (image == image_of(int(row))).all()
    rows: list[int] = batch.row.tolist()
    return rows


@pytest.mark.parametrize("options", [{"shuffle": True}, {}, *({"order": order} for order in ORDERS)])
def test_batches_hold_the_packs_shares_and_rows_are_right(packs: list[Pack], options: dict[str, Any]) -> None:
    dataset = mixed(packs, **options)
    assert len(dataset) == 15
    counts = np.zeros(ALL, int)
    for _ in range(3):
        batches = [check(batch) for batch in dataset]
        for rows in batches[:-1]:
            assert sum(row < ROWS for row in rows) in (6, 7, 8)
        epoch = [row for rows in batches for row in rows]
        assert (len(epoch), sum(row < ROWS for row in epoch)) == (ALL, 100)
        counts += np.bincount(epoch, minlength=ALL)
    assert set(counts[:ROWS]) == {2, 3}
    assert set(counts[ROWS:]) == {3, 4}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("before", "after"), [((4, 2), (2, 5)), ((1, 8), (3, 4)), ((3, 3), (1, 10))])
def test_an_epoch_goes_on_with_another_number_of_ranks(
    packs: list[Pack], order: str, before: tuple[int, int], after: tuple[int, int]
) -> None:
    world, size = before
    alone = [row for batch in mixed(packs, world * size, order=order) for row in check(batch)]
    heads, states = [], []
    for rank in range(world):
        dataset = mixed(packs, size, order=order, rank=rank, world_size=world)
        batches = iter(dataset)
        heads.append([check(next(batches)) for _ in range(3)])
        states.append(json.loads(json.dumps(dataset.state_dict())))
    assert all(state == states[0] for state in states)
    tails = []
    for rank in range(after[0]):
        dataset = mixed(packs, after[1], order=order, rank=rank, world_size=after[0], seed=9, ends="uneven")
        dataset.load_state_dict(states[0])
        tails.append([check(batch) for batch in dataset])
    found = [
        row
        for ranks in (heads, tails)
        for step in range(max(map(len, ranks)))
        for rank in ranks
        if step < len(rank)
        for row in rank[step]
    ]
    assert found == alone


def test_the_rows_of_a_pack_follow_each_other_over_epochs_and_resuming(packs: list[Pack]) -> None:
    whole = mixed(packs, weights=(9, 1), order="rows")
    epochs = [[row for batch in whole for row in check(batch)] for _ in range(4)]
    small = [row for epoch in epochs for row in epoch if row >= ROWS]
    assert len(small) == 56
    assert sorted(small[:SMALL]) == list(range(ROWS, ALL))
    resumed = mixed(packs, weights=(9, 1), order="rows", seed=0)
    state = whole.state_dict() | {"epoch": 2, "rows": 70}
    resumed.load_state_dict(state)
    assert [row for batch in resumed for row in check(batch)] == epochs[2][70:]


def test_the_state_of_an_order_that_was_chosen_is_taken(packs: list[Pack]) -> None:
    blocks = mixed(packs, order="blocks")
    state = blocks.state_dict() | {"rows": 30}
    chosen = mixed(packs, shuffle=True)
    assert chosen.order.record() != blocks.order.record()
    chosen.load_state_dict(state)
    assert chosen.order.record() == blocks.order.record()
    with pytest.raises(
        UsageError, match="state_dict: was taken in the order 'blocks'; this dataset has 'rows'"
    ):
        mixed(packs, order="rows").load_state_dict(state)
    with pytest.raises(UsageError, match="state_dict: was taken with other weights"):
        mixed(packs, weights=(1, 1), shuffle=True).load_state_dict(state)


def test_an_epoch_is_as_long_as_asked_for(packs: list[Pack]) -> None:
    dataset = mixed(packs, order=Mixture("slices", rows=500))
    assert (len(dataset), dataset.rows) == (50, ALL)
    rows = [row for batch in dataset for row in check(batch)]
    assert (len(rows), sum(row < ROWS for row in rows)) == (500, 350)
    assert mixed(packs, order=Slices(3)).order.record()["orders"] == [{"name": "slices", "rows": 3}] * 2


def test_a_list_without_weights_is_one_pack(packs: list[Pack]) -> None:
    paths = [pack.path for pack in packs]
    options: dict[str, Any] = {"output": "numpy", "fields": ("image", "label", "row")}
    dataset = PackedBatchDataset(paths, 10, **options)
    assert [row for batch in dataset for row in check(batch)] == list(range(ALL))
    for shuffled in (
        PackedBatchDataset(paths, 10, shuffle=True, **options),
        PackedBatchDataset(packs, 10, order="slices", **options),
    ):
        assert sorted(row for batch in shuffled for row in check(batch)) == list(range(ALL))
    assert dataset.keys == [f"row/{row}" for row in own(np.arange(ALL))]
    assert dataset.targets == (3 * own(np.arange(ALL))).tolist()
    rows = PackedDataset(paths)
    assert (len(rows), int(rows[ROWS + 7].label)) == (ALL, 21)
    assert rows.pack.path == f"{paths[0]} + {paths[1]}"


def test_a_list_of_packs_is_shuffled_as_one_pack(tmp_path: Path) -> None:
    paths = []
    for name, rows in (("a.h5", 60), ("b.h5", 20)):
        write_pack(tmp_path / name, rows=rows, seed=1)
        paths.append(tmp_path / name)
    options: dict[str, Any] = {"output": "numpy", "fields": ("label", "row")}
    dataset = PackedBatchDataset(paths, 8, shuffle=True, **options)
    assert dataset.order == Rows()  # neighbours are rows of one pack
    for _ in range(3):
        assert sorted(row for batch in dataset for row in batch.row.tolist()) == list(range(80))
    assert PackedBatchDataset(paths, 8, order="blocks", **options).order.name == "blocks"
    some = PackedBatchDataset(paths, 8, shuffle=True, subset=range(60), **options)
    assert sorted(row for batch in some for row in batch.row.tolist()) == list(range(60))


def test_some_rows_of_a_mixture(packs: list[Pack]) -> None:
    chosen = [5, ROWS + 1, 3, ROWS + 9, 80, ROWS + 4, 7]
    dataset = mixed(packs, 5, weights=(1, 1), subset=chosen, order=Mixture("rows", rows=20))
    rows = [row for batch in dataset for row in check(batch)]
    assert set(rows) == set(chosen)
    assert sum(row < ROWS for row in rows) == 10
    assert dataset.targets == (3 * own(np.array(chosen))).tolist()
    assert len(dataset.dataset) == 7
    with pytest.raises(
        UsageError, match=r"pack 2 of 2: of .* its weight of 0.3 gives .*, and it has 0 to draw"
    ):
        mixed(packs, subset=slice(0, 50))


@pytest.mark.parametrize("store", ["raw", "jpeg"])
def test_shards_splits_and_ragged_fields(tmp_path: Path, store: str) -> None:
    packs = []
    for name, shards in (("one", None), ("two", (40, 1, 62))):
        (tmp_path / name).mkdir()
        packs.append(make_stored(tmp_path / name, "h5", store, shards))
    dataset = mixed(packs, fields=("image", "label", "text", "row"), split="train", shuffle=True)
    train = {*range(30), *range(50, 90)}
    assert dataset.rows == 140
    for batch in dataset:
        assert set(own(batch.row).tolist()) <= train
        assert (batch.label == 3 * own(batch.row)).all()
        assert list(batch.text) == [b"abcd"[: row % 5] for row in own(batch.row).tolist()]


def test_draws_of_augmentation_differ_where_a_row_comes_again(tmp_path: Path) -> None:
    from packer.augment import RandomHorizontalFlip

    pack, other = make_pack(tmp_path / "a.h5", 1), make_pack(tmp_path / "b.h5", 64)
    dataset = PackedBatchDataset(
        [(pack, 0.5), (other, 0.5)],
        64,
        shuffle=True,
        fields=("image", "row"),
        augment=[RandomHorizontalFlip()],
    )
    images = [
        image for batch in dataset for image, row in zip(batch.image, batch.row, strict=True) if row == 0
    ]
    assert len(images) == 33
    flipped = {bytes(image.contiguous().numpy().tobytes()) for image in images}
    assert len(flipped) == 2


def test_statistics_are_those_of_the_rows_drawn(packs: list[Pack]) -> None:
    given = []
    for pack, mean in zip(packs, (0.2, 0.6), strict=True):
        statistics = {"image": {"mean": [mean], "std": [0.1]}}
        given.append(replace(pack, header=replace(pack.header, statistics=statistics), shards=()))
    found = join_packs(given, None, [3.0, 1.0]).header.normalization
    assert found["mean"] == pytest.approx([0.3])
    assert found["std"] == pytest.approx([(0.75 * 0.05 + 0.25 * 0.37 - 0.09) ** 0.5])


def test_statistics_are_those_of_the_split_train(packs: list[Pack]) -> None:
    given = []
    for pack, mean, rows in zip(packs, (0.2, 0.6), (10, 30), strict=True):
        measured = [{"image": {"mean": [value], "std": [0.1]}} for value in (0.9, mean)]
        header = replace(pack.header, statistics=measured[0], train_statistics=measured[1])
        given.append(replace(pack, header=replace(header, splits={"train": ((2, 2 + rows),)}), shards=()))
    assert join_packs(given).header.normalization["mean"] == pytest.approx([0.5])
    assert join_packs(given, None, [3.0, 1.0]).header.normalization["mean"] == pytest.approx([0.3])
    bare = replace(given[1].header, train_statistics={}, splits={})
    beside = [given[0], replace(given[1], header=bare)]  # the joined rows have a split train, the first's
    assert join_packs(beside).header.normalization["mean"] == pytest.approx([0.2])
    unknown = replace(bare, splits={"train": ((0, 5),)})  # of an older packer: all rows
    beside = [given[0], replace(given[1], header=unknown)]
    assert join_packs(beside).header.normalization["mean"] == pytest.approx([0.9])


@pytest.mark.parametrize("placement", ["disk", "ram"])
def test_placements(packs: list[Pack], placement: str) -> None:
    with mixed(packs, order="rows", placement=placement) as dataset:
        first = [check(batch) for batch in dataset]
        dataset.set_epoch(0)
        assert [check(batch) for batch in dataset] == first


def double(sample: dict[str, Any]) -> dict[str, Any]:
    """A user's function."""
    return {"label": 2 * sample["label"]}


def test_a_python_transform_reads_all_packs(packs: list[Pack]) -> None:
    plain = [check(batch) for batch in mixed(packs, shuffle=True)]
    with mixed(packs, shuffle=True, transform=double) as dataset:
        for rows, batch in zip(plain, dataset, strict=True):
            assert batch.row.tolist() == rows
            assert batch.label.tolist() == (6 * own(np.array(rows))).tolist()


def test_a_dataloader(packs: list[Pack]) -> None:
    from torch.utils.data import DataLoader

    expected = mixed(packs, shuffle=True, output="torch")
    loader: Any = DataLoader(mixed(packs, shuffle=True, output="torch"), batch_size=None)
    for _ in range(2):
        assert [batch.row.tolist() for batch in loader] == [batch.row.tolist() for batch in expected]


def test_a_mixture_is_pickled_and_checked_at_first_use(packs: list[Pack]) -> None:
    given: Any = [
        (replace(pack, verify=True), weight) for pack, weight in zip(packs, (0.7, 0.3), strict=True)
    ]
    dataset = PackedBatchDataset(
        given, 10, output="numpy", fields=("image", "label", "row"), seed=4, shuffle=True
    )
    copy = pickle.loads(pickle.dumps(dataset))
    assert [check(batch) for batch in copy] == [check(batch) for batch in dataset]
    assert "Mixture(100 of 103 rows by Rows(), 43 of 40 rows by Rows())" in repr(dataset)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], r"path=\[\]: names no pack; at least one is needed."),
        (7, "path=7: is not the path of a pack."),
        ([("a", 0.5), "b"], "path: 1 of 2 packs have a weight; all or none must have one."),
        ([("a", 0), ("b", 1)], "a.h5: its weight is 0; finite numbers above 0 are allowed."),
        ([("a", "much"), ("b", 1)], "a.h5: its weight is 'much'; finite numbers above 0 are allowed."),
        ([("a", float("nan")), ("b", 1)], "a.h5: its weight is nan;"),
        ([("a", 0.5), ("a", 0.5)], "a.h5: is in the list twice; each pack is allowed once."),
        (["a", 5], "5.: is not the path of a pack."),
    ],
)
def test_lists_that_mean_nothing(packs: list[Pack], given: Any, sentence: str) -> None:
    names = {"a": packs[0].path, "b": packs[1].path}

    def named(one: Any) -> Any:
        return (names[one[0]], one[1]) if isinstance(one, tuple) else names.get(one, one)

    with pytest.raises(UsageError, match=sentence):
        PackedBatchDataset([named(one) for one in given] if isinstance(given, list) else given, 4)


def test_what_goes_with_no_weights(packs: list[Pack]) -> None:
    with pytest.raises(UsageError, match=r"order=Mixture\(...\): the dataset has no packs with weights."):
        PackedBatchDataset([pack.path for pack in packs], 4, order=Mixture())
    with pytest.raises(UsageError, match="path: its packs have weights, by which batches are drawn"):
        PackedDataset([(pack.path, 1) for pack in packs])
    with pytest.raises(UsageError, match="Mixture: the order of each pack is 'weighted'"):
        mixed(packs, order=Weighted.balanced())
    with pytest.raises(UsageError, match="shuffle=True with order='sequential'"):
        mixed(packs, shuffle=True, order="sequential")
    with pytest.raises(UsageError, match=r"a.h5: has no split 'train'; its splits: none."):
        mixed(packs, split="train")
