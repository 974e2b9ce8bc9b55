from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from packer import convert_images, pack_dataset, repack
from packer.bench import image_baseline
from packer.bench.image_baseline import (
    CroppedAndFlipped,
    RawImages,
    Resized,
    check_same,
    image_field,
    random_box,
    source_indices,
)
from packer.errors import ImageError, PackerError, UsageError
from packer.inputs.image_sources import open_source
from packer.inputs.label_options import Labels
from packer.inputs.opened_source import SourceOptions
from packer.packs.pack_opening import open_pack
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.pixels.resampling import resize
from packer.pixels.row_placement import Box
from tests import torchvision_here
from tests.bench.conftest import STORED


def check(images: Path, pack: Path) -> int:
    opened = open_pack(pack)
    image_field(opened)
    with open_source(images, SourceOptions(Labels(unlabeled="all"))) as source:
        return check_same(source, opened, source_indices(source, opened))


def test_each_row_is_found_in_the_source(photo_folder: Path, pack: Path) -> None:
    opened = open_pack(pack)
    with open_source(photo_folder) as source:
        indices = source_indices(source, opened)
        assert [source.keys[index] for index in indices.tolist()] == opened.keys()
        assert sorted(indices.tolist()) == list(range(24))


def test_what_was_packed_is_the_same(photo_folder: Path, pack: Path) -> None:
    assert check(photo_folder, pack) == 24


def test_an_image_that_is_gone_is_named(photo_folder: Path, pack: Path) -> None:
    (photo_folder / "green" / "3.jpg").unlink()
    row = open_pack(pack).keys().index("green/3.jpg")
    message = (
        f"{pack}: row {row} is 'green/3.jpg', which {photo_folder} does not hold;"
        " bench needs the images that the pack was converted from. Pass those."
    )
    with pytest.raises(PackerError, match=re.escape(message)):
        check(photo_folder, pack)


def test_an_image_that_changed_is_named(photo_folder: Path, pack: Path) -> None:
    Image.fromarray(np.zeros((40, 48, 3), np.uint8)).save(photo_folder / "red" / "0.jpg")
    row = open_pack(pack).keys().index("red/0.jpg")
    message = (
        f"{pack}: row {row} has other pixels than 'red/0.jpg' in {photo_folder} gives now;"
        " a comparison needs the same pixels on both sides. Convert the images again."
    )
    with pytest.raises(PackerError, match=re.escape(message)):
        check(photo_folder, pack)


def odd_files(folder: Path) -> None:
    """Add files that need more than a JPEG decoder, or have to be turned or enlarged."""
    draws = np.random.default_rng(1)
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = draws.integers(0, 255, (44, 60, 4), dtype=np.uint8)
    Image.fromarray(pixels[..., :3]).save(folder / "red" / "turned.jpg", exif=exif)
    Image.fromarray(pixels[..., 0]).save(folder / "red" / "gray.jpg")
    Image.fromarray(pixels).save(folder / "red" / "clear.png")
    Image.fromarray(pixels[:9, :7, :3]).save(folder / "red" / "small.webp")


@pytest.mark.parametrize("name", STORED)
def test_rows_stored_otherwise_are_the_same(photo_folder: Path, tmp_path: Path, name: str) -> None:
    odd_files(photo_folder)
    convert_images(photo_folder, tmp_path / "p", **STORED[name])
    assert check(photo_folder, tmp_path / "p") == 28


def test_another_way_of_storing_is_the_same(photo_folder: Path, pack: Path, tmp_path: Path) -> None:
    odd_files(photo_folder)
    convert_images(photo_folder, tmp_path / "raw.h5", size=32)
    repack(tmp_path / "raw.h5", tmp_path / "jpeg.h5", store="jpeg", quality=60)
    assert check(photo_folder, tmp_path / "jpeg.h5") == 28


