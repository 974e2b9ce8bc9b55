from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

Examine = Callable[..., list[str]]


def png(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


PHOTO = png(np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8))
MASK = png(np.tile(np.uint8([[0, 255]]), (40, 24)))


@pytest.mark.parametrize(("image", "mask"), [("", "_mask"), ("_sat", "_mask"), ("", " seg"), ("-rgb", "-L")])
@pytest.mark.parametrize("folder", ["", "a/"])
def test_masks_in_the_folder_of_their_images(errors: Examine, folder: str, image: str, mask: str) -> None:
    files = {
        f"{folder}{name}{end}.png": content
        for name in ("x (1)", "y", "z_2")
        for end, content in ((image, PHOTO), (mask, MASK))
    }
    assert errors(files) == [
        f"pets: 3 images are named like masks of other images, such as {folder}x (1){mask}.png beside {folder}x (1)"
        f"{image}.png, of one channel on one side; they would be packed as images. Move them into a separate folder, "
        "and pass it by pairs={'mask': 'DIR'}, or pass a list of the files that are images."
    ]


def test_names_in_pairs_are_no_masks_if_their_pixels_are_those_of_images(errors: Examine) -> None:
    assert (
        errors({f"{name}_{side}.png": PHOTO for name in ("x", "y", "z") for side in ("left", "right")}) == []
    )
    assert errors({"a.png": PHOTO, "b.png": PHOTO, "c.png": PHOTO, "c_mask.png": MASK}) == []
