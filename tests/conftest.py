"""What every test shares: quiet property tests, no CUDA tests where there is no CUDA, a few photographs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

if importlib.util.find_spec("hypothesis"):  # machines that only run `make gpu` may lack it
    from hypothesis import settings

    # A noisy machine must not fail a property for being slow, and the same commit must test the same examples.
    settings.register_profile("packer", deadline=None, derandomize=True)
    settings.load_profile("packer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked gpu where there is no CUDA device."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def photo_folder(tmp_path: Path) -> Path:
    """A folder of 3 classes with 8 JPEGs of 48x40 each; every image is noise around its class's own colour."""
    from PIL import Image

    draws = np.random.default_rng(0)
    folder = tmp_path / "photos"
    for label, name in enumerate(("blue", "green", "red")):
        (folder / name).mkdir(parents=True)
        for number in range(8):
            pixels = draws.integers(0, 90, (40, 48, 3), dtype=np.uint8)
            pixels[..., 2 - label] += 120
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg", quality=90)
    return folder
