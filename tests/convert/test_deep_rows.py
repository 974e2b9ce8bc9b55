"""Packs of 16-bit images and of bands: the rows are the files' values, through everything that is done to packs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import tifffile
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image

import packer
from packer import PackedBatchDataset, convert_images, open_pack
from packer.cli import cli
from packer.convert.reference_pack import ReferencePack
from packer.errors import UsageError

Arrays = dict[str, NDArray[np.uint16]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Arrays]]:
    """Folders of classes: gray/ (PNG and TIFF), rgb/ (PNG), bands/ (TIFF and .npy of 6 bands), 12x10; their values by key."""
    root, values = tmp_path_factory.mktemp("deep"), {}
    draws = np.random.default_rng(2)
    for name, shape in (("gray", (12, 10)), ("rgb", (12, 10, 3)), ("bands", (12, 10, 6))):
        values[name] = {}
        for number in range(6):
            pixels = draws.integers(0, 60_000, shape, dtype=np.uint16)
            ending = (
                ".png"
                if name == "rgb" or (name == "gray" and number % 2)
                else ".npy"
                if number % 2
                else ".tif"
            )
            key = f"{'ab'[number % 2]}/{number}{ending}"
            path = root / name / key
            path.parent.mkdir(parents=True, exist_ok=True)
            if name == "rgb":
                cv2.imwrite(str(path), pixels[..., ::-1])
            elif name == "gray":
                Image.fromarray(pixels).save(path)
            elif ending == ".npy":
                np.save(path, pixels)
            else:
                tifffile.imwrite(path, pixels, photometric="minisblack", planarconfig="contig")
            values[name][key] = pixels
    return root, values


def rows_of(pack: Path) -> Arrays:
    """The rows of a pack by the names of their files, without axes of one channel."""
    opened = open_pack(pack)
    with PackedBatchDataset(opened, opened.rows, fields=("image", "key"), output="numpy") as batches:
        ((images, keys),) = batches
    return {key: image.squeeze(-1) if image.shape[-1] == 1 else image.copy() for key, image in
            zip(keys, images, strict=True)}  # fmt: skip


def same(found: Arrays, expected: Arrays) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[key], expected[key]) for key in found)


KINDS = {"gray": "gray", "rgb": None, "bands": "auto"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("out", ["p.h5", "p"])
def test_rows_are_the_files_values(sources: Any, tmp_path: Path, kind: str, out: str):
    root, values = sources
    convert_images(root / kind, tmp_path / out, size="12x10", dtype="uint16", channels=KINDS[kind])
    assert same(rows_of(tmp_path / out), values[kind])
    pack = open_pack(tmp_path / out)
    color = {"gray": "gray", "rgb": "rgb", "bands": "bands"}[kind]
    assert pack.fields[0].about == {"layout": "HWC", "color": color, "fit": "crop"}
    pixels = np.stack(list(values[kind].values())).reshape(6 * 120, -1) / 65_535
    statistics = pack.header.statistics["image"]
    assert statistics["mean"] == pytest.approx(pixels.mean(0))
    assert statistics["std"] == pytest.approx(pixels.std(0))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_done_to_packs_keeps_values(
    sources: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    root, values = sources
    made = {"size": "12x10", "dtype": "uint16", "channels": KINDS[kind]}
    convert_images(root / kind, "p.h5", **made)
    convert_images(
        root / kind / "a",
        "s",
        shards=2,
        format="h5",
        classes=["a", "b"],
        labels=labels(root / kind / "a"),
        **made,
    )

    before = len(rows_of(Path("s")))
    packer.append_images("s", root / kind / "b", labels=labels(root / kind / "b"))
    assert len(rows_of(Path("s"))) == 2 * before == 6

    packer.repack("p.h5", "z.h5", store="gzip")
    assert same(rows_of(Path("z.h5")), values[kind])
    packer.merge_packs(["p.h5", "p.h5"], "m.h5", duplicates="keep")
    assert same(rows_of(Path("m.h5")), values[kind])
    assert open_pack("m.h5").header.statistics["image"]["mean"] == pytest.approx(
        open_pack("p.h5").header.statistics["image"]["mean"]
    )
    packer.split_pack("p.h5", "x=0.5,y=0.5")
    assert same(rows_of(Path("p.x.h5")) | rows_of(Path("p.y.h5")), values[kind])

    if kind == "bands":
        with pytest.raises(UsageError, match="holds no images with keys that image files hold"):
            packer.export_images("p.h5", "files")
    else:
        packer.export_images("p.h5", "files")
        convert_images("files", "again.h5", **made)
        expected = {str(Path(key).with_suffix(".png")): v for key, v in values[kind].items()}
        assert same(rows_of(Path("again.h5")), expected)

    shown = packer.preview("p.h5", "sheet.png")
    sheet = np.asarray(Image.open("sheet.png").convert("RGB"))
    brightest = max(int(v[..., :3].max() if v.ndim == 3 else v.max()) for v in values[kind].values())
    assert shown.rows == 6
    assert sheet.max() == 255
    assert brightest > 59_000
    assert len(np.unique(sheet)) > 100


def labels(folder: Path) -> str:
    name = f"{folder.name}.csv"
    Path(name).write_text("".join(f"{path.name},{folder.name}\n" for path in sorted(folder.iterdir())))
    return name


@pytest.mark.parametrize("kind", KINDS)
def test_repacked_smaller_is_converted_smaller(sources: Any, tmp_path: Path, kind: str):
    root, _ = sources
    made = {"dtype": "uint16", "channels": KINDS[kind]}
    convert_images(root / kind, tmp_path / "p.h5", size="12x10", **made)
    convert_images(root / kind, tmp_path / "direct.h5", size=5, fit="pad", **made)
    packer.repack(tmp_path / "p.h5", tmp_path / "small.h5", size=5, fit="pad")
    assert same(rows_of(tmp_path / "small.h5"), rows_of(tmp_path / "direct.h5"))
    for pack in ("small.h5", "direct.h5"):
        assert open_pack(tmp_path / pack).fields[0].dtype == "<u2"


def test_images_of_8_bits_are_widened_and_told_of(sources: Any, tmp_path: Path):
    folder = tmp_path / "mixed"
    folder.mkdir()
    Image.fromarray(np.full((8, 8), 255, np.uint8)).save(folder / "8.png")
    Image.fromarray(np.full((8, 8), 1000, np.uint16)).save(folder / "16.png")
    report = convert_images(folder, tmp_path / "p.h5", size=8, dtype="uint16", channels="gray", workers=1)
    assert {key: int(image.max()) for key, image in rows_of(tmp_path / "p.h5").items()} == {
        "8.png": 65_535,
        "16.png": 1000,
    }
    assert report.notes[-2:] == (
        "1 of 2 images examined have 8 bits a channel; their values times 257 are stored, so that white stays white.",
        "1 image has 8 bits a channel; their values times 257 are stored, so that white stays white.",
    )


def test_like_of_a_pack_without_pictures_takes_what_images_are_without_it(tmp_path: Path, photo_folder: Path):
    """An "image" of numbers says nothing of channels."""
    packer.pack_dataset([{"image": np.ones((4, 4), np.float32), "label": 0}] * 3, tmp_path / "p.h5")
    assert ReferencePack.open(tmp_path / "p.h5").channels == "rgb"


def test_others_are_skipped_with_their_reason(sources: Any, tmp_path: Path):
    folder = tmp_path / "tiles"
    folder.mkdir()
    np.save(folder / "1.npy", np.ones((8, 8, 6), np.uint16))
    np.save(folder / "2.npy", np.ones((8, 8, 5), np.uint16))
    np.save(folder / "3.npy", np.ones((8, 8, 6), np.uint8))
    report = convert_images(
        folder, tmp_path / "p.h5", size=8, dtype="uint16", channels="auto", on_error="skip", workers=1
    )
    assert [(one["key"], one["reason"]) for one in report.skipped] == [
        ("2.npy", "it has 5 channels, and 6 are packed."),
        (
            "3.npy",
            "its values are uint8, and uint16 is packed; one type is kept, as it is. Pass dtype='uint8' for such files.",
        ),
    ]
    with pytest.raises(
        packer.PackerError,
        match=r"2.npy: it has 5 channels, and 6 are packed\. Remove it, or pass on_error='skip'",
    ):
        convert_images(folder, tmp_path / "q.h5", size=8, dtype="uint16", channels=6, workers=1)


def test_a_folder_without_bands_says_why(tmp_path: Path):
    folder = tmp_path / "x"
    folder.mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).quantize(4).save(folder / "1.png")
    sentence = (
        r"^channels auto: .*/x/1\.png: its colours \(a palette, CMYK, YCbCr or AVIF\) can be read, but not as bands\."
        r" Pass channels='rgb' for such files\.$"
    )
    with pytest.raises(UsageError, match=sentence):
        convert_images(folder, tmp_path / "p.h5", size=8, channels="auto")


def test_a_file_that_needs_another_package_is_skipped_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "tifffile", None)
    folder = tmp_path / "x"
    folder.mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(folder / "1.png")
    tifffile.imwrite(folder / "2.tif", np.zeros((8, 8, 3), np.uint16), photometric="rgb")
    options: dict[str, Any] = {"size": 8, "dtype": "uint16", "workers": 1}
    report = convert_images(folder, tmp_path / "p.h5", on_error="skip", **options)
    reason = "a TIFF file that needs tifffile, which is not installed; 'pip install tifffile' installs it."
    assert report.rows == 1
    assert report.skipped == ({"key": "2.tif", "reason": reason},)
    with pytest.raises(
        packer.PackerError, match=r"/2\.tif: a TIFF file that .* Remove it, or pass on_error='skip'\.$"
    ):
        convert_images(folder, tmp_path / "q.h5", **options)


def test_like_takes_channels_and_dtype(sources: Any, tmp_path: Path):
    root, values = sources
    made = {"size": "12x10", "dtype": "uint16", "channels": "6"}
    convert_images(root / "bands", tmp_path / "p.h5", **made)
    convert_images(root / "bands", tmp_path / "q.h5", like=tmp_path / "p.h5")
    assert same(rows_of(tmp_path / "q.h5"), values["bands"])
    assert (
        open_pack(tmp_path / "q.h5").header.normalization == open_pack(tmp_path / "p.h5").header.normalization
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": "jpeg"}, "store jpeg: JPEG files hold 8 bits and no bands. Pass store='raw', or no dtype='uint16'."),
        ({"channels": "rgba"}, "channels rgba: is only for uint8; uint16 takes gray, rgb and numbers of bands."
         " Pass channels=4 to keep four "
         "channels as they are."),
        ({"channels": "cmyk"}, "channels 'cmyk': unknown; rgb, gray, rgba and 1 to 1024 are allowed. Pass one of them."),
        ({"dtype": "float32"}, "dtype='float32': is not one of 'uint8', 'uint16'. Pass one of them."),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(sources: Any, tmp_path: Path, options: dict[str, Any], message: str):
    with pytest.raises(UsageError) as error:
        convert_images(sources[0] / "gray", tmp_path / "p.h5", **{"dtype": "uint16", **options})
    assert str(error.value) == message
    assert list(tmp_path.iterdir()) == []


def test_bands_without_being_asked_for_say_what_to_pass(sources: Any, tmp_path: Path):
    with pytest.raises(
        packer.PackerError, match=r"\d.tif: a TIFF file of bands.*channels='auto' to keep bands as they are"
    ):
        convert_images(sources[0] / "bands" / "a", tmp_path / "p.h5", size=8)


def test_the_command(sources: Any, tmp_path: Path):
    root, values = sources
    command = [
        "convert",
        str(root / "bands"),
        str(tmp_path / "p.h5"),
        "--size",
        "12x10",
        "--dtype",
        "uint16",
        "--channels",
        "6",
    ]
    assert CliRunner().invoke(cli, command).exit_code == 0
    assert same(rows_of(tmp_path / "p.h5"), values["bands"])
    info = CliRunner().invoke(cli, ["info", str(tmp_path / "p.h5")]).output
    assert "image    u2  12x10x6 (" in info
    assert "color bands" in info
