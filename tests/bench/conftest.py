from __future__ import annotations

from pathlib import Path

import pytest

from packer import convert_images


@pytest.fixture
def pack(photo_folder: Path, tmp_path: Path) -> Path:
    """The photographs of photo_folder, 32x32."""
    out = tmp_path / "photos.h5"
    convert_images(photo_folder, out, size=32)
    return out
