from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from packer import convert_images, open_pack
from packer.errors import UsageError

Examine = Callable[..., list[str]]


def png(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


PHOTO = png(np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8))
MASK = png(np.tile(np.array([[0, 255]], np.uint8), (40, 24)))


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
        f"{image}.png, of one channel on one side; they would be packed as images. Pass "
        f"pairs={{'mask': 'pets/*{mask}.png'}}, or, if they are images, a list of the files."
    ]


def test_names_in_pairs_are_no_masks_if_their_pixels_are_those_of_images(errors: Examine) -> None:
    assert (
        errors({f"{name}_{side}.png": PHOTO for name in ("x", "y", "z") for side in ("left", "right")}) == []
    )
    assert errors({"a.png": PHOTO, "b.png": PHOTO, "c.png": PHOTO, "c_mask.png": MASK}) == []


def test_frames_of_videos_are_images(errors: Examine, notes: Examine) -> None:
    keys = [f"a/v{video}_frame{number}.png" for video in range(3) for number in range(4)]
    assert errors(dict.fromkeys(keys, PHOTO)) == []
    (note, _) = notes(dict.fromkeys(keys, PHOTO))
    assert note.startswith(
        "pets: nearly all names belong to 3 groups of 4 files, such as a/v0_frame0.png, a/v0_frame1.png, "
        "a/v0_frame2.png, a/v0_frame3.png; each is packed as an image. Pass pairs="
    )


def test_masks_that_differ_from_their_images_in_the_suffix(errors: Examine, notes: Examine) -> None:
    names = ("x", "y", "z_2")
    files = {f"{name}{end}": content for name in names for end, content in ((".jpg", PHOTO), (".png", MASK))}
    assert errors(files) == [
        "pets: 3 images are named like masks of other images, such as x.png beside x.jpg, of one channel on one "
        "side; they would be packed as images. Pass pairs={'mask': 'pets/*.png'}, or, if they are images, a list "
        "of the files."
    ]
    copies = {f"a/{name}{end}": PHOTO for name in names for end in (".jpeg", ".png")}
    assert notes(copies) == [
        "pets: nearly all names belong to 3 groups of 2 files, such as a/x.jpeg and a/x.png; each is packed as an "
        "image.",
        "All images are in one class folder (a).",
    ]


def test_labels_in_names_are_noted(notes: Examine) -> None:
    assert notes([f"{name}.{number}.jpg" for name in ("cat", "dog") for number in range(3)])[1:] == [
        "The names begin with 2 words (cat 3, dog 3). If these are the classes, sort the images into folders called by "
        "them, or write them into a CSV for labels=."
    ]
    for keys in (
        ["cat.1.jpg", "cat.2.jpg"],
        ["a1.jpg", "b1.jpg", "c1.jpg"],
        ["1.jpg", "a2.jpg", "a3.jpg", "b1.jpg"],
    ):
        assert len(notes(keys)) == 1


def test_the_remedy_for_several_kinds_of_files_packs_them(tmp_path: Path) -> None:
    for name in ("a1", "b7", "c_3"):
        for band in ("B02", "B03", "image"):
            file = tmp_path / "photos" / f"{name}_{band}.png"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(MASK)
    place = f"{tmp_path}/photos"
    pairs = {"b03": f"{place}/*03.png", "kind3": f"{place}/*_image.png"}
    with pytest.raises(UsageError) as error:
        convert_images(place, tmp_path / "a.h5", size=8)
    assert f"each would be an image. Pass pairs={pairs} to pack one kind as the images" in str(error.value)
    report = convert_images(place, tmp_path / "a.h5", size=8, pairs=pairs)
    assert (report.rows, [f.name for f in open_pack(tmp_path / "a.h5").fields]) == (
        3,
        ["image", "b03", "kind3", "key"],
    )
