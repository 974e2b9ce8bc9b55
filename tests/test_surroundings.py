"""The state of a program and of its environment changes no byte of a pack."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
from PIL import Image, ImageFile

from packer import convert_images, convert_table, export_images, pack_dataset, verify_pack

ROOT = Path(__file__).parents[1]
STRANGE = {
    "PYTHONOPTIMIZE": "2",
    "PYTHONWARNINGS": "error",
    "PYTHONHASHSEED": "7",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
    "LC_ALL": "C",
    "TZ": "America/New_York",
    "OMP_NUM_THREADS": "1",
    "OPENCV_IO_MAX_IMAGE_PIXELS": "10",
    "HDF5_USE_FILE_LOCKING": "TRUE",
    "HDF5_PLUGIN_PRELOAD": "::",
    "HOME": "/nonexistent",
    "TMPDIR": "/nonexistent",
}
BARE = """
import os
from pathlib import Path
for fd in range(3):
    os.close(fd)
sys.stdin = sys.stdout = sys.stderr = None
gone = Path(sys.argv[2]) / "gone"
gone.mkdir()
os.chdir(gone)
gone.rmdir()
os.umask(0)
sys.setrecursionlimit(130)
"""


def make(folder: Path, out: Path) -> None:
    """Write a pack of each kind into the folder ``out``, from the sources in ``folder``."""
    photos, one = folder / "photos", {"size": 16, "on_error": "skip"}
    convert_images(photos, out / "images.h5", workers=1, **one)
    convert_images(photos, out / "coded.h5", workers=1, store="zstd", **one)
    convert_images(photos, out / "npy", workers=2, **one)
    convert_table(folder / "table.csv", out / "table.h5", label="y")
    pack_dataset([str(folder / "flags.npz")], out / "arrays.h5")
    export_images(out / "images.h5", out / "files")
    for name in ("images.h5", "coded.h5", "npy", "table.h5", "arrays.h5"):
        if not verify_pack(out / name).ok:
            raise ValueError(name)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    random = np.random.default_rng(5)
    for number, suffix in enumerate(("jpg", "png", "webp", "gif", "bmp", "tif", "jpg", "png", "webp", "gif")):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (30, 40, 3), np.uint8)).save(path)
        if number > 5:  # cut short
            path.write_bytes(path.read_bytes()[: -path.stat().st_size // 4])
    lines = [f"{x:.4f},{'uvI'[i % 3]},2024-03-{1 + i:02},{i % 2}" for i, x in enumerate(random.random(30))]
    (folder / "table.csv").write_text("\n".join(["x,word,day,y", *lines]))
    np.savez(folder / "flags.npz", image=np.zeros((9, 4, 4, 3), np.uint8), label=np.arange(9) % 2 == 0)
    return folder


@pytest.fixture(scope="module")
def clean(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What make() writes in an ordinary program."""
    out = tmp_path_factory.mktemp("clean")
    make(sources, out)
    return files(out)


def track_order(stack: ExitStack) -> None:
    stack.callback(setattr, h5py.get_config(), "track_order", h5py.get_config().track_order)
    h5py.get_config().track_order = True


def hdf5_plugins(stack: ExitStack) -> None:
    pytest.importorskip("hdf5plugin")


def opencv(stack: ExitStack) -> None:
    stack.callback(cv2.setUseOptimized, cv2.useOptimized())
    stack.callback(cv2.setNumThreads, cv2.getNumThreads())
    cv2.setUseOptimized(False)
    cv2.setNumThreads(7)


def pillow(stack: ExitStack) -> None:
    stack.callback(setattr, Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS)
    stack.callback(setattr, ImageFile, "LOAD_TRUNCATED_IMAGES", ImageFile.LOAD_TRUNCATED_IMAGES)
    Image.MAX_IMAGE_PIXELS = 10
    ImageFile.LOAD_TRUNCATED_IMAGES = True


def numpy(stack: ExitStack) -> None:
    stack.enter_context(np.errstate(all="raise"))
    stack.enter_context(np.printoptions(precision=1, threshold=2))
    np.random.seed(7)  # noqa: NPY002


@pytest.mark.parametrize("state", [track_order, hdf5_plugins, opencv, pillow, numpy])
def test_the_state_of_a_program(
    sources: Path, clean: dict[str, bytes], tmp_path: Path, state: Callable[[ExitStack], None]
) -> None:
    with ExitStack() as stack:
        state(stack)
        drawn: Any = np.random.get_state()  # noqa: NPY002
        make(sources, tmp_path)
        np.testing.assert_equal(np.random.get_state(), drawn)  # noqa: NPY002
    assert files(tmp_path) == clean


@pytest.mark.parametrize(
    ("environment", "code"), [({"HDF5_DRIVER": "core"}, ""), (STRANGE, BARE)], ids=["HDF5_DRIVER", "strange"]
)
def test_the_environment(
    sources: Path, clean: dict[str, bytes], tmp_path: Path, environment: dict[str, str], code: str
) -> None:
    run = f"import sys; from pathlib import Path; from tests.test_surroundings import make\n{code}\nmake(*map(Path, sys.argv[1:]))"
    command = [sys.executable, "-c", run, str(sources), str(tmp_path)]
    done = subprocess.run(command, env=os.environ | environment, cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert files(tmp_path) == clean
