from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packer import convert_images

STORED: dict[str, dict[str, Any]] = {
    "jpeg": {"size": 32, "store": "jpeg"},
    "gray jpeg": {"size": 32, "store": "jpeg", "channels": "gray", "quality": 75},
    "whole jpeg": {"size": "max=40", "store": "jpeg"},
    "whole gray jpeg": {"size": "min=24", "store": "jpeg", "channels": "gray", "quality": 75},
    "kept jpeg": {"size": "keep", "store": "jpeg"},
}
"""Ways to store images other than raw and of one size -> the options of convert_images."""


@pytest.fixture
def pack(photo_folder: Path, tmp_path: Path) -> Path:
    """The photographs of photo_folder, 32x32."""
    out = tmp_path / "photos.h5"
    convert_images(photo_folder, out, size=32)
    return out


@pytest.fixture(params=STORED)
def stored(request: pytest.FixtureRequest, photo_folder: Path, tmp_path: Path) -> Path:
    """The photographs of photo_folder, stored in each of these ways."""
    out = tmp_path / "stored.h5"
    convert_images(photo_folder, out, **STORED[request.param])
    return out
