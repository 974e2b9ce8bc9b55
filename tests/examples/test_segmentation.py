from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from PIL import Image

from packer import convert_images
from tests.conftest import Script

EPOCH = re.compile(r"epoch (\d+): loss (\d\.\d{4}), [\d,]+ images/s, IoU (\d\.\d{3})")


def test_it_learns_from_whole_pictures_of_many_sizes(script: Script, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for name in ("photos", "masks"):
        (tmp_path / name).mkdir()
    for number in range(40):
        height, width = draws.integers(40, 90, 2)
        y, x = np.mgrid[0:height, 0:width]
        top, left = draws.uniform(0.3, 0.7, 2) * (height, width)
        mask = np.hypot(y - top, x - left) < draws.uniform(10, 20)
        photo = draws.integers(0, 120, (height, width, 3)).astype(np.uint8)
        photo[..., 0] += np.where(mask, 130, 0).astype(np.uint8)
        Image.fromarray(photo).save(tmp_path / "photos" / f"{number}.png")
        Image.fromarray(np.where(mask, 255, 0).astype(np.uint8)).save(tmp_path / "masks" / f"{number}.png")
    pairs = {"mask": tmp_path / "masks"}
    pack = tmp_path / "pack.h5"
    convert_images(
        tmp_path / "photos", pack, size="max=64", store="jpeg", pairs=pairs, split="train=0.8,val=0.2"
    )
    sheet = tmp_path / "sheet.png"
    arguments = ("--size", "32", "--epochs", "4", "--device", "cpu", "--sheet", sheet)
    run = script("examples/segmentation.py", pack, *arguments)
    assert (run.returncode, run.stderr) == (0, "")
    epochs = [EPOCH.fullmatch(line) for line in run.stdout.splitlines()]
    assert [match[1] for match in epochs if match] == list("1234")
    assert epochs[-1]
    assert float(epochs[-1][3]) > 0.6
    overlays = np.asarray(Image.open(sheet))
    red = (overlays == (230, 30, 30)).all(axis=2)
    assert 0.01 < red.mean() < 0.3
    bare = tmp_path / "bare.h5"
    convert_images(tmp_path / "photos", bare, size=32)
    run = script("examples/segmentation.py", bare)
    assert run.returncode == 1
    assert "needs a field mask" in run.stderr
