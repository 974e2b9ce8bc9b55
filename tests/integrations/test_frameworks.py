"""641 rows on 2 and on 3 ranks, of which the last batch has fewer than there are ranks: none hangs, and all are given their rows."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.rows import MANY as ROWS
from tests.integrations.rows import joined, sequences
from tests.read.conftest import make_pack

if importlib.util.find_spec("lightning") is None:  # the ranks import it
    pytest.skip("lightning is not installed", allow_module_level=True)

BATCH = {2: 64, 3: 71}  # leave one row, and two
CASES = (*(f"{frame}, {name}" for frame in ("torchrun", "Lightning") for name in ("dataset", "DataLoader")),)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbered") / "p.h5"
    make_pack(path, ROWS)
    return path


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.soak)])
def ranks(
    request: pytest.FixtureRequest, numbered: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each rank was given, in one launch: starting processes is what takes long."""
    world, folder, root = request.param, tmp_path_factory.mktemp("ranks"), Path(__file__).parents[2]
    run = subprocess.run(
        [
            sys.executable,
            root / "tests/integrations/frameworks.py",
            str(world),
            numbered,
            folder,
            str(BATCH[world]),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


@pytest.mark.parametrize("case", CASES)
def test_every_row_comes_the_right_number_of_times(ranks: list[dict[str, Any]], numbered: Path, case: str):
    world = len(ranks)
    for number, expected in enumerate(sequences(numbered, world * BATCH[world], world, 2), 1):
        given = [found[case][number] for found in ranks]
        assert len({tuple(map(len, batches)) for batches in given}) == 1
        assert {len(batches) for batches in given} == {found[case][0] for found in ranks}
        counts = Counter(row for batches in given for batch in batches for row in batch)
        assert set(counts) == set(range(ROWS))
        assert sum(counts.values()) - ROWS == -ROWS % world < world
        assert joined(given) == expected


def epoch_of(ranks: list[dict[str, Any]], run: str, epoch: int, what: int = 0) -> list[int]:
    """Rows of an epoch, those of all ranks, in the order of the steps. what: 0: trained on; 1: validated."""
    return joined([[rows for number, _, rows in rank[run][what] if number == epoch] for rank in ranks])


@pytest.mark.parametrize("run", ["sampler", "no sampler", "sharded"])
def test_a_data_module_shares_rows_whatever_lightning_would_sample(
    ranks: list[dict[str, Any]], numbered: Path, run: str
):
    """Where ranks wait for each other at each step, in validation too: 641 rows are one, or two, more than whole batches.

    Each row is judged once: with batches of another size, of which the last ones have rows for all ranks.
    """
    for epoch, expected in enumerate(sequences(numbered, len(ranks) * BATCH[len(ranks)], len(ranks), 2)):
        assert epoch_of(ranks, run, epoch) == expected
        assert epoch_of(ranks, run, epoch, 1) == [*range(ROWS)]


@pytest.mark.parametrize(("whole", "resumed"), [("sampler", "resumed"), ("sharded", "sharded, resumed")])
def test_a_data_module_goes_on_in_mid_epoch(ranks: list[dict[str, Any]], whole: str, resumed: str):
    for rank in ranks:
        assert rank[resumed][0] == rank[whole][0][2:]
        assert rank[resumed][2] == pytest.approx(rank[whole][2][2:], rel=1e-5)


def test_sharded_training_has_the_losses_of_ddp(ranks: list[dict[str, Any]]):
    for rank in ranks:
        assert rank["sharded"][2] == pytest.approx(rank["sampler"][2], rel=1e-5)
    assert ranks[0]["sharded"][2] != ranks[1]["sharded"][2]


@pytest.mark.filterwarnings("ignore")  # Lightning's own, as in test_lightning.py
def test_a_data_module_goes_on_with_one_device(ranks: list[dict[str, Any]], numbered: Path, tmp_path: Path):
    """Lightning counts the batches that are left anew, and so validates at the end of the epoch."""
    from tests.integrations.lightning_module import fit

    world = len(ranks)
    alone = fit(
        numbered, tmp_path, resume=Path(ranks[0]["folder"]) / "ddp" / "2.ckpt", batch_size=BATCH[world]
    )
    (first,) = sequences(numbered, world * BATCH[world], world, 1)
    left = [row for epoch, _, rows in alone.given if epoch == 0 for row in rows]
    assert left == first[2 * world * BATCH[world] : ROWS]
    assert {epoch for epoch, _, _ in alone.validated} == {0, 1}
