"""Preprocess: a new image is the row that conversion makes of it, byte for byte, and the batch that loading makes of that row."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer import (
    PackedBatchDataset,
    Preprocess,
    convert_images,
    convert_table,
    merge_packs,
    open_pack,
    pack_dataset,
    repack,
    split_pack,
)
from packer.errors import ImageError, UsageError

torch = pytest.importorskip("torch")

from packer.augment import Pipeline  # noqa: E402

TURNED = Image.Exif()
TURNED[0x0112] = 6


def picture(mode: str, height: int = 90, width: int = 70) -> Image.Image:
    """Smooth colours, so that JPEG keeps them; of modes with alpha it falls from left to right."""
    y, x = np.mgrid[:height, :width]
    colors = [255 * y // height, 255 * x // width, (3 * x + 2 * y) % 256, 255 - 255 * x // width]
    if mode == "I;16":
        return Image.fromarray((257 * colors[0] + x).astype(np.uint16))
    rgba = Image.fromarray(np.stack(colors, axis=2).astype(np.uint8))
    return rgba.convert("RGB").convert("P") if mode == "P" else rgba.convert(mode)


FILES: dict[str, Callable[[Path], None]] = {
    "a/photo.jpg": lambda path: picture("RGB", 300, 400).save(path, quality=90),
    "a/plain.jpg": lambda path: picture("RGB", 32, 32).save(path),
    "a/turned.jpg": lambda path: picture("RGB").save(path, exif=TURNED),
    "a/cmyk.jpg": lambda path: picture("CMYK").save(path),
    "b/alpha.png": lambda path: picture("RGBA").save(path, exif=TURNED),
    "b/palette.png": lambda path: picture("P").save(path),
    "b/gray.jpg": lambda path: picture("L", 200, 90).save(path),
    "b/deep.png": lambda path: picture("I;16").save(path),
    "b/odd.webp": lambda path: picture("RGB", 41, 33).save(path),
}
KINDS: dict[str, dict[str, Any]] = {
    "crop": {"size": 32},
    "pad": {"size": "24x40", "fit": "pad"},
    "stretch, gray": {"size": 32, "fit": "stretch", "channels": "gray"},
    "rgba": {"size": 32, "channels": "rgba"},
    "16 bits": {"size": 32, "dtype": "uint16"},
    "jpeg": {"size": 32, "store": "jpeg", "quality": 70},
    "gzip": {"size": 32, "store": "gzip", "split": "x=0.5,y=0.5"},
    "shards": {"size": 32, "shards": 4},
    "longest side": {"size": "max=40", "store": "jpeg"},
    "shortest side": {"size": "min=20"},
    "whole": {"size": "keep", "store": "jpeg"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name, write in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write(folder / name)
    return folder


def rows_of(pack: Any) -> dict[str, Any]:
    """Key -> image as it is loaded, [H, W, C]."""
    with PackedBatchDataset(pack, 1, fields=("image", "key"), output="numpy", split="all") as dataset:
        return {batch.key[0]: batch.image[0] for batch in dataset}


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_image_is_the_row_that_conversion_makes(kind: str, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / ("out" if "shards" in KINDS[kind] else "out.h5")
    convert_images(folder, out, **KINDS[kind])
    rows = rows_of(out)
    assert len(rows) == len(FILES)
    preprocess = Preprocess(out)
    for again in (preprocess, Preprocess(json.loads(json.dumps(preprocess.to_dict())))):
        for key, row in rows.items():
            made = again(folder / key)
            assert (made.dtype, made.shape) == (row.dtype, row.shape), key
            assert made.tobytes() == row.tobytes(), key
    several = pickle.loads(pickle.dumps(preprocess))([(folder / key).read_bytes() for key in rows])
    assert [row.tobytes() for row in several] == [row.tobytes() for row in rows.values()]
    assert preprocess.classes == ["a", "b"]


def test_bands_are_files_and_arrays_alike(tmp_path: Path) -> None:
    bands = np.arange(20 * 30 * 5, dtype=np.uint16).reshape(20, 30, 5)
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "0.npy", bands)
    convert_images(tmp_path / "in", tmp_path / "out.h5", size=8, channels="auto", dtype="uint16")
    preprocess, (row,) = Preprocess(tmp_path / "out.h5"), rows_of(tmp_path / "out.h5").values()
    assert np.array_equal(preprocess(tmp_path / "in" / "0.npy"), row)
    assert np.array_equal(preprocess(bands), row)


@pytest.mark.parametrize("options", [{}, {"dtype": "uint16"}, {"size": "max=40", "store": "jpeg"}], ids=str)
def test_an_image_of_pillow_and_an_array_are_what_a_png_file_of_them_is(
    options: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    convert_images(folder, tmp_path / "p.h5", **{"size": 32} | options)
    preprocess = Preprocess(tmp_path / "p.h5")
    for mode in ("RGB", "RGBA", "L", "LA", "P", "I;16", "1"):
        image = picture(mode)
        image.info["exif"] = TURNED.tobytes()
        image.save(tmp_path / "i.png", exif=TURNED)
        row = preprocess(tmp_path / "i.png")
        assert np.array_equal(preprocess(image), row), mode
        if mode in ("RGB", "RGBA", "L", "I;16"):
            picture(mode).save(tmp_path / "i.png")
            assert np.array_equal(preprocess(np.asarray(image)), preprocess(tmp_path / "i.png")), mode
    with Image.open(folder / "a/cmyk.jpg") as cmyk:
        assert preprocess(cmyk).shape == preprocess(folder / "a/cmyk.jpg").shape


AUGMENT = "Resize((40, 36)), CenterCrop(30), Normalize()"


@pytest.mark.parametrize("kind", ["crop", "jpeg", "16 bits", "longest side", "shortest side"])
def test_with_augment_it_is_the_loaders_batch(kind: str, folder: Path, tmp_path: Path) -> None:
    convert_images(folder, tmp_path / "p.h5", **KINDS[kind])
    with PackedBatchDataset(tmp_path / "p.h5", 9, fields=("image", "key"), augment=AUGMENT) as dataset:
        batch = next(iter(dataset))
    made = Preprocess(tmp_path / "p.h5", AUGMENT)
    made = pickle.loads(pickle.dumps(Preprocess(json.loads(json.dumps(made.to_dict())))))
    images = made([str(folder / key) for key in batch.key])
    assert (images.dtype, images.shape) == (torch.float32, (9, 3, 30, 30))
    assert torch.equal(images, batch.image)
    assert made([]).shape == (0, 3, 30, 30)
    one = open_pack(tmp_path / "p.h5").preprocess(folder / batch.key[2], augment=AUGMENT)
    assert torch.equal(one, batch.image[2])


def test_normalize_means_what_it_did_in_training(folder: Path, tmp_path: Path) -> None:
    """Of a pack that is made while it is loaded from, the mean of a sample; of one that is like another, that one's."""
    convert_images(folder, tmp_path / "p.h5", size=32)
    convert_images(folder / "a", tmp_path / "like.h5", like=tmp_path / "p.h5")
    filled = replace(open_pack(tmp_path / "p.h5"), filled=True)
    for pack in (filled, open_pack(tmp_path / "like.h5")):
        image = PackedBatchDataset(pack, 1, fields=("image",), augment="Normalize()").batch(0).image
        source = folder / pack.keys()[0] if pack is filled else folder / "a" / pack.keys()[0]
        for augment in ("Normalize()", Pipeline("Normalize()")):
            assert torch.equal(Preprocess(pack, augment)([source]), image)


