"""Images that kept their own size: what is known of them undecoded, and pixels, upright, perhaps fewer."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import native
from packer.codecs import jpeg, png
from packer.errors import FormatError
from packer.format.fields import Field
from packer.read.encoded_images import EncodedImages, channels_of, is_encoded

IMAGE = Field("image", "|u1", None, {"layout": "HWC", "color": "rgb"}, {"name": "jpeg"})
PACK: Any = SimpleNamespace(path="p.h5")


def encoded(height: int, width: int, orientation: int = 1, mode: str = "RGB", **options: int) -> bytes:
    """A smooth picture whose halves and corners differ."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([255 * y / height, 255 * x / width, 127 + 100 * np.sin(x / 9)], axis=2)
    exif = Image.Exif()
    exif[jpeg.EXIF_TAG] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(
        file, "JPEG", quality=92, exif=exif, **options
    )
    return file.getvalue()


def test_which_fields() -> None:
    assert is_encoded(IMAGE)
    assert not is_encoded(Field("image", "|u1", (4, 4, 3), {"layout": "HWC"}))
    assert is_encoded(Field("image", "|u1", None, {"layout": "HWC"}))
    assert not is_encoded(Field("mask", "|u1", None, {"layout": "HW"}, {"name": "png"}))
    assert channels_of(IMAGE) == 3
    assert channels_of(Field("image", "|u1", None, {"layout": "HWC", "color": "gray"}, {"name": "jpeg"})) == 1


def test_sizes_are_upright_and_pixels_those_of_jpeg() -> None:
    rows = [encoded(30, 41), encoded(30, 41, 6), encoded(17, 90, 3), encoded(33, 20, mode="L")]
    images = EncodedImages(PACK, IMAGE, rows, [4, 5, 6, 7])
    assert images.sizes.tolist() == [[30, 41], [41, 30], [17, 90], [33, 20]]
    assert images.reducible.tolist() == [True, False, False, True]
    for i, row in enumerate(rows):
        out = np.empty((*images.sizes[i], 3), np.uint8)
        images.decode_into(i, out)
        assert np.array_equal(out, jpeg.decode(row, 10_000, 3))
        wider = np.empty((*images.sizes[i], 4), np.uint8)
        images.decode_into(i, wider)
        assert np.array_equal(wider[..., :3], out)


@pytest.mark.parametrize("by", [2, 4, 8])
@pytest.mark.parametrize("size", [(64, 96), (61, 90), (16, 17)])
def test_fewer_pixels_are_means_of_those_there_are(by: int, size: tuple[int, int]) -> None:
    images = EncodedImages(PACK, IMAGE, [encoded(*size)], [0])
    height, width = (-(-side // by) for side in size)
    full, small = np.empty((*size, 3), np.uint8), np.empty((height, width, 3), np.uint8)
    images.decode_into(0, full)
    images.decode_into(0, small, by)
    whole = size[0] // by, size[1] // by
    means = full[: whole[0] * by, : whole[1] * by].reshape(whole[0], by, whole[1], by, 3).mean(axis=(1, 3))
    assert np.abs(small[: whole[0], : whole[1]] - means).mean() < 2.5


def test_small_ones_are_not_reducible() -> None:
    assert EncodedImages(PACK, IMAGE, [encoded(15, 40)], [0]).reducible.tolist() == [False]


@pytest.mark.skipif(not native.COMPILED, reason="whole files are decoded without the compiled loops")
@pytest.mark.parametrize("by", [1, 2])
def test_pixels_that_are_not_seen_are_not_decoded(by: int) -> None:
    rows = [encoded(90, 190, restart_marker_blocks=4), encoded(90, 190), encoded(90, 190, 6)]
    images = EncodedImages(PACK, IMAGE, rows, [0, 1, 2])
    full = np.empty((90 // by, 190 // by, 3), np.uint8)
    images.decode_into(0, full, by)
    assert images.boxes.tolist() == [[0, 0, 190, 90], [0, 0, 190, 90], [0, 0, 90, 190]]
    images.cut(np.array([[70, 40, 81, 47]] * 3))
    assert images.boxes.tolist() == [[64, 32, 128, 64], [0, 0, 190, 90], [0, 0, 90, 190]]
    part, uncut = np.empty((32 // by, 64 // by, 3), np.uint8), np.empty_like(full)
    images.decode_into(0, part, by)
    images.decode_into(1, uncut, by)
    seen = slice(40 // by, -(-47 // by)), slice(70 // by, -(-81 // by))
    assert np.array_equal(uncut, full)
    own = part[: seen[0].stop - 32 // by, : seen[1].stop - 64 // by]
    assert np.array_equal(own[seen[0].start - 32 // by :, seen[1].start - 64 // by :], full[seen])


@pytest.mark.parametrize("array", [np.uint8([[0, 255, 3], [9, 1, 1]]), np.uint16([[0, 65535], [256, 1]])])
def test_masks_are_arrays(array: Any) -> None:
    about = {"layout": "HW", "sampling": "nearest", "dtype": array.dtype.str}
    field = Field("mask", "|u1", None, about, {"name": "png", "shape": None})
    images = EncodedImages(PACK, field, [png.encode(array)], [3])
    assert images.sizes.tolist() == [list(array.shape)]
    assert not images.reducible.any()
    out = np.zeros_like(array)
    images.decode_into(0, out)
    assert np.array_equal(out, array)
    with pytest.raises(FormatError, match=r"p\.h5: row 3 of 'mask' is damaged \(.*int8"):
        images.decode_into(0, np.zeros(array.shape, np.int8))
    images.cut(np.array([[0, 1, 1, 2]]))
    some = np.zeros((1, 1), array.dtype)
    images.decode_into(0, some)
    assert some[0, 0] == array[1, 0]
    images.check_sizes(images.sizes)
    with pytest.raises(FormatError, match=r"row 3 of 'mask' .* beside an image of 1 x 1"):
        images.check_sizes(np.array([[1, 1]]))


def test_damage_names_the_row() -> None:
    whole = encoded(30, 41)
    with pytest.raises(FormatError, match=r"p\.h5: row 9 of 'image' is damaged \(.*Run packer verify"):
        EncodedImages(PACK, IMAGE, [whole, b"no picture"], [8, 9])
    images = EncodedImages(PACK, IMAGE, [whole, whole[:-60]], [8, 9])
    with pytest.raises(FormatError, match=r"p\.h5: row 9 of 'image' is damaged"):
        images.decode_into(1, np.empty((30, 41, 3), np.uint8))