@pytest.mark.parametrize("changed", ["pixels", "quality"])
def test_other_pixels_of_rows_stored_otherwise_are_found(
    photo_folder: Path, stored: Path, changed: str
) -> None:
    """A little noise, or the file encoded anew, is enough."""
    path = photo_folder / "green" / "3.jpg"
    pixels = np.array(Image.open(path))
    if changed == "pixels":
        pixels[20:24, 20:24] ^= 8
    Image.fromarray(pixels).save(path, quality=100 if changed == "pixels" else 85)
    row = open_pack(stored).keys().index("green/3.jpg")
    message = (
        f"{stored}: row {row} has other pixels than 'green/3.jpg' in {photo_folder} gives now;"
        " a comparison needs the same pixels on both sides. Convert the images again."
    )
    with pytest.raises(PackerError, match=f"^{re.escape(message)}$"):
        check(photo_folder, stored)


@pytest.mark.parametrize("name", ["whole jpeg", "kept jpeg"])
def test_another_size_is_found(photo_folder: Path, tmp_path: Path, name: str) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", **STORED[name])
    path = photo_folder / "green" / "3.jpg"
    Image.open(path).crop((0, 0, 48, 30)).save(path)
    with pytest.raises(PackerError, match=r"row \d+ has other pixels than 'green/3.jpg' in "):
        check(photo_folder, tmp_path / "p.h5")


def test_an_image_that_is_damaged_now_is_named(photo_folder: Path, stored: Path) -> None:
    (photo_folder / "green" / "3.jpg").write_bytes(b"\xff\xd8\xff\xe0 nothing")
    with pytest.raises(
        ImageError, match=f"^{re.escape(str(photo_folder))}/green/3.jpg: a damaged or truncated JPEG"
    ):
        check(photo_folder, stored)


def test_packs_that_cannot_be_compared_are_refused(photo_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.h5"
    packed: list[Callable[[], object]] = [
        lambda: convert_images(photo_folder, out, size=32, store="gzip"),
        lambda: convert_images(photo_folder, out, size=32, dtype="uint16", overwrite=True),
        lambda: pack_dataset({"image": np.zeros((4, 8, 8, 3), np.uint8)}, out, overwrite=True),
        lambda: pack_dataset({"features": np.zeros((4, 8))}, out, overwrite=True),
    ]
    for pack in packed:
        pack()
        with pytest.raises(UsageError) as error:
            image_field(open_pack(out))
        assert str(error.value) == (
            f"{out}: bench compares images of 8 bits, raw or JPEG, with the files that packer convert"
            " read; this pack has none. Pass another pack."
        )


SPEC = PixelSpec((32, 24))


def test_items_are_the_pixels_that_convert_makes(photo_folder: Path) -> None:
    indices, labels = np.array([20, 3]), np.array([5, 6])
    expected = np.empty(SPEC.shape, np.uint8)
    with open_source(photo_folder) as source:
        items = RawImages(source, indices, labels, Resized(SPEC))
        assert len(items) == 2
        for item, index in enumerate(indices.tolist()):
            DecodeResize(SPEC)(source.read(index), expected)
            pixels, label = items[item]
            np.testing.assert_array_equal(pixels.numpy(), expected)
            assert label == labels[item]


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

    monkeypatch.setattr(image_baseline, "random_box", fixed)
    spec = PixelSpec((64, 64), channels=channels)
    torch.manual_seed(0)
    with open_source(tmp_path) as source:
        items = RawImages(source, np.array([0]), np.array([1]), CroppedAndFlipped(spec))
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
    monkeypatch.setattr(image_baseline, "random_box", lambda height, width: Box(64, 128, 384, 320))
    shrunk: list[int] = []
    monkeypatch.setattr(image_baseline, "resize", lambda *given: (shrunk.append(given[3]), resize(*given))[1])
    expected = np.empty((32, 32, 3), np.uint8)
    resize(np.asarray(Image.open(tmp_path / "a.jpg")), Box(64, 128, 384, 320), expected)
    with open_source(tmp_path) as source:
        item = CroppedAndFlipped(PixelSpec((32, 32)))(source.read(0)).astype(int)
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
