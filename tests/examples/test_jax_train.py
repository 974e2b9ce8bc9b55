"""examples/jax_train.py learns; two devices, or two processes, train as one does."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from packer import convert_images

ROOT = Path(__file__).parents[2]
EPOCH = re.compile(r"epoch \d: loss (\d\.\d{4}), [\d,]+ images/s, test accuracy (\d+\.\d)%")


@pytest.fixture
def pack(photo_folder: Path) -> Path:
    if not importlib.util.find_spec("jax"):
        pytest.skip("JAX is not installed: pip install jax")
    convert_images(photo_folder, photo_folder.parent / "p.h5", size=16)
    return photo_folder.parent / "p.h5"


def trained(
    pack: Path, *arguments: str, processes: Sequence[Sequence[str]] = ((),), devices: int = 1
) -> list[list[tuple[str, str]]]:
    """Losses and accuracies of three epochs, as each process printed them."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    told = {
        "PYTHONPATH": path,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-W",
        "error",
        str(ROOT / "examples" / "jax_train.py"),
        str(pack),
        "--test",
        str(pack),
        "--epochs",
        "3",
    ]
    running = [
        subprocess.Popen(
            [*command, *arguments, *own], env=os.environ | told, stdout=subprocess.PIPE, text=True
        )
        for own in processes
    ]
    said = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running)
    return [EPOCH.findall(text) for text in said]


def test_it_learns(pack: Path):
    (epochs,) = trained(pack, "--batch-size", "8")
    losses = [float(loss) for loss, _ in epochs]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert epochs[-1][1] == "100.0"


@pytest.mark.soak
def test_two_devices_and_two_processes_train_as_one(pack: Path):
    (alone,) = trained(pack, "--batch-size", "8")
    assert trained(pack, "--batch-size", "8", devices=2) == [alone]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    both = [["--processes", "2", "--process", str(number), "--address", address] for number in range(2)]
    assert trained(pack, "--batch-size", "4", processes=both) == [alone, alone]
