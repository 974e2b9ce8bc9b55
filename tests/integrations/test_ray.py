"""Ray Train's workers, with torch.distributed and without."""

from __future__ import annotations

import json
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packer.load.ranks import found_ranks
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
        num_cpus=2,
        include_dashboard=False,
        configure_logging=False,
        _system_config={"worker_niceness": 0},  # 15, the default, is three minutes on a busy machine
        runtime_env={"env_vars": {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()
    for number, handler in handlers.items():  # Ray Train leaves its own, which Ctrl-C does not stop
        signal.signal(number, handler)


@pytest.mark.usefixtures("_cluster")
@pytest.mark.parametrize(
    "trainer", ["DataParallelTrainer", pytest.param("TorchTrainer", marks=pytest.mark.soak)]
)
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
