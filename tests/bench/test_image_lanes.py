from __future__ import annotations

from importlib import import_module
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from packer.bench import image_lanes
from packer.bench.image_lanes import CroppedImages, Hdf5Items, RawImages, random_box
from packer.errors import FormatError
from packer.inputs.image_sources import open_source
from packer.pixels.decode_resize import Box, DecodeResize, PixelSpec, resize
from tests import torchvision_here

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


@pytest.mark.parametrize("channels", ["rgb", "gray", "rgba"])
@pytest.mark.parametrize("name", ["upright.jpg", "turned.jpg", "mirrored.jpg", "clear.png"])
def test_cropped_items_are_resized_rectangles_and_mirrored_ones(
    tmp_path: Path, photo: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch, channels: str, name: str
) -> None:
    """As stored: a rectangle of a turned picture is the one that lies there before it is turned."""
    exif = Image.Exif()
    exif[0x0112] = {"turned.jpg": 6, "mirrored.jpg": 5}.get(name, 1)
    picture = Image.fromarray(photo[:200, :300])
    picture.save(tmp_path / name, **({"exif": exif, "quality": 95} if name.endswith("jpg") else {}))
    asked: list[tuple[int, int]] = []

    def fixed(height: int, width: int) -> Box:
        asked.append((height, width))
        return Box(height // 4, width // 5, height // 2, width // 3)

    monkeypatch.setattr(image_lanes, "random_box", fixed)
    spec = PixelSpec((64, 64), channels=channels)
    torch.manual_seed(0)
    with open_source(tmp_path) as source:
        items = CroppedImages(source, np.array([0]), spec)
        seen = {items[0][0].numpy().tobytes() for _ in range(20)}
    mode = {"rgb": "RGB", "gray": "L", "rgba": "RGBA"}[channels]
    whole = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / name)).convert(mode))
    assert set(asked) == {whole.shape[:2]}
    height, width = whole.shape[:2]
    box = Box(height // 4, width // 5, height // 2, width // 3)
    if name == "turned.jpg":  # by 90 degrees clockwise: what was drawn from the top lies at the right
        box = box._replace(left=width - box.left - box.width)
    expected = np.empty(spec.shape, np.uint8)
    resize(np.ascontiguousarray(whole).reshape(height, width, -1), box, expected)
    assert len(seen) == 2
    found = [np.frombuffer(item, np.uint8).reshape(spec.shape).astype(int) for item in seen]
    straight = min(found, key=lambda item: float(np.abs(item - expected).mean()))
    assert np.abs(straight - expected).mean() < 2
    assert {item.tobytes() for item in found} == {straight.tobytes(), straight[:, ::-1].tobytes()}


def test_a_jpeg_is_decoded_no_larger_than_its_rectangle_needs(
    tmp_path: Path, photo: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(photo).save(tmp_path / "a.jpg", quality=95)
    monkeypatch.setattr(image_lanes, "random_box", lambda height, width: Box(64, 128, 384, 320))
    shrunk: list[int] = []
    monkeypatch.setattr(image_lanes, "resize", lambda *given: (shrunk.append(given[3]), resize(*given))[1])
    expected = np.empty((32, 32, 3), np.uint8)
    resize(np.asarray(Image.open(tmp_path / "a.jpg")), Box(64, 128, 384, 320), expected)
    with open_source(tmp_path) as source:
        item = CroppedImages(source, np.array([0]), PixelSpec((32, 32)))[0][0].numpy().astype(int)
    assert shrunk == [4]
    assert min(np.abs(item - expected).mean(), np.abs(item[:, ::-1] - expected).mean()) < 2


@pytest.mark.parametrize("size", [(300, 400), (40, 40), (10, 1000), (1000, 1), (1, 1)])
def test_rectangles_are_those_of_random_resized_crop(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    boxes = [random_box(*size) for _ in range(2000)]
    for top, left, height, width in boxes:
        assert 0 <= top <= top + height <= size[0]
        assert 0 <= left <= left + width <= size[1]
        assert height >= 1
        assert width >= 1
    if size == (10, 1000):  # none fits, mostly: the middle
        assert (0, 493, 10, 13) in boxes


@pytest.mark.skipif(not torchvision_here.READY, reason=torchvision_here.REASON)
def test_rectangles_are_drawn_as_often_as_torchvisions() -> None:
    crop = import_module("torchvision.transforms.v2").RandomResizedCrop(224)
    picture = [torch.empty(3, 300, 400)]
    torch.manual_seed(0)
    params = [crop.make_params(picture) for _ in range(4000)]
    expected = np.array([[each[name] for name in ("top", "left", "height", "width")] for each in params])
    boxes = np.array([random_box(300, 400) for _ in range(4000)])
    for share in (5, 25, 50, 75, 95):
        own, theirs = np.percentile(boxes, share, axis=0), np.percentile(expected, share, axis=0)
        np.testing.assert_allclose(own, theirs, atol=8)
    shapes = boxes[:, 3] / boxes[:, 2]
    assert 0.74 < shapes.min() < 0.77
    assert 1.3 < shapes.max() < 1.35


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
