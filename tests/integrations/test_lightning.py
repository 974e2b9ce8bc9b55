"""Lightning's Trainer with a dataset as its loader, with no code of the user's: epochs, checkpoints, devices."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from packer.errors import UsageError
from tests.integrations.rows import ROWS, epochs_of, is_documented, joined

# Lightning's own: of the number of workers, of what torch deprecates, of checkpoints' folders that exist.
pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 11  # of an epoch, with one device
PADDING = -ROWS % 10


@pytest.fixture(scope="module")
def epochs(numbers: Path) -> list[list[int]]:
    """The rows of each epoch, as one device is given them."""
    return [epoch + epoch[:PADDING] for epoch in epochs_of(numbers, 4)]


def fit(*given: Any, **options: Any) -> Any:
    """Import Lightning and train. Here, since every process that tests collects this file."""
    return lightning_net().fit(*given, **options)


def lightning_net() -> Any:
    """The module of the training."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports what torch deprecates
        pytest.importorskip("lightning")
        return importlib.import_module("tests.integrations.lightning_net")


def sequence(given: list[tuple[int, int, list[int]]], epoch: int) -> list[int]:
    return [row for number, _, rows in given for row in rows if number == epoch]


@pytest.mark.parametrize(
    ("every", "step", "limit"),
    [
        pytest.param(7, 14, {"max_epochs": 3}, id="mid-epoch"),
        pytest.param(7, 14, {"max_steps": 30}, id="mid-epoch-steps"),
        pytest.param(None, 22, {"max_epochs": 4}, id="epoch's end"),
        pytest.param(11, 22, {"max_epochs": 4}, id="last batch"),
        pytest.param(11, 22, {"max_steps": 30}, id="last-batch-steps"),
    ],
)
def test_it_goes_on_from_a_checkpoint(
    numbers: Path,
    tmp_path: Path,
    epochs: list[list[int]],
    every: int | None,
    step: int,
    limit: dict[str, int],
):
    whole = fit(numbers, tmp_path, every=every, **limit).given
    for epoch in range(2):
        assert sequence(whole, epoch) == epochs[epoch]
    rest = fit(numbers, tmp_path / "again", every=every, resume=tmp_path / f"{step}.ckpt", **limit).given
    assert rest == whole[step:]
    assert len(rest) == (limit.get("max_steps") or limit["max_epochs"] * STEPS) - step


def test_it_goes_on_with_other_numbers_of_devices(numbers: Path, tmp_path: Path, epochs: list[list[int]]):
    one = fit(numbers, tmp_path, every=1, max_steps=3)
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [
            sys.executable,
            root / "tests/integrations/lightning_net.py",
            numbers,
            tmp_path / "3.ckpt",
            tmp_path / "two",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    two = [json.loads((tmp_path / "two" / f"{rank}.json").read_text()) for rank in range(2)]

    def both(epoch: int) -> list[int]:
        return joined([[rows for number, _, rows in given if number == epoch] for given, _ in two])

    # Three batches of ten before, then batches of twenty, filled up from the epoch's beginning.
    epoch = epochs[0][:ROWS]
    assert sequence(one.given, 0) + both(0) == epoch + epoch[: -(ROWS - 30) % 20]
    epoch = epochs[1][:ROWS]
    assert both(1) == epoch + epoch[: -ROWS % 20]
    assert [validated for _, validated in two] == [[0, 1], [0, 1]]

    # Step 8 is the first of epoch 1: 3 of ten rows and 4 of twenty were epoch 0.
    last = fit(numbers, tmp_path / "last", resume=tmp_path / "two" / "9.ckpt", max_epochs=3)
    assert sequence(last.given, 1) == epochs[1][40:]
    assert sequence(last.given, 2) == epochs[2]
    assert [number for _, number, _ in last.given] == [*range(4, STEPS), *range(STEPS)]
    assert last.validated == [1, 2]


def test_the_docs_show_the_same_callback():
    assert is_documented(lightning_net().CountAnew)


def test_overfitting_a_shuffled_dataset_says_what_to_pass(numbers: Path, tmp_path: Path):
    """Lightning would give a dataset of its own another sampler; batches of a shuffle are others in each epoch."""
    with pytest.raises(
        UsageError, match=r"^overfit_batches: the order 'rows' has other batches .* subset=range\(n\)"
    ):
        fit(numbers, tmp_path, max_epochs=2, overfit_batches=2)
    given = fit(numbers, tmp_path, max_epochs=2, overfit_batches=2, order="sequential").given
    assert [rows for _, _, rows in given] == 2 * [list(range(10)), list(range(10, 20))]