def test_parts_and_merged_packs_tell_how_their_rows_were_made(folder: Path, tmp_path: Path) -> None:
    convert_images(folder, tmp_path / "p.h5", size=32, fit="pad")
    split_pack(tmp_path / "p.h5", "x=0.5,y=0.5")
    merge_packs([tmp_path / "p.x.h5", tmp_path / "p.y.h5"], tmp_path / "m.h5")
    key, row = next(iter(rows_of(tmp_path / "m.h5").items()))
    assert np.array_equal(Preprocess(tmp_path / "m.h5")(folder / key), row)


def test_packs_that_do_not_tell_are_refused(folder: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "p.h5")

    def refused(pack: Any = out) -> str:
        with pytest.raises(UsageError) as error:
            Preprocess(pack)
        return str(error.value)

    pack_dataset({"image": np.zeros((4, 8, 8, 3), np.uint8)}, out)
    assert refused() == (
        f"{out}: does not record how an image becomes a row; packs that were converted from images do, but not those of samples"
        " from Python, nor joined packs. Pass one such pack, or make the row as your dataset does."
    )
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    convert_table(tmp_path / "t.csv", out, overwrite=True)
    assert refused() == f"{out}: was made from a table, not of images. Take packer.tables.apply."
    convert_images(folder, out, size=32, overwrite=True)
    repack(out, tmp_path / "again.h5", size=16)
    assert refused(tmp_path / "again.h5") == (
        f"{tmp_path}/again.h5: its rows were rewritten by packer repack, and may differ from the rows of one conversion. Pass the"
        f" pack that they come from, or one converted with like='{tmp_path}/again.h5'."
    )
    assert (
        refused({"size": [3, 3]})
        == "pack: the mapping has no 'fit'; only the result of to_dict() is allowed. Pass that."
    )


def test_what_cannot_be_used_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    convert_images(folder, tmp_path / "p.h5", size=32)
    preprocess = Preprocess(tmp_path / "p.h5")
    photo = folder / "a/photo.jpg"
    (tmp_path / "cut.jpg").write_bytes(photo.read_bytes()[:999])
    for images, error, message in [
        (tmp_path / "cut.jpg", ImageError, f"{tmp_path}/cut.jpg: a damaged or truncated JPEG file."),
        (tmp_path / "none.jpg", ImageError, "none.jpg: cannot be read (No such file or directory). Check the name."),
        ([photo, b"GIF"], ImageError, "^image 1: not an image;"),
        (b"", ImageError, "^empty (0 bytes)."),
        (Image.new("F", (9, 9)), ImageError, "^its pixels are 32-bit floats; 8 and 16 bits a channel are read."),
        (np.zeros((3, 9, 9), np.uint8), UsageError, "an array uint8 [3, 9, 9] is given; uint8 [h, w, 3], channels last, in RGB order,"),
        (np.zeros((9, 9, 3)), UsageError, "an array float64 [9, 9, 3] is given"),
        (7, UsageError, "images: a int is given; a path, the bytes of a file,"),
    ]:  # fmt: skip
        with pytest.raises(error, match=re.escape(message).replace(r"\^", "^")):
            preprocess(images)
    for augment in ("RandomCrop(20), Normalize()", "RandomHorizontalFlip(0.01)", "MixUp(num_classes=2)"):
        with pytest.raises(
            UsageError,
            match=r" changes images at random; only transforms without draws are allowed here\. Pass the",
        ):
            Preprocess(tmp_path / "p.h5", augment)
    assert Preprocess(tmp_path / "p.h5", "RandomHorizontalFlip(1), RandomGrayscale(1)")([photo]).shape == (
        1,
        3,
        32,
        32,
    )
