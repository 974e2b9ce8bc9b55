from __future__ import annotations

import time

import pytest

from packer.errors import UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.stats import Stats
from packer.packs.pack import Pack
from tests.read.conftest import ROWS

torch = pytest.importorskip("torch")


def test_what_an_epoch_cost(pack: Pack):
    dataset = PackedBatchDataset(pack, 10)
    assert dataset.stats() == Stats()
    for number, _ in enumerate(dataset, 1):
        time.sleep(0.01)
        assert dataset.stats().batches == number
    stats = dataset.stats()
    assert (stats.epoch, stats.batches, stats.rows) == (0, 11, ROWS)
    assert stats.nbytes == ROWS * (8 * 6 * 3 + 8)
    assert 0.11 <= stats.step_seconds <= stats.seconds
    assert stats.wait_seconds + stats.step_seconds <= stats.seconds
    assert stats.read_seconds > 0
    assert str(stats).startswith("epoch 0: 11 batches, 103 rows in ")
    list(dataset)
    assert dataset.stats().epoch == 1


@pytest.mark.parametrize(
    ("changed", "limit"),
    [
        ({}, "training"),
        ({"wait_seconds": 5, "read_seconds": 8, "readers": 2}, "reading"),
        ({"wait_seconds": 5, "read_seconds": 8, "readers": 2, "transform_seconds": 5}, "transform"),
        ({"wait_seconds": 5, "transform_seconds": 20, "processes": 10, "copy_seconds": 3}, "copy"),
        ({"augment_seconds": 6, "read_seconds": 2}, "augmenting"),
    ],
)
def test_the_slowest_stage_is_the_limit(changed: dict[str, float], limit: str):
    assert Stats(seconds=10, **changed).limit == limit  # type: ignore[arg-type]


def test_the_line_is_readable():
    stats = Stats(2, 100, 25_600, 5_000_000_000, 2.0, 0.5, 1.4, 1.9)
    assert str(stats) == (
        "epoch 2: 100 batches, 25,600 rows in 2 s (12,800 rows/s, 2.5 GB/s); waited 5.00 ms a batch, 25% of the time;"
        " limited by reading"
    )


def test_replay_gives_an_epochs_number_of_batches_from_memory(pack: Pack):
    dataset = PackedBatchDataset(pack, 10, order="rows")
    batches = list(dataset.replay(3))
    assert len(batches) == len(dataset)
    assert all(batches[k] is batches[k % 3] for k in range(11))
    assert torch.equal(batches[1].label, dataset.batch(1).label)
    assert len(list(dataset.replay(99))) == 11
    assert dataset.epoch == 0
    first = next(iter(dataset))
    assert torch.equal(first.label, batches[0].label)
    with pytest.raises(UsageError, match="count=0"):
        dataset.replay(0)
