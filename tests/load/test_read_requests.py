"""Small batches are read several at a time; whoever gets them need not know."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from packer.load.batch_dataset import PackedBatchDataset
from packer.orders.epochs import spans
from packer.packs.pack import Pack
from tests.load.conftest import ORDERS
from tests.load.test_batch_dataset import check
from tests.read.conftest import ROWS

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("together", [1, 2, 3, 64])
def test_any_number_of_batches_at_once_gives_the_same(
    pack: Pack, order: str, together: int, monkeypatch: pytest.MonkeyPatch
):
    def epochs(**options) -> list[list[int]]:
        with PackedBatchDataset(pack, 7, order=order, seed=3, **options) as dataset:
            return [check(batch) for _ in range(2) for batch in dataset]

    monkeypatch.setattr("packer.load.batch_engine.REQUEST_BATCHES", 1)
    expected = epochs()
    monkeypatch.setattr("packer.load.batch_engine.REQUEST_BATCHES", together)
    assert epochs() == epochs(output="numpy") == epochs(prefetch=0) == expected
    ranked = [epochs(rank=rank, world_size=2, ends="uneven") for rank in range(2)]
    assert sorted(row for rank in ranked for batch in rank for row in batch) == sorted(2 * list(range(ROWS)))


def test_draws_follow_their_batches(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    from packer.augment import RandomCrop

    def images() -> list[torch.Tensor]:
        dataset = PackedBatchDataset(pack, 7, order="rows", augment=[RandomCrop((6, 4))])
        return [batch.image.clone() for batch in dataset]

    many = images()
    monkeypatch.setattr("packer.load.batch_engine.REQUEST_BATCHES", 1)
    assert all(torch.equal(a, b) for a, b in zip(many, images(), strict=True))


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_kept_labels_do_not_keep_the_images_memory(pack: Pack, output: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("packer.load.batch_engine.REQUEST_BYTES", 0)
    monkeypatch.setattr("packer.load.batch.SMALL_SHARE", 8)
    dataset = PackedBatchDataset(pack, 5, output=output)
    labels = [batch.label for _ in range(3) for batch in dataset]
    gc.collect()
    assert np.concatenate(labels).tolist() == 3 * [3 * row for row in range(ROWS)]
    assert dataset._running()._slots.allocated <= 5


def test_kept_batches_stay_as_they_were_while_their_neighbours_go(pack: Pack):
    dataset = PackedBatchDataset(pack, 5, order="rows")
    kept = [batch for _ in range(6) for number, batch in enumerate(dataset) if number % 7 == 3]
    assert len([row for batch in kept for row in check(batch)]) == 6 * 3 * 5


def test_batches_are_writable_and_one_does_not_reach_into_another(pack: Pack):
    batches = list(PackedBatchDataset(pack, 5))
    batches[1].image.zero_()
    check(batches[0])
    check(batches[2])


@pytest.mark.parametrize("most", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7, 8, 100, 1000])
def test_the_first_batch_waits_for_no_other_and_all_are_read_once(steps: int, most: int):
    found = list(spans(steps, most))
    assert [step for first, last in found for step in range(first, last)] == list(range(steps))
    assert all(last - first <= most for first, last in found)
    assert not steps or found[0] == (0, 1)
    assert len(found) <= steps / most + most.bit_length() + 1
