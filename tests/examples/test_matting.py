from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer import convert_images
from tests.conftest import Script

SCRIPT = Path(__file__).parents[2] / "examples" / "matting.py"
EPOCH = re.compile(r"epoch (\d+): loss (\d\.\d{4}), [\d,]+ images/s")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of 24 images of 64x64 whose red is their alpha: a disc with a soft edge. Green and blue are noise."""
    draws = np.random.default_rng(0)
    y, x = np.mgrid[0:64, 0:64]
    folder = tmp_path_factory.mktemp("mattes")
    for name in ("photos", "mattes"):
        (folder / name).mkdir()
    for number in range(24):
        top, left, radius = draws.uniform((16, 16, 10), (48, 48, 24))
        matte = (128 + 50 * (radius - np.hypot(y - top, x - left))).clip(0, 255).astype(np.uint8)
        photo = draws.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        photo[..., 0] = matte
        Image.fromarray(photo).save(folder / "photos" / f"{number}.png")
        Image.fromarray(matte).save(folder / "mattes" / f"{number}.png")
    convert_images(folder / "photos", folder / "pack.h5", size=64, pairs={"alpha": folder / "mattes"})
    return folder / "pack.h5"


def crops(sheet: Path) -> NDArray[np.int64]:
    """A sheet's lines: image, alpha, cut out: [3, 32, 8 * 32, 3]."""
    return np.asarray(Image.open(sheet)).reshape(3, 32, 256, 3).astype(np.int64)


def check(script: Script, pack: Path, folder: Path, alpha: str, *more: str) -> NDArray[np.int64]:
    """That it learns and says so; returns the sheet's lines."""
    arguments = ("--alpha", alpha, "--size", "32", "--batch-size", "8", "--epochs", "6")
    run = script("examples/matting.py", pack, *arguments, "--sheet", folder / "sheet.png", *more)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    epochs = [EPOCH.fullmatch(line) for line in run.stdout.splitlines()]
    assert [match[1] for match in epochs if match] == list("123456")
    first, last = epochs[0], epochs[-1]
    assert first
    assert last
    assert float(last[2]) < 0.6 * float(first[2])
    return crops(folder / "sheet.png")


def test_alpha_is_interpolated_as_the_image_is(script: Script, pack: Path, tmp_path: Path) -> None:
    image, alpha, cut = check(script, pack, tmp_path, "linear", "--device", "cpu")
    assert np.abs(image[..., 0] - alpha[..., 0]).max() <= 1
    assert ((alpha > 10) & (alpha < 245)).any()
    green = np.array([0.2, 0.7, 0.3]) * 255
    share = alpha / 255
    assert np.abs(cut - (image * share + green * (1 - share))).max() <= 2


def test_as_a_mask_it_is_in_step_but_for_its_edges(script: Script, pack: Path, tmp_path: Path) -> None:
    image, alpha, _ = check(script, pack, tmp_path, "nearest", "--device", "cpu")
    off = np.abs(image[..., 0] - alpha[..., 0])
    assert off.max() > 10
    assert (off[(image[..., 0] < 2) | (image[..., 0] > 253)]).mean() < 1
    assert off.mean() < 10


@pytest.mark.gpu
@pytest.mark.parametrize("alpha", ["linear", "nearest"])
def test_on_a_gpu(script: Script, pack: Path, tmp_path: Path, alpha: str) -> None:
    image, moved, _ = check(script, pack, tmp_path, alpha)
    assert np.abs(image[..., 0] - moved[..., 0]).mean() < (1 if alpha == "linear" else 10)


def test_a_pack_without_alpha_is_refused(script: Script, pack: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.h5"
    convert_images(pack.parent / "photos", bare, size=64)
    run = script("examples/matting.py", bare)
    assert run.returncode == 1
    assert run.stderr == (
        f"{bare}: it has no field alpha; this example needs one. Convert with --pair alpha=DIR.\n"
    )


def test_draws_belong_to_rows_whatever_the_batches(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    pairs = importlib.import_module("matting").Pairs
    found = []
    for size in (5, 24):
        data = pairs(str(pack), size, 32, "cpu", "linear")
        data.data.set_epoch(2)
        crops = torch.cat([torch.cat([images, alphas], dim=1) for images, alphas in data])
        found.append({crop.numpy().tobytes() for crop in crops})
    assert len(found[0]) == 24
    assert found[0] == found[1]
