"""torchdata's StatefulDataLoader and torch's DataLoader around a dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packer.load.batches import PackedBatchDataset
from tests.integrations.rows import dataset_of, epochs_of, is_documented, joined, rows_of

torch = pytest.importorskip("torch")
stateful = pytest.importorskip("torchdata.stateful_dataloader")
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it


class Batches(torch.utils.data.IterableDataset):
    """A PackedBatchDataset for loaders that want an IterableDataset; for num_workers=0: it has threads of its own."""

    def __init__(self, data: PackedBatchDataset) -> None:
        self.data = data
        self.state_dict, self.load_state_dict = data.state_dict, data.load_state_dict

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


def loader_of(pack: Path, *, iterable: bool = False, workers: int = 0, **options: Any) -> tuple[Any, Any]:
    dataset = dataset_of(pack, **options)
    source = Batches(dataset) if iterable else dataset
    return stateful.StatefulDataLoader(source, batch_size=None, num_workers=workers), dataset


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_by_number_go_on(numbers: Path, workers: int):
    epochs = epochs_of(numbers, 3)
    loader, dataset = loader_of(numbers, workers=workers)
    dataset.set_epoch(1)
    head = []
    for step, batch in enumerate(loader, 1):
        head += rows_of(batch)
        if step == 4:
            state = json.loads(json.dumps(loader.state_dict()))
            break
    again, dataset = loader_of(numbers, workers=workers, seed=99)
    again.load_state_dict(state)
    assert head + [row for batch in again for row in rows_of(batch)] == epochs[1]


@pytest.mark.parametrize("stop", [1, 4, 11, 12])  # 12: when the loop has ended
def test_an_iterable_goes_on_in_any_number_of_ranks(numbers: Path, stop: int):
    epochs = epochs_of(numbers, 3)
    loader, _ = loader_of(numbers, iterable=True)
    assert [row for batch in loader for row in rows_of(batch)] == epochs[
        0
    ]  # and the next pass is the next epoch
    head = []
    for step, batch in enumerate(loader, 1):
        head += rows_of(batch)
        if step == stop:
            state = json.loads(json.dumps(loader.state_dict()))
    if stop == 12:
        state = json.loads(json.dumps(loader.state_dict()))
    assert head == epochs[1]
    rests: list[list[list[list[int]]]] = []
    for rank in range(3):
        again, _ = loader_of(numbers, iterable=True, seed=99, rank=rank, world_size=3)
        again.load_state_dict(state)
        rests.append([[rows_of(batch) for batch in again] for _ in range(2)])
    coming = [epochs[1][10 * stop :], epochs[2]] if stop < 11 else [epochs[2]]
    for number, epoch in enumerate(coming):
        assert joined([rest[number] for rest in rests]) == epoch


@pytest.mark.parametrize("iterable", [False, True])
def test_torchs_own_loader(numbers: Path, iterable: bool):
    dataset = dataset_of(numbers)
    loader = torch.utils.data.DataLoader(Batches(dataset) if iterable else dataset, batch_size=None)
    for number, epoch in enumerate(epochs_of(numbers, 2)):
        if not iterable:
            dataset.set_epoch(number)
        assert len(loader) == 11
        assert [row for batch in loader for row in rows_of(batch)] == epoch


def test_the_docs_show_the_same_iterable():
    assert is_documented(Batches)
