"""A pack made on several nodes of Ray's own test cluster, of which some are lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packer import convert_images
from tests.convert.test_engines import content

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.soak]
OPTIONS: dict[str, Any] = {"size": 64, "shards": 1}
DRIVER = """
import sys, ray
from packer import convert_images
ray.init(address=sys.argv[1], configure_logging=False, log_to_driver=False)
report = convert_images(sys.argv[2], sys.argv[3], engine="ray", size=64, shards=1)
print(report.resumed)
"""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three nodes of a core each, in processes of this machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray = pytest.importorskip("ray")
        from ray.cluster_utils import Cluster
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", root + os.pathsep + os.environ.get("PYTHONPATH", ""))
    made = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": {"worker_niceness": 0}}
    )
    made.workers = [made.add_node(num_cpus=1) for _ in range(2)]
    made.wait_for_nodes()
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def one(photo_folder: Path, tmp_path: Path) -> dict[str, bytes]:
    """The content of the pack that one machine makes."""
    convert_images(photo_folder, tmp_path / "one", **OPTIONS)
    return content(tmp_path / "one")


def test_a_node_is_lost(cluster: Any, photo_folder: Path, tmp_path: Path, one: dict[str, bytes]) -> None:
    import ray

    ray.init(address=cluster.address, configure_logging=False, log_to_driver=False)
    lost: list[int] = []

    def lose(done: int) -> None:
        if done > 4 and not lost:
            lost.append(done)
            cluster.remove_node(cluster.workers[0], allow_graceful=False)

    convert_images(photo_folder, tmp_path / "out", engine="ray", on_progress=lose, **OPTIONS)
    assert lost
    assert content(tmp_path / "out") == one
    assert not (tmp_path / "out.packing").exists()


def test_the_driver_is_killed(
    cluster: Any, photo_folder: Path, tmp_path: Path, one: dict[str, bytes]
) -> None:
    command = [sys.executable, "-c", DRIVER, cluster.address, str(photo_folder), str(tmp_path / "out")]
    made = tmp_path / "out.packing" / "pack"
    for least in (3, 10):
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while driver.poll() is None and not (made.is_dir() and len(list(made.iterdir())) >= least):
            time.sleep(0.01)
        driver.kill()
        assert driver.wait() == -9
    last = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert int(last.stdout.split()[-1]) >= 3
    assert content(tmp_path / "out") == one
