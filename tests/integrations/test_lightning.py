"""Lightning's Trainer with a dataset as its loader, with no code of the user's, and with PackedDataModule: epochs, checkpoints, devices."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import convert_images
from packer.errors import MissingDependencyError, UsageError
from tests.integrations.rows import ROWS, epochs_of, joined

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
    return imported("tests.integrations.lightning_net")


def imported(name: str) -> Any:
    """Import a module that needs Lightning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports what torch deprecates
        pytest.importorskip("lightning")
        return importlib.import_module(name)


def sequence(given: list[tuple[int, int, list[int]]], epoch: int) -> list[int]:
    return [row for number, _, rows in given for row in rows if number == epoch]


@pytest.mark.parametrize(
    ("size", "rows", "ranks", "even"), [(25, 101, 4, 24), (3, 10, 4, 3), (8, 10**15 + 1, 2, 7), (1, 5, 4, 2)]
)
def test_the_nearest_batch_size_with_rows_for_all_ranks(size: int, rows: int, ranks: int, even: int):
    """Of 10**15 rows too: no list of all sizes is made."""
    assert imported("packer.integrations.lightning")._even_size(size, rows, ranks) == even


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


def test_it_goes_on_with_the_batch_whose_step_raised(numbers: Path, tmp_path: Path):
    net = lightning_net()
    callbacks = importlib.import_module("lightning.pytorch.callbacks")

    class Failing(callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 14:
                raise RuntimeError("in the step")

    whole = net.fit(numbers, tmp_path, max_epochs=2).given
    saving = [callbacks.OnExceptionCheckpoint(tmp_path), net.CountAnew(), Failing()]
    with pytest.raises(RuntimeError, match="in the step"):
        net.fit(numbers, tmp_path, max_epochs=2, callbacks=saving)
    (saved,) = tmp_path.glob("on_exception*.ckpt")
    assert net.fit(numbers, tmp_path / "again", resume=saved, max_epochs=2).given == whole[14:]


@pytest.mark.soak
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


@pytest.mark.parametrize("order", ["rows", "sequential"])
def test_overfitting_some_batches_is_refused_by_lightning(numbers: Path, tmp_path: Path, order: str):
    """It would give a DataLoader another sampler; batches of a shuffle are others in each epoch."""
    with pytest.raises(ValueError, match=r"needs to subclass `torch\.utils\.data\.DataLoader`"):
        fit(numbers, tmp_path, max_epochs=2, overfit_batches=2, order=order)


def module_of(*sources: Any, **options: Any) -> Any:
    return imported("packer.integrations.lightning").PackedDataModule(
        *sources, **{"batch_size": 10} | options
    )


def test_it_goes_on_in_mid_epoch(numbers: Path, tmp_path: Path):
    """On one device; test_frameworks.py has more."""
    script = imported("tests.integrations.lightning_module")
    whole = script.fit(numbers, tmp_path)
    for epoch, expected in enumerate(epochs_of(numbers, 2)):
        for given in (whole.given, whole.validated):
            rows = [row for number, _, rows in given if number == epoch for row in rows]
            assert rows == (expected if given is whole.given else list(range(ROWS)))
    rest = script.fit(numbers, tmp_path / "again", resume=tmp_path / "8.ckpt")
    assert (rest.given, rest.losses) == (whole.given[8:], pytest.approx(whole.losses[8:], rel=1e-5))


@pytest.fixture
def packs(photo_folder: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A pack of three classes, and one of other images, which has another mean."""
    train, val = tmp_path / "train.h5", tmp_path / "val.h5"
    convert_images(photo_folder, train, size=32)
    convert_images(photo_folder / "red", val, size=32)
    return train, val


@pytest.mark.parametrize("of_pipeline", [False, True])
def test_judging_draws_nothing_and_normalizes_as_training_does(packs: tuple[Path, Path], of_pipeline: bool):
    from packer.augment import Pipeline

    train, val = packs
    kind: Callable[[str], Any] = Pipeline if of_pipeline else str
    augment = "RandomHorizontalFlip(), RandomCrop(32, padding=4), Normalize()"
    data = module_of(train, val, augment=kind(augment), eval_augment=kind("Normalize()"))
    trained, judged = data.loader("train"), data.loader("val")
    assert [type(one).__name__ for one in trained.views["image"].transforms] == [
        *("RandomHorizontalFlip", "RandomCrop", "Normalize")
    ]
    mean, std = (np.float32(trained.pack.header.statistics["image"][name]) for name in ("mean", "std"))
    assert judged.pack.header.statistics["image"]["mean"] != pytest.approx(mean)
    images = np.concatenate([batch.image.numpy() for batch in judged])
    stored = judged.pack.read("image", 0, 8).transpose(0, 3, 1, 2)
    expected = (stored / np.float32(255) - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(images, expected, atol=1e-5)
    assert (trained.order.name, judged.order.name) == ("rows", "sequential") or trained.order.name == "blocks"
    data.teardown("fit")


def test_other_arguments_go_to_all_and_a_mapping_has_its_own(packs: tuple[Path, Path]):
    train, _ = packs
    own = {"path": train, "batch_size": 3, "fields": ("image", "label", "key")}
    last = {"path": train, "drop_last": True}
    data = module_of(train, own, train, last, seed=7, order="slices", drop_last=True, threads=1, augment=[])
    trained, judged, tested, predicted = (data.loader(role) for role in ("train", "val", "test", "predict"))
    assert (trained.order.name, trained.ends, trained.seed, trained.threads) == ("slices", "drop", 7, 1)
    assert (judged.order.name, judged.batch_size, judged.seed) == ("sequential", 3, 7)
    assert next(iter(judged))._fields == ("image", "label", "key")
    assert (tested.batch_size, len(tested)) == (10, 3)
    assert (predicted.ends, len(predicted)) == ("drop", 2)
    assert data.val_dataloader().batch_size == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"augment": "RandomResizedCrop(16), Normalize()"},
            r"^eval_augment: is missing, and augment is only for the training images; .* Pass for example eval_augment='CenterCrop",
        ),
        (
            {"transform": lambda sample: sample},
            r"^transform: is given for all, and may draw; .* Pass val=\{'path': \.\.\., 'transform': \.\.\.\}\.$",
        ),
        ({"num_workers": 4}, r"^num_workers=: is not an argument of PackedBatchDataset; "),
    ],
)
def test_what_would_judge_otherwise_is_refused(
    packs: tuple[Path, Path], options: dict[str, Any], sentence: str
):
    with pytest.raises(UsageError, match=sentence):
        module_of(packs[0], packs[0], **options).loader("val")


def test_without_lightning_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "packer.integrations.lightning", raising=False)
    with pytest.raises(
        MissingDependencyError, match=r"^PackedDataModule: lightning is not installed\. Run: pip install "
    ):
        importlib.import_module("packer.integrations.lightning")


def test_the_example_of_its_docstring_runs(packs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    script, lightning = imported("tests.integrations.lightning_module"), imported("lightning")
    monkeypatch.chdir(packs[0].parent)
    code = textwrap.dedent(module_of().__doc__.rpartition("::\n")[2])
    model = script.Net()
    exec(code, {"model": model, "lightning": lightning})
    assert [len(rows) for _, _, rows in model.given] == 6 * [8]
