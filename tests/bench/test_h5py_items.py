"""packer.bench.h5py_items: h5py follows what a stranger's file links to; bench does not let it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

pytest.importorskip("torch")

from packer.bench.h5py_items import Hdf5Items
from packer.errors import FormatError


@pytest.mark.parametrize("how", ["link", "soft link", "virtual", "external", "own"])
def test_rows_of_other_files_are_refused(tmp_path: Path, how: str):
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
