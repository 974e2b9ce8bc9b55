"""torchdata's StatefulDataLoader around a dataset; torch's own DataLoader is in tests/load/test_wrappers.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.rows import dataset_of, epochs_of, joined, rows_of

torch = pytest.importorskip("torch")
stateful = pytest.importorskip("torchdata.stateful_dataloader")
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it


def loader_of(pack: Path, **options: Any) -> tuple[Any, Any]:
    dataset = dataset_of(pack, **options)
    return stateful.StatefulDataLoader(dataset, batch_size=None), dataset


def test_it_goes_on(numbers: Path):
    epochs = epochs_of(numbers, 3)
    loader, dataset = loader_of(numbers)
    dataset.set_epoch(1)
    head = []
    for step, batch in enumerate(loader, 1):
        head += rows_of(batch)
        if step == 4:
            state = json.loads(json.dumps(loader.state_dict()))
            break
    again, dataset = loader_of(numbers, seed=99)
    again.load_state_dict(state)
    assert head + [row for batch in again for row in rows_of(batch)] == epochs[1]


@pytest.mark.parametrize("stop", [1, 4, 11, 12])  # 12: when the loop has ended
def test_it_goes_on_in_any_number_of_ranks(numbers: Path, stop: int):
    epochs = epochs_of(numbers, 3)
    loader, _ = loader_of(numbers)
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
        again, _ = loader_of(numbers, seed=99, ends="uneven", rank=rank, world_size=3)
        again.load_state_dict(state)
        rests.append([[rows_of(batch) for batch in again] for _ in range(2)])
    coming = [epochs[1][10 * stop :], epochs[2]] if stop < 11 else [epochs[2]]
    for number, epoch in enumerate(coming):
        assert joined([rest[number] for rest in rests]) == epoch


def test_a_batch_whose_step_raised_is_read_again(numbers: Path):
    """The loader holds its iterator, so the state is asked for in the handler."""
    epochs = epochs_of(numbers, 1)
    loader, _ = loader_of(numbers)
    head = []
    try:
        for step, batch in enumerate(loader):
            if step == 3:
                raise KeyboardInterrupt
            head += rows_of(batch)
    except KeyboardInterrupt:
        state = json.loads(json.dumps(loader.state_dict()))
    again, _ = loader_of(numbers, seed=99)
    again.load_state_dict(state)
    assert head + [row for batch in again for row in rows_of(batch)] == epochs[0]
