from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from packer.errors import ImageError
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.pixels.plain_ppm import decode_plain_ppm, plain_ppm_size

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
PLAIN = b"P6\n7 5\n255\n" + PIXELS.tobytes()


def test_pixels_are_those_of_the_file_and_of_pillow() -> None:
    size = plain_ppm_size(PLAIN, "rgb")
    assert size == (5, 7)
    decoded = decode_plain_ppm(PLAIN, size)
    assert np.array_equal(decoded, PIXELS)
    assert np.array_equal(decoded, np.asarray(Image.open(io.BytesIO(PLAIN))))


@pytest.mark.parametrize(
    "data",
    [
        PLAIN[:-1],
        PLAIN + b"\0",
        b"P5" + PLAIN[2:],
        PLAIN.replace(b"255", b"254"),
        PLAIN.replace(b"\n255", b"\n# 1\n255"),
        PLAIN.replace(b"7 5", b"0 5"),
        b"P6\n",
        b"",
    ],
)
def test_every_other_file_is_left_to_pillow(data: bytes) -> None:
    assert plain_ppm_size(data, "rgb") is None


@pytest.mark.parametrize("channels", ["gray", "rgba"])
def test_other_channels_are_left_to_pillow(channels: str) -> None:
    assert plain_ppm_size(PLAIN, channels) is None


def test_a_row_is_made_of_it_without_a_change() -> None:
    out = np.empty((5, 7, 3), np.uint8)
    assert DecodeResize(PixelSpec((5, 7)))(PLAIN, out) == (5, 7)
    assert np.array_equal(out, PIXELS)


def test_more_pixels_than_allowed_are_refused() -> None:
    with pytest.raises(ImageError, match=r"^7 x 5 pixels; at most 34 are allowed"):
        DecodeResize(PixelSpec((5, 7), max_pixels=34))(PLAIN, np.empty((5, 7, 3), np.uint8))
