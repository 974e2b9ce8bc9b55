"""Ray Train's workers, with torch.distributed and without; a pack read by Ray Data; shards made by Ray's tasks."""

from __future__ import annotations

import json
import os
import re
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import convert_images, pack_dataset
from packer.errors import SourceError, UsageError
from packer.load.ranks import found_ranks
from tests.convert.test_engines import content
from tests.integrations.ray_worker import run
from tests.integrations.rows import ROWS, epochs_of, joined

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own: of files and sockets it leaves open


def imported() -> Any:
    """Import Ray. Not with this file, which every process that tests collects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("ray.train.torch")
        return pytest.importorskip("ray")


@pytest.fixture(scope="module")
def _cluster() -> Iterator[None]:
    ray = imported()
    root = str(Path(__file__).parents[2])
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ray.init(
        address="local",  # not one that somebody else has begun on this machine
        num_cpus=2,
        include_dashboard=False,
        configure_logging=False,
        _system_config={"worker_niceness": 0},  # 15, the default, is three minutes on a busy machine
        runtime_env={
            "env_vars": {"PYTHONPATH": f"{root}{os.pathsep}{root}/examples", "OMP_NUM_THREADS": "1"}
        },
    )
    yield
    ray.shutdown()
    for number, handler in handlers.items():  # Ray Train leaves its own, which Ctrl-C does not stop
        signal.signal(number, handler)


@pytest.mark.soak
@pytest.mark.usefixtures("_cluster")
@pytest.mark.parametrize("trainer", ["DataParallelTrainer", "TorchTrainer"])
def test_its_workers_are_found(numbers: Path, tmp_path: Path, trainer: str):
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    kind = {"TorchTrainer": TorchTrainer, "DataParallelTrainer": DataParallelTrainer}[trainer]
    kind(
        run,
        train_loop_config={"pack": str(numbers), "out": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=str(tmp_path / "results")),
    ).fit()
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [one["world"] for one in found] == [2, 2]
    for number, epoch in enumerate(epochs_of(numbers, 2)):
        assert joined([one["given"][number] for one in found]) == epoch[: ROWS // 20 * 20]


@pytest.mark.usefixtures("_cluster")
def test_the_recipe_for_ray_data_reads_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    samples = [{"image": np.full((4, 5, 3), k, np.uint8), "label": k} for k in range(23)]
    pack_dataset(samples, "train.h5", shuffle=False)
    page = (Path(__file__).parents[2] / "docs" / "loading.md").read_text()
    (code,) = re.findall(
        r"^```python\n(import os\n.*?ray\.data.*?)^```", page, flags=re.MULTILINE | re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(compile(code, "loading.md", "exec"), names)
    found = sorted(names["samples"].take_all(), key=lambda row: row["label"])
    assert [row["label"] for row in found] == list(range(23))
    for sample, row in zip(samples, found, strict=True):
        assert np.array_equal(row["image"], sample["image"].transpose(2, 0, 1))


@pytest.mark.soak
@pytest.mark.usefixtures("_cluster")
def test_the_example_trains_on_every_row_once_an_epoch_though_a_worker_dies(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    from ray_train import main

    pack = tmp_path / "train.h5"
    convert_images(photo_folder, pack, size=32)
    small = (
        "--batch-size",
        "3",
        "--save-every",
        "2",
        "--epochs",
        "4",
        "--results",
        str(tmp_path / "results"),
    )
    killed = main(
        [str(pack), *small, "--kill-at", "7"]
    )  # there are 4 steps an epoch, and step 6 was the last that is saved
    assert Path(f"{pack}.killed").exists()
    assert killed["rows by count"] == {4: 24}
    whole = main([str(pack), *small, "--results", str(tmp_path / "whole")])
    assert whole["rows by count"] == {4: 24}
    assert killed["loss"] == pytest.approx(whole["loss"], abs=1e-4)


@pytest.mark.usefixtures("_cluster")
def test_its_tasks_make_the_shards_of_packs(photo_folder: Path, tmp_path: Path):
    options: dict[str, Any] = {"size": 32, "shards": 5, "on_error": "skip"}
    next(photo_folder.rglob("*.jpg")).write_bytes(b"no image")
    one = convert_images(photo_folder, tmp_path / "one", **options)
    done: list[int] = []
    other = convert_images(photo_folder, tmp_path / "other", engine="ray", on_progress=done.append, **options)
    assert content(tmp_path / "other") == content(tmp_path / "one")
    assert other.skipped == one.skipped
    assert done[-1] == 24
    bad = photo_folder / "red" / "7.jpg"
    bad.write_bytes(b"no image")
    with pytest.raises(
        SourceError,
        match=r"(green/0|red/7)\.jpg: .* \(On .*\) Finished .*run the same command again to continue\.$",
    ):
        convert_images(photo_folder, tmp_path / "bad", engine="ray", **options | {"on_error": "stop"})
    assert imported().is_initialized()  # it is the caller's, and goes on


@pytest.mark.usefixtures("_cluster")
def test_no_cluster_answers(photo_folder: Path, tmp_path: Path):
    imported().shutdown()
    with pytest.raises(UsageError, match=r"engine ray:127\.0\.0\.1:1: no Ray cluster answers there"):
        convert_images(photo_folder, tmp_path / "out", size=32, shards=5, engine="ray:127.0.0.1:1")


def test_outside_of_a_worker_nothing_is_found_and_nothing_said(monkeypatch: pytest.MonkeyPatch):
    imported()
    monkeypatch.delenv("RANK", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found_ranks()[:2] == (0, 1)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
        assert found_ranks()[:2] == (1, 2)
