"""What packer preview prints of the transforms: how many passes, and what stands between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from packer.cli.previewing import preview
from tests.previews.conftest import ROWS, Make, Pixels


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        ("RandomCrop(16), RandomHorizontalFlip()", "RandomCrop, RandomHorizontalFlip in 1 pass"),
        ("ColorJitter(0.4), RandomCrop(16)", "ColorJitter, RandomCrop in 2 passes"),
        (
            "RandomCrop(16), GaussianBlur(3), Normalize(0.5, 0.5)",
            "RandomCrop, GaussianBlur, Normalize in 2 passes and GaussianBlur; normalisation undone to be seen",
        ),
        (
            "RandomCrop(16), GaussianBlur(3), RandomEqualize()",
            "RandomCrop, GaussianBlur, RandomEqualize in 1 pass, GaussianBlur and RandomEqualize",
        ),
        ("RandAugment()", "RandAugment in 2 passes and 2 steps of RandAugment"),
        ("GaussianBlur(3)", "GaussianBlur by itself"),
        ("GaussianBlur(3), RandomEqualize()", "GaussianBlur, RandomEqualize one by one"),
        ("RandomCrop(16), CutMix()", "RandomCrop, CutMix in 1 pass and CutMix, mixed within the sheet"),
        ("MixUp()", "MixUp by itself, mixed within the sheet"),
    ],
)
def test_it_names_what_stands_between_passes(
    make: Make,
    images: Pixels,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    augment: str,
    words: str,
) -> None:
    pack = make(images, label=np.arange(ROWS) % 2, members={"classes": ("cat", "dog")})
    arguments = [str(pack), "--augment", augment, "-o", str(tmp_path / "a.png")]
    preview.main(arguments, standalone_mode=False)
    line = capsys.readouterr().out.rstrip("\n")
    assert line.partition("B; ")[2] == words
