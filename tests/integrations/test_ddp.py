"""Real processes that wait for each other at every step: none hangs, and together they are given the sequence."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.rows import ROWS, dataset_of, epochs_of, joined, rows_of

torch = pytest.importorskip("torch")


@pytest.fixture(
    scope="module",
    params=[pytest.param(2, marks=pytest.mark.soak), 3, pytest.param(4, marks=pytest.mark.soak)],
)
def ranks(
    request: pytest.FixtureRequest, numbers: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[Any]:
    """What each process of 2, of 3, or of 4, was given."""
    from tests.integrations.ranks import run

    folder, world_size = tmp_path_factory.mktemp("ranks"), request.param
    alone = dataset_of(numbers, ends="pad")
    next(iter(alone))
    state = alone.state_dict()
    args = (world_size, folder, dataset_of(numbers, ends="pad"), state)
    torch.multiprocessing.start_processes(run, args, nprocs=world_size, start_method="forkserver")
    return [json.loads((folder / f"{world_size}-{rank}.json").read_text()) for rank in range(world_size)]


def test_a_dataset_follows_the_processes_whenever_it_was_made(ranks: list[Any]):
    for rank, found in enumerate(ranks):
        assert found["alone"] == found["unvouched"] == [0, 1]
        assert found["torchrun"] == found["initialised"] == [rank, len(ranks)]


@pytest.mark.parametrize("name", ["pad", "pickled", "drop", "uneven", "even"])
def test_together_they_are_given_the_sequence(ranks: list[Any], numbers: Path, name: str):
    whole = 10 * len(ranks)
    for number, epoch in enumerate(epochs_of(numbers, 2)):
        given = [found[name][number] for found in ranks]
        assert len({len(batches) for batches in given}) == 1
        if name == "uneven":
            assert joined(given) == epoch
        elif name == "even":
            assert joined(given) == epoch + epoch[: -(ROWS % whole) % len(ranks)]
            assert len({len(batches[-1]) for batches in given}) == 1
        elif name == "drop":
            assert joined(given) == epoch[: ROWS // whole * whole]
        else:
            assert joined(given) == epoch + epoch[: -ROWS % whole]
            assert len(given[0]) == ranks[0]["length"]


def test_they_go_on_where_one_stopped_and_one_where_they_stopped(ranks: list[Any], numbers: Path):
    epochs = epochs_of(numbers, 2)
    assert [joined([found["tail"][number] for found in ranks]) for number in range(2)] == [
        epochs[0][10:],
        epochs[1],
    ]
    assert all(before["state"] == after["state"] for before, after in pairwise(ranks))
    alone = dataset_of(numbers, 7)
    alone.load_state_dict(ranks[0]["state"])
    assert (
        joined([found["head"] for found in ranks]) + [row for b in alone for row in rows_of(b)] == epochs[0]
    )


def test_ranks_that_differ_are_warned_and_join(ranks: list[Any], numbers: Path):
    left = ROWS - 102 // len(ranks) * len(ranks)
    assert [len(found["joined"]) for found in ranks] == [2] * left + [1] * (len(ranks) - left)
    assert joined([found["joined"] for found in ranks]) == epochs_of(numbers, 1)[0]
    for found in ranks:
        (said,) = found["warned"]
        assert "so some ranks get a batch less" in said
