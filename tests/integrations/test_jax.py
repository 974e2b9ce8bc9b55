"""output="numpy" under JAX: a batch stays as it is until the step that was given it has read it, however late."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer import pack_dataset

ROOT = Path(__file__).parents[2]
ROWS, SIDE = (
    100,
    128,
)  # two batches of 2.5 MB an epoch: buffers that begin where JAX takes them without a copy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with p.h5, and train.h5 of images of 16 pixels."""
    if not importlib.util.find_spec("jax"):
        pytest.skip("JAX is not installed: pip install jax")
    path = tmp_path_factory.mktemp("jax")
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, SIDE, SIDE, 3), dtype=np.uint8)
    pack_dataset((pixels, np.arange(ROWS)), path / "p.h5")
    pack_dataset((pixels[:24, :16, :16], np.arange(24)), path / "train.h5")
    return path


def run(folder: Path, *arguments: str) -> Any:
    """What jax_steps.py found."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.integrations.jax_steps", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return dict(run(folder, "p.h5"))


TAKEN = ["from_dlpack", "asarray", "device_put", "compiled"]


@pytest.mark.parametrize("taken", TAKEN)
def test_a_buffer_that_is_filled_again_at_once_gives_wrong_rows(found: dict[str, Any], taken: str):
    """The hazard is there: the next test can fail."""
    assert found[f"filled again, {taken}"] > 6  # of 12 steps


@pytest.mark.parametrize("case", [*TAKEN, "in memory", "one by one"])
def test_batches_stay_as_they_are_until_jax_has_read_them(found: dict[str, Any], case: str):
    assert found[case] == 0


def test_dlpack_copies_nothing_and_the_memory_is_used_again(found: dict[str, Any]):
    same, places = found["shared"]
    assert same
    assert places < 12


def test_the_code_on_the_page_runs(found: dict[str, Any]):
    assert len(found["page"]) == 2
    assert all(mean > 0 for mean in found["page"])


@pytest.mark.soak
def test_augmented_tensors_go_to_jax_as_they_are(folder: Path):
    assert run(folder, "augmented", "p.h5")
