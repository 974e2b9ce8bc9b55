"""Some images changed: which, and in what memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from packer.augment import filters
from packer.augment.filters import changed
from tests.augment.conftest import noise_images


def raised(pixels: Tensor, columns: Tensor, known: NDArray[np.float32]) -> Tensor:
    """Add each image's column; the host's numbers are the same."""
    assert np.array_equal(columns.numpy(), known)
    assert pixels.is_contiguous()
    return pixels + columns[:, :1, None, None]


@pytest.mark.parametrize("group", [1, 2000, 1 << 20])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("planes", [False, True])
def test_those_that_were_chosen_change(
    monkeypatch: pytest.MonkeyPatch, group: int, share: float, planes: bool
) -> None:
    monkeypatch.setattr(filters, "_CPU_BYTES", group)
    images = noise_images(20, 3, 9, 7).float()
    images = images.contiguous() if planes else images
    known = np.arange(1, 21, dtype=np.float32)[:, None]
    which = np.random.default_rng(0).random(20) < share
    before = images.clone()
    made = changed(images, torch.from_numpy(known), known, [(which, raised)])
    added = torch.from_numpy(np.where(which, known[:, 0], 0))
    assert torch.equal(made, images + added[:, None, None, None])
    assert torch.equal(images, before)


def test_each_change_gets_its_own_images() -> None:
    images = noise_images(9, 3, 4, 4).float()
    known = np.zeros((9, 1), np.float32)
    kind = np.arange(9) % 3
    made = changed(
        images,
        torch.from_numpy(known),
        known,
        [(kind == 1, lambda p, c, k: p + 1), (kind == 2, lambda p, c, k: -p)],
    )
    for i in range(9):
        assert torch.equal(made[i], (images[i], images[i] + 1, -images[i])[i % 3])


def test_no_images_are_no_error() -> None:
    images = noise_images(1)[:0]
    known = np.zeros((0, 1), np.float32)
    assert len(changed(images, torch.from_numpy(known), known, [(known[:, 0] > 0, raised)])) == 0
