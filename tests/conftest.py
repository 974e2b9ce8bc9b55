"""What every test shares: quiet property tests, no CUDA tests where there is no CUDA, a few photographs, scripts."""

from __future__ import annotations

import gc
import importlib.util
import io
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

Encode = Callable[..., bytes]
Tree = Callable[..., Path]


class Ran(NamedTuple):
    """How a script ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Script = Callable[..., Ran]
Beside = Callable[..., None]

_FSYNC = os.fsync

if importlib.util.find_spec("hypothesis"):  # machines that only run `make gpu` may lack it
    from hypothesis import settings

    # A noisy machine must not fail a property for being slow, and the same commit must test the same examples, so many more
    # find little more.
    settings.register_profile("packer", deadline=None, derandomize=True, max_examples=50)
    settings.load_profile("packer")


# Threads of torch that wait for each other turn round and round, by default, and several processes that test share the cores:
# that took twice as much of the processor as the tests of augmentation themselves.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Folders that tests make as if packer had are refused if a group may write to them.
os.umask(0o022)

# A process of the start method "forkserver" is forked from one that has imported torch, which takes two seconds, once for all tests.
if importlib.util.find_spec("torch"):
    multiprocessing.set_forkserver_preload(["torch"])

# What a shell starts in the background ignores SIGINT, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked gpu where there is no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    if importlib.util.find_spec("torch"):
        import torch

        there = torch.cuda.is_available()
    else:
        there = False
    if not there:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Ten thousand tests stay till the end: no search for garbage looks at them, now or later (half a second each)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _little_to_search() -> None:
    """What tests before this file imported is not searched for garbage again: tests that search would wait a third of a second."""
    if len(gc.get_objects()) > 30_000:
        gc.collect()  # or else what is garbage now would stay
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_power_cut() -> Iterator[None]:
    """Thousands of packs need not outlive one: each would wait for the disk several times, two milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which refuses what is no open file, too
        yield


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written comes to the disk: only then the system drops it from the page cache."""
    monkeypatch.setattr(os, "fsync", _FSYNC)


@pytest.fixture(scope="session")
def photos_encoded() -> dict[str, bytes]:
    """3 classes with 8 JPEGs of 48x40 each; every image is noise around its class's own colour."""
    draws, files = np.random.default_rng(0), {}
    for label, name in enumerate(("blue", "green", "red")):
        for number in range(8):
            pixels, file = draws.integers(0, 90, (40, 48, 3), dtype=np.uint8), io.BytesIO()
            pixels[..., 2 - label] += 120
            Image.fromarray(pixels).save(file, "JPEG", quality=90)
            files[f"{name}/{number}.jpg"] = file.getvalue()
    return files


@pytest.fixture
def photo_folder(tmp_path: Path, photos_encoded: dict[str, bytes]) -> Path:
    """A folder of 24 photos in 3 classes."""
    folder = tmp_path / "photos"
    for key, data in photos_encoded.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(data)
    return folder


@pytest.fixture(scope="session")
def photo() -> NDArray[np.uint8]:
    """uint8 [512, 512, 3], read-only, with what photos have: gradients, edges, fine texture, a little noise."""
    draws = np.random.default_rng(7)
    y, x = np.mgrid[0:512, 0:512] / 512
    picture = np.stack([90 + 100 * x, 120 + 60 * np.sin(3 * y + x), 160 - 90 * x * y], axis=-1)
    for _ in range(30):
        centre, radius = draws.random(2), 0.02 + 0.12 * draws.random()
        inside = (y - centre[0]) ** 2 + (x - centre[1]) ** 2 < radius**2
        picture[inside] = 0.5 * picture[inside] + 0.5 * draws.integers(20, 236, 3)
    texture = 12 * np.sin(2 * np.pi * (60 * x + 35 * y)) * (x > 0.5) + 8 * np.sin(2 * np.pi * 150 * y) * (
        x < 0.4
    )
    picture += texture[..., None] + draws.normal(0, 4, picture.shape)
    pixels = picture.clip(0, 255).astype(np.uint8)
    pixels.flags.writeable = False
    return pixels


@pytest.fixture(scope="session")
def encode() -> Encode:
    """encode(array or Pillow image, format, **options) -> the bytes of an image file."""

    def run(picture: Any, format: str, **options: Any) -> bytes:
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
        buffer = io.BytesIO()
        image.save(buffer, format, **options)
        return buffer.getvalue()

    return run


@pytest.fixture(scope="session")
def jpeg(encode: Encode) -> bytes:
    """A whole JPEG of 12x16."""
    return encode(np.random.default_rng(1).integers(0, 256, (12, 16, 3), dtype=np.uint8), "JPEG")


@pytest.fixture
def tree(tmp_path: Path, jpeg: bytes) -> Tree:
    """tree("cat/1.jpg", "dog/2.jpg", root="pets") -> the folder, every file a whole JPEG."""

    def run(*keys: str, root: str = "pets") -> Path:
        (tmp_path / root).mkdir(exist_ok=True)
        for key in keys:
            path = tmp_path / root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg)
        return tmp_path / root

    return run


@pytest.fixture
def hdf5_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask HDF5 of unsealed files in this process: another, which packer starts for each, takes a quarter of a second."""
    from packer.packs import hdf5_inspection

    def ask(name: str) -> dict[str, Any]:
        try:
            return hdf5_inspection.described(name)
        except Exception:
            return {}  # as of a process that ended so

    monkeypatch.setattr("packer.packs.unsealed_hdf5._ask", ask)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that another writes is refused at once: the lock of a maker that was killed is waited for a second."""
    from packer.writing import working_folder

    monkeypatch.setattr(working_folder, "_DYING_SECONDS", 0.0)


@pytest.fixture(scope="session")
def beside() -> Beside:
    """beside(code, *arguments): run code, for which ARGUMENTS are the arguments, in a process that has imported torch alone.

    Raises AssertionError if it fails. It need not import torch, which takes two seconds.
    """

    def run(code: str, *arguments: str) -> None:
        context = multiprocessing.get_context("forkserver")
        process = context.Process(target=exec, args=(code, {"ARGUMENTS": arguments}))
        process.start()
        process.join()
        assert process.exitcode == 0

    return run


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other are slow on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def script(one_thread: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    """script("examples/matting.py", *arguments) -> exit code, output, errors.

    It runs in this process: one of its own would spend most of its time on importing torch.
    """

    from torch.backends import cudnn

    monkeypatch.setattr(cudnn, "benchmark", cudnn.benchmark)  # is as it was afterwards

    def run(name: str, *arguments: str | Path) -> Ran:
        path = Path(__file__).parents[1] / name
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        monkeypatch.syspath_prepend(path.parent)
        code, said = 0, ""
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as stop:
            code, said = (stop.code or 0, "") if isinstance(stop.code, int | None) else (1, f"{stop.code}\n")
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err + said)

    return run
