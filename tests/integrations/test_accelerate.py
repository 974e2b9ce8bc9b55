"""accelerate on 3 ranks: 641 rows, of which the last batches have two for three ranks. Each comes, and is counted, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.rows import MANY, joined, sequences
from tests.read.conftest import make_pack

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

WORLD, BATCH = 3, 71
WHOLE = WORLD * BATCH


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbered") / "p.h5"
    make_pack(path, MANY)
    return path


@pytest.fixture(scope="module")
def ranks(numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank was given."""
    from tests.integrations.accelerated import run

    folder = tmp_path_factory.mktemp("ranks")
    args = (WORLD, folder, str(numbered), BATCH)
    torch.multiprocessing.start_processes(run, args, nprocs=WORLD, start_method="forkserver")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("case", ["dataset", "DataLoader"])
def test_every_row_is_trained_on(ranks: list[dict[str, Any]], numbered: Path, case: str):
    for number, expected in enumerate(sequences(numbered, WHOLE, WORLD, 2), 1):
        given = [found[case][number] for found in ranks]
        assert {len(batches) for batches in given} == {found[case][0] for found in ranks}
        assert len(expected) - MANY == -MANY % WORLD
        assert joined(given) == expected


@pytest.mark.parametrize("case", ["DataLoader", "shuffled", "of batches", "split", "dispatched"])
def test_metrics_of_rows_count_each_once(ranks: list[dict[str, Any]], case: str):
    every = ranks[0]["rows"][case]
    assert sorted(every) == [*range(MANY)]
    assert (every == sorted(every)) == (case != "shuffled")
    assert all(found["rows"][case] == every for found in ranks)


def test_metrics_of_batches_count_each_row_once(ranks: list[dict[str, Any]]):
    for found in ranks:
        for ends in ("even", "pad"):
            assert found["judged"][ends] == [[*range(MANY)], [*range(MANY)], [*range(2 * WHOLE, MANY)]]
        kept = MANY // WHOLE * WHOLE
        assert found["judged"]["drop"] == [[*range(kept)], [*range(kept)], [*range(2 * WHOLE, kept)]]


def test_batches_that_cannot_be_gathered_are_warned_of(ranks: list[dict[str, Any]]):
    for found in ranks:
        assert any(
            said.startswith("ends='uneven': the 3 ranks have unequal numbers of the last rows")
            for said in found["warned"]
        )


def test_skip_first_batches(ranks: list[dict[str, Any]], numbered: Path):
    (expected,) = sequences(numbered, WHOLE, WORLD, 1)
    assert joined([found["skipped"] for found in ranks]) == expected[2 * WHOLE :]
    for found in ranks:
        assert [row for batch in found["skipped alone"] for row in batch] == expected[2 * BATCH : MANY]


def test_what_would_shard_twice_or_take_batches_for_rows_is_refused(ranks: list[dict[str, Any]]):
    for found in ranks:
        skipping, sharding, dispatching = found["refused"]
        assert skipping.startswith(("IndexError: ", "ValueError: "))
        assert sharding.startswith("TypeError: ")
        assert dispatching.startswith(
            "UsageError: accelerate's prepare(DataLoader(ds, ...)) over PackedBatchDataset: one"
        )
