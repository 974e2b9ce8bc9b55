"""Values of masks as numbers of classes: the k-th becomes k."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import append_images, open_pack
from packer.convert.image_conversion import convert_images
from packer.errors import SourceError, UsageError
from packer.inputs.mask_values import MaskValues
from packer.packs.recorded_command import convert_again

LIST = (
    "is not a list of two or more different values of masks, in the order of their classes; whole numbers up to 65,535, or "
    "colors such as #ff0000, are allowed. Pass for example mask_values='0,255'."
)
COLORS = np.array([(0, 0, 0), (128, 0, 0), (0, 128, 0)], np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images of 8x8, of masks of 0, 128 and 255, in colors, in equal channels, of 16 bits, and as JPEG."""
    numbers = np.arange(64).reshape(8, 8) % 3
    grey = np.array([0, 128, 255], np.uint8)[numbers]
    kinds = {
        "grey": grey,
        "color": COLORS[numbers],
        "equal": np.repeat(grey[..., None], 3, 2),
        "deep": np.array([0, 30_000, 65_535], np.uint16)[numbers],
    }
    for kind in ("images", "jpeg", *kinds):
        (tmp_path / kind).mkdir()
    for name in "abc":
        Image.new("RGB", (8, 8), (ord(name), 0, 0)).save(tmp_path / "images" / f"{name}.png")
        Image.fromarray(grey).save(tmp_path / "jpeg" / f"{name}.jpg")
        for kind, values in kinds.items():
            Image.fromarray(values).save(tmp_path / kind / f"{name}.png")
    return tmp_path


def convert(folder: Path, kind: str, values: Any, out: str = "p.h5", **options: Any) -> Any:
    options = {"size": 8, "overwrite": True, **options}
    pairs = {"mask": folder / kind}
    return convert_images(folder / "images", folder / out, pairs=pairs, mask_values=values, **options)


def masks(folder: Path, out: str = "p.h5") -> np.ndarray:
    return open_pack(folder / out).read("mask")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("grey", "0,128,255"),
        ("grey", (0, 128, 255)),
        ("grey", {"mask": ["0", " 128", "255"]}),
        ("color", "#000000,#800000,#008000"),
        ("color", "#000000,#800000,#008000,#123456"),
        ("equal", "0,128,255"),
        ("deep", [0, 30_000, 65_535]),
    ],
)
def test_the_place_of_a_value_is_its_class(folder: Path, kind: str, values: Any) -> None:
    convert(folder, kind, values)
    assert (masks(folder) == np.arange(64).reshape(8, 8) % 3).all()
    field = open_pack(folder / "p.h5").header.field("mask")
    assert (field.dtype, field.shape) == ("|u1", (8, 8))


def test_the_order_decides_and_many_classes_have_16_bits(folder: Path) -> None:
    convert(folder, "grey", "255,0,128")
    assert (masks(folder) == np.array([1, 2, 0])[np.arange(64).reshape(8, 8) % 3]).all()
    convert(folder, "deep", [0, 30_000, 65_535, *range(1, 400)])
    assert masks(folder).dtype == np.uint16


def test_masks_with_one_channel_and_with_three_give_the_same_classes(folder: Path) -> None:
    (folder / "grey" / "b.png").write_bytes((folder / "equal" / "b.png").read_bytes())
    convert(folder, "grey", "0,128,255")
    assert (masks(folder) == np.arange(64).reshape(8, 8) % 3).all()


def test_whole_pictures_and_workers(folder: Path) -> None:
    for workers in (1, 2):
        convert(folder, "grey", "0,128,255", f"{workers}.h5", size="keep", workers=workers)
    assert (folder / "1.h5").read_bytes() == (folder / "2.h5").read_bytes()


@pytest.mark.parametrize(
    ("kind", "values", "found"),
    [("grey", "0,255", "128"), ("color", "#000000,#800000", "#008000"), ("equal", "0,255", "#808080")],
)
def test_another_value_is_an_error_that_names_the_file(
    folder: Path, kind: str, values: str, found: str
) -> None:
    with pytest.raises(SourceError) as error:
        convert(folder, kind, values, shuffle=False, workers=1)
    assert str(error.value).startswith(
        f"{folder}/images/a.png: its mask a.png: holds {found}, which is none of mask_values='{values}'. Remove it, or pass "
        "on_error='skip'."
    )


@pytest.mark.parametrize(
    "values", ["0", "0,0", "0,00", "a,b", "0,#ffffff", "0,70000", "-1,1", "", 5, [1.5, 2], "#fff,#000"]
)
def test_lists_that_are_refused(values: Any) -> None:
    with pytest.raises(UsageError) as error:
        MaskValues.for_fields(values, ["mask"])
    assert str(error.value).startswith("mask_values ")
    assert str(error.value).endswith(LIST)


@pytest.mark.parametrize(
    ("values", "pairs", "sentence"),
    [
        ("0,255", [], "mask_values: is about masks of classes, pairs that are not soft; none is given."),
        (
            {"seg": "0,255"},
            ["mask"],
            "mask_values seg: is about masks of classes, pairs that are not soft; mask is given.",
        ),
    ],
)
def test_values_of_no_pair(values: Any, pairs: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        MaskValues.for_fields(values, pairs)
    assert str(error.value) == f"{sentence} Pass for example pairs={{'mask': 'DIR'}} too."


def test_masks_that_have_no_such_values(folder: Path) -> None:
    with pytest.raises(UsageError) as error:
        convert(folder, "grey", "#000000,#ffffff")
    assert str(error.value) == (
        f"{folder}/grey/a.png: holds uint8; mask_values='#000000,#ffffff' numbers colors. Leave it out."
    )
    file = io.BytesIO()
    Image.fromarray(np.eye(8, dtype=bool)).save(file, "PNG")
    (folder / "grey" / "a.png").write_bytes(file.getvalue())
    with pytest.raises(UsageError) as error:
        convert(folder, "grey", "0,255")
    assert str(error.value) == (
        f"{folder}/grey/a.png: holds 1 bit a pixel, which are 0 and 1 already; mask_values='0,255' numbers whole numbers. "
        "Leave it out."
    )


def test_packs_record_the_values_and_others_take_them(folder: Path) -> None:
    convert(folder, "grey", "0,128,255", "shards", shards=2)
    assert open_pack(folder / "shards").header.provenance["options"]["mask_values"] == {"mask": "0,128,255"}
    assert convert_again(open_pack(folder / "shards")).endswith(
        " --pair mask=DIR --mask-values mask=0,128,255"
    )
    convert(folder, "grey", None, "like.h5", like=folder / "shards")
    assert masks(folder, "like.h5").max() == 2
    (folder / "more").mkdir()
    Image.new("RGB", (8, 8)).save(folder / "more" / "d.png")
    Image.new("L", (8, 8), 255).save(folder / "grey" / "d.png")
    append_images(folder / "shards", folder / "more", pairs={"mask": folder / "grey"})
    assert masks(folder, "shards")[3].tolist() == [[2] * 8] * 8
