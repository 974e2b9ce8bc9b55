"""What the codecs' tests share."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray


@pytest.fixture(scope="session")
def picture() -> NDArray[np.uint8]:
    """A smooth colour picture, uint8 [40, 56, 3], with noise of a few steps."""
    rows, columns, channels = np.ogrid[:40, :56, :3]
    noise = np.random.default_rng(0).integers(0, 5, (40, 56, 3))
    return (2 * rows + 2 * columns + 10 * channels + noise).astype(np.uint8)
