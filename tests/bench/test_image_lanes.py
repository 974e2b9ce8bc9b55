from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from packer.bench.image_lanes import Hdf5Items, RawImages
from packer.errors import FormatError
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


@pytest.mark.parametrize("how", ["link", "soft link", "virtual", "external", "own"])
def test_rows_of_other_files_are_refused(tmp_path: Path, how: str) -> None:
    """h5py follows what a stranger's file links to; bench does not let it."""
    secret, path = str(tmp_path / "secret.h5"), str(tmp_path / "pack.h5")
    pixels = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)
    with h5py.File(secret, "w") as file:
        file["image"] = pixels
    with h5py.File(path, "w") as file:
        file["label"] = [3]
        if how == "link":
            file["image"] = h5py.ExternalLink(secret, "image")
        elif how == "soft link":
            file["other"] = h5py.ExternalLink(secret, "/")
            file["image"] = h5py.SoftLink("/other/image")
        elif how == "virtual":
            layout = h5py.VirtualLayout(pixels.shape, "u1")
            layout[:] = h5py.VirtualSource(secret, "image", pixels.shape)
            file.create_virtual_dataset("image", layout)
        elif how == "external":
            file.create_dataset("image", pixels.shape, "u1", external=[(secret, 0, 48)])
        else:
            file["image"] = pixels
    if how == "own":
        items = Hdf5Items(path, 1, labels=True)
        assert items[0][0].numpy().tolist() == pixels[0].tolist()
        items.close()
        return
    with pytest.raises(FormatError) as error:
        Hdf5Items(path, 1, labels=True)
    assert str(error.value) == (
        f"{path}: its dataset 'image' leads to another file; bench reads rows of the pack's own. Convert the images again."
    )
