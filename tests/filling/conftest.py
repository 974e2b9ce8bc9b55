"""Images whose pack has several blocks: blocks have 8 MiB, and processes of their own fill packs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packer.convert.image_conversion import convert_images
from tests.remote.server_fixtures import bucket, server

__all__ = ["bucket", "server"]

ROWS = 96


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of 48 small JPEGs: packed at 256 px they take 19 MB, three blocks."""
    folder = tmp_path_factory.mktemp("filling") / "images"
    draws = np.random.default_rng(1)
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(ROWS // 2):
            pixels = draws.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg", quality=85)
    return folder


@pytest.fixture(scope="session")
def whole(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pack that convert_images makes of them."""
    out = tmp_path_factory.mktemp("whole") / "whole.h5"
    convert_images(images, out)
    return out
