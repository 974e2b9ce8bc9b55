"""What the codecs' tests share."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image


@pytest.fixture(scope="session")
def picture() -> NDArray[np.uint8]:
    """A smooth colour picture, uint8 [40, 56, 3], with noise of a few steps."""
    rows, columns, channels = np.ogrid[:40, :56, :3]
    noise = np.random.default_rng(0).integers(0, 5, (40, 56, 3))
    return (2 * rows + 2 * columns + 10 * channels + noise).astype(np.uint8)


@pytest.fixture(scope="session")
def encode() -> Callable[..., bytes]:
    """encode(array or Pillow image, format, **options) -> the bytes of an image file."""

    def run(picture: Any, format: str, **options: Any) -> bytes:
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture.squeeze())
        buffer = io.BytesIO()
        image.save(buffer, format, **options)
        return buffer.getvalue()

    return run
