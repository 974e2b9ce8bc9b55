from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from packer.bench.raw_images import RawImages
from packer.inputs.image_sources import open_source
from packer.pixels.decode_resize import DecodeResize, PixelSpec

SPEC = PixelSpec((32, 24))


def test_items_are_the_pixels_that_convert_makes(photo_folder: Path) -> None:
    indices = np.array([20, 3])
    expected = np.empty(SPEC.shape, np.uint8)
    with open_source(photo_folder) as source:
        items = RawImages(source, indices, SPEC)
        assert len(items) == 2
        for item, index in enumerate(indices.tolist()):
            DecodeResize(SPEC)(source.read(index), expected)
            pixels, label = items[item]
            np.testing.assert_array_equal(pixels.numpy(), expected)
            assert label == index // 8


def test_augmented_items_are_shifted_and_mirrored_ones(photo_folder: Path) -> None:
    torch.manual_seed(0)
    with open_source(photo_folder) as source:
        plain = RawImages(source, np.array([0]), SPEC)[0][0].numpy()
        padded = np.pad(plain, ((4, 4), (3, 3), (0, 0)))
        windows = {
            padded[top : top + 32, left : left + 24][:, ::step].tobytes(): (top, left, step)
            for top in range(9)
            for left in range(7)
            for step in (1, -1)
        }
        items = RawImages(source, np.array([0]), SPEC, augment=True)
        seen = {windows[items[0][0].numpy().tobytes()] for _ in range(400)}
    assert {top for top, _, _ in seen} == set(range(9))
    assert {left for _, left, _ in seen} == set(range(7))
    assert {step for _, _, step in seen} == {1, -1}


def test_without_labels_every_label_is_minus_one(photo_folder: Path) -> None:
    with open_source(photo_folder / "red") as source:
        assert RawImages(source, np.arange(8), SPEC)[5][1] == -1
