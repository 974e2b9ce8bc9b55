"""Notes on masks whose values are probably no numbers of classes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from packer.convert.image_conversion import convert_images
from packer.inputs.image_pairs import Soft

Encode = Callable[..., bytes]
SIDE = 64


def notes(folder: Path, masks: dict[str, bytes], **options: object) -> list[str]:
    """Return the notes that begin with the name of the pair. masks: name -> file."""
    for place in ("images", "masks"):
        (folder / place).mkdir(exist_ok=True)
    for number, (name, data) in enumerate(masks.items()):
        Image.new("RGB", (SIDE, SIDE), (number, 0, 0)).save(folder / "images" / f"{Path(name).stem}.png")
        (folder / "masks" / name).write_bytes(data)
    given = {"pairs": {"mask": folder / "masks"}, "size": SIDE, **options}
    report = convert_images(folder / "images", folder / "p.h5", overwrite=True, **given)  # type: ignore[arg-type]
    found = [note.removeprefix("mask: ") for note in report.notes if note.startswith("mask: ")]
    return [note.replace(f"{folder}/", "") for note in found]


def file_of(values: np.ndarray, format: str = "PNG") -> bytes:
    file = io.BytesIO()
    if format == "npy":
        np.save(file, values)
    else:
        Image.fromarray(values).save(file, format)
    return file.getvalue()


def stripes(values: list[int], dtype: str = "u1") -> np.ndarray:
    """A mask [SIDE, SIDE] that holds these values."""
    return np.repeat(np.resize(np.array(values, dtype), SIDE), SIDE).reshape(SIDE, SIDE)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            [0, 255],
            "of 3 files examined, all hold the values 0 and 255, such as masks/0.png; a network's classes are numbered 0 "
            "and 1. Pass mask_values='0,255' to store these.",
        ),
        (
            [0, 128, 255],
            "of 3 files examined, all hold the values 0, 128 and 255, such as masks/0.png; a network's classes are numbered "
            "0, 1 and 2. Pass mask_values='0,128,255' to store these.",
        ),
    ],
)
def test_values_that_were_scaled_to_be_seen(tmp_path: Path, values: list[int], sentence: str) -> None:
    masks = {f"{k}.png": file_of(stripes(values[: 2 + k])) for k in range(3)}
    assert notes(tmp_path, masks) == [sentence]
    assert notes(tmp_path, masks, mask_values=values) == []
    assert notes(tmp_path, masks, pairs={"mask": Soft(tmp_path / "masks")}) == []
    arrays = {f"{k}.npy": file_of(stripes(values), "npy") for k in range(3)}
    folder = tmp_path / "arrays"
    folder.mkdir()
    assert len(notes(folder, arrays)) == 1


@pytest.mark.parametrize(
    "values",
    [
        [0, 1],
        [0, 1, 255],  # ignored pixels
        [0, 15, 255],  # Pascal VOC: background, person, edges
        [0, 7, 8, 11, 21, 24, 26, 33],  # Cityscapes
        [0, 20],
        [*range(150)],
        [0],
        [255],
        [1, 2, 3],
        [0, 26, 255],
    ],
    ids=str,
)
def test_numbers_of_classes_are_not_noted(tmp_path: Path, values: list[int]) -> None:
    assert notes(tmp_path, {f"{k}.png": file_of(stripes(values)) for k in range(3)}) == []


def test_masks_of_16_bits_and_of_1_bit(tmp_path: Path, encode: Encode) -> None:
    (sentence,) = notes(tmp_path, {"a.png": file_of(stripes([0, 65535], "u2"))})
    assert sentence.endswith("Pass mask_values='0,65535' to store these.")
    other = tmp_path / "bits"
    other.mkdir()
    assert notes(other, {"a.png": encode(Image.fromarray(stripes([0, 255])).convert("1"), "PNG")}) == []


def test_soft_edges(tmp_path: Path) -> None:
    edge = Image.fromarray(255 * (np.arange(SIDE) > np.linspace(10, 40, SIDE)[:, None]).astype(np.uint8))
    masks = {f"{k}.png": file_of(np.asarray(edge.filter(ImageFilter.GaussianBlur(0.6)))) for k in range(3)}
    (sentence,) = notes(tmp_path, masks)
    assert sentence.startswith(
        "of 3 files examined, most hold 0, 255 and values between, as soft edges have, such as masks/0.png; as classes these are "
    )
    assert sentence.endswith(
        " Save masks without them; if they are amounts, such as mattes or depth, pass them as soft."
    )


def test_jpeg_files(tmp_path: Path) -> None:
    blocks = np.kron(np.array([[0, 255], [255, 0]], np.uint8), np.ones((32, 32), np.uint8))
    for mode in ("L", "RGB"):
        file = io.BytesIO()
        Image.fromarray(blocks).resize((SIDE, SIDE), Image.Resampling.BILINEAR).convert(mode).save(
            file, "JPEG"
        )
        (sentence,) = notes(tmp_path, {"a.jpg": file.getvalue()})
        assert sentence.startswith(
            "of 1 file examined, 1 are JPEG files, which store values only approximately, such as masks/a.jpg ("
        )


COLORS = np.array([(0, 0, 0), (128, 0, 0), (0, 128, 0)], np.uint8)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            COLORS[stripes([0, 1, 2])],
            "of 2 files examined, 2 have 3 channels, such as masks/0.png: 3 colors. Class masks have one channel of numbers: "
            "pass mask_values='#000000,#008000,#800000', in the order of the classes.",
        ),
        (
            np.repeat(stripes([0, 255])[..., None], 3, 2),
            "of 2 files examined, 2 have 3 channels, such as masks/0.png: 2 grey values. Class masks have one "
            "channel of numbers: pass mask_values='0,255', in the order of the classes.",
        ),
        (
            np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8),
            "of 2 files examined, 2 have 3 channels, such as masks/0.png; class masks have one. Save masks as grey or palette "
            "PNG if they are classes.",
        ),
        (
            np.zeros((SIDE, SIDE, 4), np.uint8),
            "of 2 files examined, 2 have 4 channels, such as masks/0.png; class masks have one. Save masks as grey or palette "
            "PNG if they are classes.",
        ),
    ],
)
def test_masks_of_several_channels(tmp_path: Path, values: np.ndarray, sentence: str) -> None:
    assert notes(tmp_path, {f"{k}.png": file_of(values) for k in range(2)}) == [sentence]


def test_colors_that_are_similar_or_many(tmp_path: Path) -> None:
    lossy = np.array([(0, 0, 0), (1, 1, 2), (255, 255, 255)], np.uint8)
    many = np.random.default_rng(0).integers(0, 256, (30, 3)).astype(np.uint8)
    for colors, number in ((lossy, 3), (many, 30)):
        masks = {f"{k}.png": file_of(colors[stripes([*range(number)])]) for k in range(2)}
        assert notes(tmp_path, masks) == [
            f"of 2 files examined, 2 have 3 channels, such as masks/0.png: {number} colors. Class masks have one channel of "
            "numbers: list the colors of the classes by mask_values=, or save masks as grey or palette PNG."
        ]


def test_amounts(tmp_path: Path) -> None:
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    depth = (500 * np.hypot(x - 20, y - 9)).astype(np.uint16)
    masks = {f"{k}.png": file_of(depth + k) for k in range(2)}
    (sentence,) = notes(tmp_path, masks)
    assert sentence.startswith(
        "of 2 files examined, most hold values that change from pixel to pixel, as depth does, such as masks/0.png; as "
    )
    assert sentence.endswith(
        ", and resizing picks the nearest; if they are amounts, such as mattes or depth, pass them as soft."
    )
