"""What is a pack, whatever became of it, and what is not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from packer import convert_images
from packer.packs.pack_opening import is_pack


@pytest.fixture
def here(photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with packs p.h5, p and shards, and photos."""
    monkeypatch.chdir(photo_folder.parent)
    convert_images("photos", "p.h5", size=8)
    convert_images("photos", "p", size=8)
    convert_images("photos", "shards", size=8, shards=10)


@pytest.mark.usefixtures("here")
def test_packs() -> None:
    assert all(map(is_pack, ("p.h5", "p", "p/", "shards", Path("p.h5"), "x.h5.packing")))


@pytest.mark.usefixtures("here")
def test_what_became_of_packs() -> None:
    shutil.copytree("p", "edited")
    os.remove("edited/trailer")
    with h5py.File("p.h5", "r+") as file:
        file["label"][0] = 1
    with open("cut.h5", "wb") as file:
        file.write(Path("p.h5").read_bytes()[:4000])
    with open("shards/index.json", "ab") as file:
        file.write(b" ")
    assert all(map(is_pack, ("edited", "p.h5", "cut.h5", "shards")))


@pytest.mark.usefixtures("here")
def test_sources() -> None:
    with h5py.File("arrays.h5", "w") as file:
        file["image"] = np.zeros((3, 4, 4), np.uint8)
    Path("empty.h5").touch()
    Path("photos/index.json").write_text('{"format": "something else"}')
    Path("photos/header.json").write_text("{}")
    os.mkfifo("pipe")
    for name in (
        "arrays.h5",
        "empty.h5",
        "photos",
        "photos/red",
        "photos/red/0.jpg",
        "pipe",
        "nosuch",
        "",
        ".",
    ):
        assert not is_pack(name), name
    assert not is_pack("photos/red/0.jpg/x")
