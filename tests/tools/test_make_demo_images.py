from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "tools" / "make_demo_images.py"


@pytest.fixture
def script() -> dict[str, Any]:
    pytest.importorskip("skimage")
    return runpy.run_path(str(SCRIPT))


def test_it_writes_the_same_small_photographs_every_time(script: dict[str, Any], tmp_path: Path) -> None:
    main: Callable[[Path], None] = script["main"]
    script["COUNTS"].update(train=3, test=2)
    main(tmp_path / "a")
    main(tmp_path / "b")
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.jpg"))
    assert len(files) == 6 * (3 + 2)
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        with Image.open(tmp_path / "a" / file) as image:
            assert image.size == (400, 300)


@pytest.mark.parametrize("axis", ["across", "down"])
def test_train_and_test_regions_share_no_pixel(script: dict[str, Any], axis: str) -> None:
    region: Callable[[Image.Image, str, str], Image.Image] = script["region"]
    photo = Image.linear_gradient("L").rotate(
        90 if axis == "across" else 0
    )  # each row or column has its own grey
    train, test = (region(photo, axis, split).getcolors() or [] for split in ("train", "test"))
    greys = [{grey for _, grey in colors} for colors in (train, test)]
    assert greys[0].isdisjoint(greys[1])
    assert len(greys[0] | greys[1]) == 256
