"""Partners of images: which file belongs to which, what its values become, and that they lie where the image's pixels do."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from packer.codecs.jpeg import EXIF_TAG
from packer.errors import ImageError, SourceError, UsageError
from packer.format.fields import Field
from packer.inputs import image_pairs
from packer.inputs.findings import Findings
from packer.inputs.image_pairs import Pair, PairForm, Soft
from packer.pixels.decode_resize import DecodeResize, PixelSpec
from packer.pixels.row_placement import FITS, ImagePlacement
from tests.inputs.named_images import NamedImages

Encode = Callable[..., bytes]
SPEC = PixelSpec((8, 8), "stretch")


def grey(height: int = 6, width: int = 9, dtype: str = "u1", seed: int = 0) -> NDArray[Any]:
    draws = np.random.default_rng(seed)
    if dtype == "f4":
        return draws.normal(size=(height, width)).astype(np.float32)
    return draws.integers(0, np.iinfo(dtype).max, (height, width), endpoint=True).astype(dtype)


def npy(values: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


def tiff(values: NDArray[Any], **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "TIFF", **options)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """folder({"cat/1.png": data}) -> "masks", holding those files, below the working directory."""
    monkeypatch.chdir(tmp_path)

    def run(files: dict[str, bytes], name: str = "masks") -> str:
        for path, data in files.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        return name

    return run


Folder = Callable[..., str]


def open_pair(
    name: str,
    given: str,
    keys: list[str],
    *,
    spec: PixelSpec,
    images: str | None = None,
    findings: Findings | None = None,
    soft: bool = False,
    spool_dir: str | None = None,
    **form: Any,
) -> Pair:
    """images: folder of the images. form: the other values of PairForm."""
    source = NamedImages(keys, findings)
    source.folder = images
    made = PairForm(spec, **form)
    return image_pairs.open_pair(name, Soft(given) if soft else given, source, made, spool_dir)


def row_of(pair: Pair, index: int, geometry: ImagePlacement) -> NDArray[Any]:
    out = np.full(pair.field.shape or (), 77, pair.field.dtype)
    assert pair.read(index, geometry, out) == pair.sizes[index]
    return out


def whole(pair: Pair, values: NDArray[Any], index: int = 0) -> NDArray[Any]:
    """The row of a partner that is as large as the row."""
    return row_of(pair, index, ImagePlacement.for_fit("stretch", values.shape[:2], values.shape[:2]))


def opened(files: dict[str, bytes], folder: Folder, size: tuple[int, int], **options: Any) -> Pair:
    """A pair of images called as those files, with .jpg."""
    keys = [os.path.splitext(path)[0] + ".jpg" for path in files]
    return open_pair("mask", folder(files), keys, spec=PixelSpec(size, "stretch", **options))


# Values


@pytest.mark.parametrize(
    ("format", "dtype", "options"),
    [
        ("PNG", "u1", {}),
        ("PNG", "u2", {}),
        ("TIFF", "u1", {}),
        ("TIFF", "u2", {"compression": "tiff_lzw"}),
        ("TIFF", "f4", {}),
        ("TIFF", "f4", {"compression": "tiff_adobe_deflate"}),
        ("BMP", "u1", {}),
    ],
)
def test_grey_is_as_it_is(
    encode: Encode, folder: Folder, format: str, dtype: str, options: dict[str, Any]
) -> None:
    values = grey(dtype=dtype)
    with opened({f"1.{format.lower()}": encode(values, format, **options)}, folder, (6, 9)) as pair:
        expected = Field(
            "mask", values.dtype.str, (6, 9), {"layout": "HW", "fit": "stretch", "sampling": "nearest"}
        )
        assert pair.field == expected
        assert np.array_equal(whole(pair, values), values)


@pytest.mark.parametrize("dtype", ["u1", "<u2", ">u2", "<f4", ">f4"])
@pytest.mark.parametrize("channels", [None, 1, 5])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_is_as_it_is(folder: Folder, dtype: str, channels: int | None, order: Any) -> None:
    shape = (6, 9) if channels is None else (6, 9, channels)
    values = np.asarray(np.random.default_rng(0).integers(0, 250, shape), dtype, order=order)
    with opened({"1.npy": npy(values)}, folder, (6, 9)) as pair:
        assert pair.field.dtype == np.dtype(dtype).newbyteorder("<").str
        assert pair.field.shape == ((6, 9, 5) if channels == 5 else (6, 9))
        assert pair.field.about["layout"] == ("HWC" if channels == 5 else "HW")
        assert np.array_equal(whole(pair, values).reshape(shape), values)


@pytest.mark.parametrize("format", ["PNG", "TIFF", "BMP"])
def test_palettes_give_their_indices(encode: Encode, folder: Folder, format: str) -> None:
    indices = grey(dtype="u1") % 21
    image = Image.frombytes("P", (9, 6), indices.tobytes())
    image.putpalette(list(np.random.default_rng(3).integers(0, 256, 63)))
    with opened({f"1.{format.lower()}": encode(image, format)}, folder, (6, 9)) as pair:
        assert pair.field.shape == (6, 9)
        assert np.array_equal(whole(pair, indices), indices)


def test_palettes_of_few_bits_give_their_indices(encode: Encode, folder: Folder) -> None:
    indices = grey(dtype="u1") % 3
    image = Image.frombytes("P", (9, 6), indices.tobytes())
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    with opened({"1.png": encode(image, "PNG", bits=2)}, folder, (6, 9)) as pair:
        assert np.array_equal(whole(pair, indices), indices)


@pytest.mark.parametrize("format", ["PNG", "TIFF", "BMP"])
def test_one_bit_is_0_and_1_in_masks_and_0_and_255_in_mattes(
    encode: Encode, folder: Folder, format: str
) -> None:
    bits = grey() > 127
    files = {f"1.{format.lower()}": encode(Image.fromarray(bits), format)}
    with opened(files, folder, (6, 9)) as pair:
        assert (pair.field.dtype, pair.field.about["bits"]) == ("|u1", 1)
        assert np.array_equal(whole(pair, bits), bits.astype(np.uint8))
    with open_pair("mask", "masks", ["1.jpg"], spec=PixelSpec((6, 9), "stretch"), soft=True) as pair:
        assert "bits" not in pair.field.about
        assert np.array_equal(whole(pair, bits), bits * np.uint8(255))


@pytest.mark.parametrize("layout", [None, "raw", "jpeg"])
def test_one_bit_and_8_bits_are_not_mixed(encode: Encode, folder: Folder, layout: str | None) -> None:
    bits = grey() > 127
    place = folder(
        {"1.png": encode(Image.fromarray(bits), "PNG"), "2.png": encode(bits * np.uint8(255), "PNG")}
    )
    keys, spec = ["1.jpg", "2.jpg"], PixelSpec((6, 9), "stretch")
    needed = {1: "uint8; 1 bit a pixel", 0: "1 bit a pixel; uint8"}
    fields = {}
    for first, other in ((0, 1), (1, 0)):
        with open_pair("mask", place, [keys[first]], spec=spec, whole=layout) as pair:
            fields[first] = pair.field
        # As when images are appended to a pack of the first.
        with open_pair("mask", place, keys, spec=spec, whole=layout, like=pair.field) as pair:
            assert pair.field == fields[first]
            out, geometry = np.empty((6, 9), np.uint8), ImagePlacement.for_fit("stretch", (6, 9), (6, 9))
            pair.read(first, geometry, out)
            assert out.max() == (255 if first else 1)
            with pytest.raises(ImageError) as error:
                pair.read(other, geometry, out)
        assert str(error.value) == (
            f"its mask {other + 1}.png: holds {needed[other]} is needed, as in the other files."
        )


@pytest.mark.parametrize("format", ["PNG", "TIFF", "BMP", "WebP"])
def test_rgb_keeps_its_channels(encode: Encode, folder: Folder, format: str) -> None:
    values = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    options = {"lossless": True} if format == "WebP" else {}
    with opened({f"1.{format.lower()}": encode(values, format, **options)}, folder, (6, 9)) as pair:
        assert (pair.field.dtype, pair.field.shape, pair.field.about["layout"]) == ("|u1", (6, 9, 3), "HWC")
        assert np.array_equal(whole(pair, values), values)


@pytest.mark.parametrize(("mode", "channels"), [("RGBA", 4), ("LA", 2)])
def test_alpha_is_a_channel(encode: Encode, folder: Folder, mode: str, channels: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, (6, 9, channels), dtype=np.uint8)
    with opened(
        {"1.png": encode(Image.frombytes(mode, (9, 6), values.tobytes()), "PNG")}, folder, (6, 9)
    ) as pair:
        assert np.array_equal(whole(pair, values), values)


def test_webp_without_colour_is_grey(encode: Encode, folder: Folder) -> None:
    values = grey()
    three = np.repeat(values[..., None], 3, axis=2)
    files = {"1.webp": encode(three, "WebP", lossless=True)}
    with opened(files, folder, (6, 9)) as pair:
        assert pair.field.shape == (6, 9)
        assert np.array_equal(whole(pair, values), values)
    colour = Field("mask", "|u1", (6, 9, 3))
    with open_pair("mask", "masks", ["1.jpg"], spec=PixelSpec((6, 9), "stretch"), like=colour) as pair:
        assert np.array_equal(whole(pair, three), three)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "TIFF", "WebP"])
def test_orientation_is_applied(encode: Encode, folder: Folder, format: str, orientation: int) -> None:
    values = grey()
    stored = np.repeat(values[..., None], 3, axis=2) if format == "WebP" else values
    exif = Image.Exif()
    exif[EXIF_TAG] = orientation
    options = {"lossless": True} if format == "WebP" else {}
    sides = (6, 9) if orientation < 5 else (9, 6)
    with opened({f"1.{format.lower()}": encode(stored, format, exif=exif, **options)}, folder, sides) as pair:
        turned = {
            1: values,
            2: values[:, ::-1],
            3: values[::-1, ::-1],
            4: values[::-1],
            5: values.T,
            6: values.T[:, ::-1],
            7: values.T[::-1, ::-1],
            8: values.T[::-1],
        }[orientation]
        assert np.array_equal(whole(pair, turned), turned)


# Sampling


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("scale", [1, 2, 3])
def test_masks_lie_where_the_image_does(encode: Encode, folder: Folder, fit: str, scale: int) -> None:
    coarse = (
        np.kron(np.random.default_rng(4).integers(0, 2, (9, 13)), np.ones((16, 16))).astype(np.uint8) * 255
    )
    mask = coarse[::scale, ::scale]
    spec = PixelSpec((64, 48), fit, "gray")
    image = np.empty(spec.shape, np.uint8)
    geometry = ImagePlacement.for_fit(fit, DecodeResize(spec)(encode(coarse, "PNG"), image), spec.size)
    with open_pair("mask", folder({"1.png": encode(mask, "PNG")}), ["1.png"], spec=spec) as pair:
        row = row_of(pair, 0, geometry)
    assert set(np.unique(row)) <= {0, 255}
    clear = (image[..., 0] < 20) | (image[..., 0] > 235)
    assert clear.mean() > 0.5
    assert (np.abs(row.astype(int) - image[..., 0])[clear] > 20).mean() < (0.001 if scale == 1 else 0.08)


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.floats(0.02, 3),
    st.tuples(st.integers(1, 20), st.integers(1, 20)),
    st.sampled_from(FITS),
)
@settings(max_examples=60)
def test_each_value_is_the_one_under_the_pixels_centre(
    tmp_path_factory: pytest.TempPathFactory,
    source: tuple[int, int],
    scale: float,
    size: tuple[int, int],
    fit: str,
) -> None:
    mask = max(1, round(source[0] * scale)), max(1, round(source[1] * scale))
    if mask == source[::-1]:
        mask = source
    values = np.arange(1, mask[0] * mask[1] + 1, dtype=np.uint16).reshape(mask)
    place = tmp_path_factory.mktemp("masks")
    (place / "1.npy").write_bytes(npy(values))
    geometry = ImagePlacement.for_fit(fit, source, size)
    with open_pair("mask", place, ["1.jpg"], spec=PixelSpec(size, fit)) as pair:
        row = row_of(pair, 0, geometry)
    target, box = geometry.target, geometry.box
    bars = np.ones(size, bool)
    for i in range(target.height):
        for j in range(target.width):
            y = (2 * i + 1) * box.height + 2 * box.top * target.height
            x = (2 * j + 1) * box.width + 2 * box.left * target.width
            expected = values[
                y * mask[0] // (2 * target.height * source[0]), x * mask[1] // (2 * target.width * source[1])
            ]
            assert row[target.top + i, target.left + j] == expected
            bars[target.top + i, target.left + j] = False
    assert (row[bars] == 0).all()


def test_rows_may_lie_apart_and_threads_agree(encode: Encode, folder: Folder) -> None:
    files = {f"{number}.png": encode(grey(seed=number), "PNG") for number in range(8)}
    rows = np.full((8, 2, 6, 9), 77, np.uint8)[:, 1]
    with opened(files, folder, (6, 9)) as pair:
        geometry = ImagePlacement.for_fit("stretch", (6, 9), (6, 9))
        threads = [
            threading.Thread(target=pair.read, args=(number, geometry, rows[number])) for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert np.array_equal(rows, np.stack([grey(seed=number) for number in range(8)]))


# Which file belongs to which image


def test_partners_have_the_path_but_not_the_extension(encode: Encode, folder: Folder) -> None:
    values = {"cat/1": grey(seed=1), "cat/1.b": grey(seed=2), "dog/1": grey(seed=3)}
    files = {
        "cat/1.PNG": encode(values["cat/1"], "PNG"),
        "cat/1.b.npy": npy(values["cat/1.b"]),
        "dog/1.tif": encode(values["dog/1"], "TIFF"),
        "dog/.2.png": b"hidden",
        "dog/notes.txt": b"",
        "dog/1.json": b"",
    }
    keys = ["dog/1.JPEG", "cat/1.b.png", "cat/1.jpg"]
    with open_pair("mask", folder(files) + "/", keys, spec=PixelSpec((6, 9), "stretch")) as pair:
        for index, key in enumerate(["dog/1", "cat/1.b", "cat/1"]):
            assert np.array_equal(whole(pair, values[key], index), values[key])
        assert pair.sizes.tolist() == [len(files[name]) for name in ("dog/1.tif", "cat/1.b.npy", "cat/1.PNG")]
        assert pair.findings.notes == []


def test_partners_match_in_any_unicode_form(encode: Encode, folder: Folder) -> None:
    one, other = "caf\u00e9", "cafe\u0301"
    for image, mask in ((one, other), (other, one)):
        place = folder({f"{mask}/{mask}.png": encode(grey(), "PNG")}, f"of {image}")
        open_pair("mask", place, [f"{image}/{image}.jpg"], spec=SPEC).close()
    values = {f"{name}.png": grey(seed=seed) for seed, name in enumerate((one, other))}
    place = folder({name: encode(value, "PNG") for name, value in values.items()}, "both")
    pair = open_pair("mask", place, [f"{one}.jpg", f"{other}.jpg"], spec=PixelSpec((6, 9), "stretch"))
    for index, value in enumerate(values.values()):
        assert np.array_equal(whole(pair, value, index), value)
    assert refused(folder({f"{one}.png": encode(grey(), "PNG")}), [f"{one}.jpg", f"{other}.jpg"]).startswith(
        f"masks: {other}.jpg has no mask;"
    )
    assert refused(folder({f"{one}.npy": npy(grey())}), [f"{other}.jpg"]).startswith(
        f"masks: {other}.jpg has several files for its mask ({one}.npy and {one}.png)"
    )


def test_images_that_differ_in_their_extension_share_a_partner(encode: Encode, folder: Folder) -> None:
    values = grey()
    place = folder({"1.png": encode(values, "PNG")})
    with open_pair("mask", place, ["1.jpg", "1.webp"], spec=PixelSpec((6, 9), "stretch")) as pair:
        assert np.array_equal(whole(pair, values, 0), values)
        assert np.array_equal(whole(pair, values, 1), values)
        assert pair.sizes[0] == pair.sizes[1] > 0


def refused(folder: str, keys: list[str], name: str = "mask") -> str:
    with pytest.raises((SourceError, UsageError)) as error:
        open_pair(name, folder, keys, spec=SPEC)
    return str(error.value)


NEEDED = "each image needs one file of its path and name, ending in .bmp, .gif, .jpg, .jpeg, .npy, .png, .tif, .tiff, .webp."
REMEDIES = "Add or remove files, pass a pattern such as masks/*_mask.png, or pass on_error='skip'."


@pytest.mark.parametrize(("count", "more"), [(1, ""), (3, " (and 2 more images)")])
def test_missing_partners_are_named(folder: Folder, count: int, more: str) -> None:
    keys = [f"a/{number}.jpg" for number in range(count)]
    place = folder({"b/0.png": b"", "0.png": b""})
    assert refused(place, [*keys, "b/0.jpg"]) == (
        f"masks: a/0.jpg has no mask{more}; each image needs one file of its path and name, and the nearest to "
        "a/0.jpg is 0.png. Add or remove files, or pass on_error='skip'."
    )


def test_images_below_the_folder_of_a_pair_are_no_partners(encode: Encode, folder: Folder) -> None:
    data = encode(grey(), "PNG")
    place = folder({f"{of}/{n}.png": data for of in ("images", "annotations") for n in range(3)})
    keys = [f"{n}.png" for n in range(3)]
    with open_pair("mask", place, keys, spec=SPEC, images=os.path.abspath(f"{place}/images")) as pair:
        assert pair.keys == [f"annotations/{key}" for key in keys]


def test_double_partners_are_named(folder: Folder) -> None:
    files = {f"{number}.{end}": b"" for number in range(5) for end in ("png", "npy")}
    assert refused(folder(files), [f"{number}.jpg" for number in range(5)]) == (
        f"masks: 0.jpg has several files for its mask (0.npy and 0.png) (and 4 more images); {NEEDED} {REMEDIES}"
    )


def test_partners_without_image_are_a_note(encode: Encode, folder: Folder) -> None:
    data = encode(grey(), "PNG")
    place = folder({"1.png": data, "3.png": data, "2.png": data})
    with open_pair("mask", place, ["1.jpg"], spec=SPEC) as pair:
        assert pair.findings.notes == ["masks: 2 files belong to no image, first 2.png; left out."]
    with open_pair("mask", place, ["1.jpg", "2.jpg"], spec=SPEC) as pair:
        assert pair.findings.notes == ["masks: 1 file belongs to no image, first 3.png; left out."]


def test_a_folder_that_is_not_there(folder: Folder) -> None:
    assert (
        refused("nowhere", ["1.jpg"])
        == "nowhere: no such folder or archive; pair mask needs one. Check the path."
    )


@pytest.mark.parametrize(
    "name", ["image", "key", "boxes", "packer", "checksums", "class", "_a", "a b", "1a", "", "größe", "a.b"]
)
def test_names_that_fields_cannot_have(name: str) -> None:
    assert refused("masks", ["1.jpg"], name) == (
        f"pair {name}: not a valid field name; letters, digits and _ are allowed, and box_label, boxes, checksums, header, "
        "image, key, keypoints, label, packer, trailer are reserved. Pass another name, for example mask."
    )


@pytest.mark.parametrize("ending", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize("inside", ["", "data/masks"])
def test_archives(encode: Encode, folder: Folder, tmp_path: Path, ending: str, inside: str) -> None:
    values = [grey(seed=seed) for seed in range(3)]
    names = ["b/0.png", "a/1.tif", "a/2.bmp"]
    files = {
        name: encode(value, kind)
        for name, value, kind in zip(names, values, ("PNG", "TIFF", "BMP"), strict=True)
    }
    folder(files, "tree")
    path = tmp_path / f"masks.{ending}"
    top = inside or "masks"
    if ending == "zip":
        with zipfile.ZipFile(path, "w") as zipped:
            for name in files:
                zipped.write(tmp_path / "tree" / name, f"{top}/{name}")
    else:
        with tarfile.open(path, "w:gz" if ending == "tar.gz" else "w") as tar:
            tar.add(tmp_path / "tree", top)
    place = f"{path.name}/{inside}" if inside else path.name
    keys = ["a/1.jpg", "a/2.jpg", "b/0.jpg"]
    with open_pair("mask", place, keys, spec=PixelSpec((6, 9), "stretch"), spool_dir=str(tmp_path)) as pair:
        for index, value in enumerate((values[1], values[2], values[0])):
            assert np.array_equal(whole(pair, value, index), value)
        assert pair.sizes.tolist() == [len(files[name]) for name in (names[1], names[2], names[0])]
        assert str(pair.newest).startswith(f"masks.{ending} of ")


# Kinds


def test_the_first_file_that_can_be_read_says_what_is_needed(encode: Encode, folder: Folder) -> None:
    files = {
        "0.png": b"no",
        "1.png": encode(grey(dtype="u2"), "PNG"),
        "2.png": encode(grey(), "PNG"),
        "3.png": encode(np.zeros((6, 9, 3), np.uint8), "PNG"),
    }
    with opened(files, folder, (6, 9)) as pair:
        assert pair.field.dtype == "<u2"
        messages = []
        for index in (0, 2, 3):
            with pytest.raises(ImageError) as error:
                whole(pair, grey(), index)
            messages.append(str(error.value))
    assert messages == [
        "its mask 0.png: not a PNG, TIFF, BMP, WebP, GIF, JPEG or npy file; those are read.",
        "its mask 2.png: holds uint8; uint16 is needed, as in the other files.",
        "its mask 3.png: holds uint8 in 3 channels; uint16 is needed, as in the other files.",
    ]


def test_what_is_needed_can_be_given(encode: Encode, folder: Folder) -> None:
    place = folder({"1.png": encode(grey(), "PNG")})
    with open_pair("mask", place, ["1.jpg"], spec=SPEC, like=Field("mask", "<f4", (4, 4, 2))) as pair:
        assert (pair.field.dtype, pair.field.shape) == ("<f4", (8, 8, 2))
        with pytest.raises(ImageError) as error:
            row_of(pair, 0, ImagePlacement.for_fit("stretch", (6, 9), (8, 8)))
    assert (
        str(error.value)
        == "its mask 1.png: holds uint8; float32 in 2 channels is needed, as in the other files."
    )


def test_no_file_that_can_be_read(folder: Folder) -> None:
    assert refused(folder({"a/1.png": b"", "a/2.png": b"x"}), ["a/1.jpg", "a/2.jpg"]) == (
        "masks/a/1.png: empty (0 bytes). None of the 2 mask files that were tried can be read."
    )


def test_a_mask_of_the_unturned_image_is_refused(encode: Encode, folder: Folder) -> None:
    with opened({"1.png": encode(grey(6, 9), "PNG")}, folder, (6, 9)) as pair:
        with pytest.raises(ImageError) as error:
            pair.read(0, ImagePlacement.for_fit("stretch", (9, 6), (6, 9)), np.empty((6, 9), np.uint8))
        assert str(error.value) == (
            "its mask 1.png: has 9 x 6 pixels, but its upright image has 6 x 9; both need the same orientation. "
            "Rotate it as the image's EXIF orientation says, or replace it if it belongs to another image."
        )
        pair.read(0, ImagePlacement.for_fit("stretch", (12, 18), (6, 9)), np.empty((6, 9), np.uint8))


def frame_error(image: tuple[int, int], mask: tuple[int, int], *, soft: bool = False, **options: Any) -> str:
    """The reason why a mask is refused, "" if it is not; both sizes are width x height."""
    Path("masks").mkdir(exist_ok=True)
    Path("masks/1.npy").write_bytes(npy(np.zeros(mask[::-1], np.uint8)))
    with open_pair("mask", "masks", ["1.jpg"], spec=SPEC, soft=soft, **options) as pair:
        for fit in FITS:
            try:
                pair.read(0, ImagePlacement.for_fit(fit, image[::-1], (8, 8)), np.empty((8, 8), np.uint8))
            except ImageError as error:
                return str(error).removeprefix("its mask 1.npy: ")
    return ""


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("like", [None, Field("mask", "|u1", (8, 8))])
@pytest.mark.parametrize(
    ("image", "mask", "is_turned"),
    [
        ((550, 366), (183, 275), True),
        ((826, 549), (183, 275), True),
        ((276, 183), (183, 275), True),
        ((200, 196), (98, 100), True),
        ((100, 99), (99, 100), True),
        ((276, 183), (276, 100), False),
        ((276, 183), (255, 198), False),
        ((299, 168), (299, 84), False),
        ((640, 427), (256, 256), False),
        ((1000, 1000), (1000, 979), False),
    ],
)
def test_a_mask_of_another_frame_is_refused(
    folder: Folder,
    image: tuple[int, int],
    mask: tuple[int, int],
    is_turned: bool,
    soft: bool,
    like: Field | None,
) -> None:
    (columns, rows), (width, height) = image, mask
    says = (
        "both need the same orientation. Rotate it as the image's EXIF orientation says, or replace it if it belongs "
        "to another image."
        if is_turned
        else "both show the same frame, so aspect ratios up to 2 % apart are allowed. Crop or pad it to the image's "
        f"frame; if it was stretched, resize it to {columns:,} x {rows:,}."
    )
    folder({})
    assert frame_error(image, mask, soft=soft, like=like) == (
        f"has {width:,} x {height:,} pixels, but its upright image has {columns:,} x {rows:,}; {says}"
    )


def test_masks_of_the_same_frame_are_read(folder: Folder) -> None:
    folder({})
    for image in ((550, 366), (366, 550), (1000, 639), (97, 31), (64, 64), (1, 300), (7, 5)):
        for scale in (1, 2, 3, 0.5, 1 / 3, 0.1, 1 / 7, 1 / 31):
            for rounded in (np.floor, np.round, np.ceil):
                mask = (max(1, int(rounded(image[0] * scale))), max(1, int(rounded(image[1] * scale))))
                assert frame_error(image, mask) == frame_error(mask, image) == "", (image, mask)
    assert frame_error((1000, 1000), (1000, 981)) == ""


# Hostile and damaged files


def only_refusal(folder: Folder, files: dict[str, bytes], **options: Any) -> str:
    """What is said of the second file, the first being fine."""
    files = {"0" + os.path.splitext(next(iter(files)))[1]: npy(grey()), **files}
    with opened(files, folder, (6, 9), **options) as pair, pytest.raises(ImageError) as error:
        whole(pair, grey(), 1)
    return str(error.value)


def header(text: str) -> bytes:
    body = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + len(body).to_bytes(2, "little") + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (npy(grey())[:-1], "a damaged or truncated npy file."),
        (npy(grey())[:60], "a damaged or truncated npy file."),
        (npy(grey()) + b"x", "a damaged or truncated npy file."),
        (b"\x93NUMPY\7\0", "a damaged or truncated npy file."),
        (header("{'descr': '|u1', 'fortran_order': False, 'shape': ("), "a damaged or truncated npy file."),
        (header("__import__('os').abort()"), "a damaged or truncated npy file."),
        (header("(" * 110), "a damaged or truncated npy file."),
        (
            header("{'descr': '|u1', 'fortran_order': False, 'shape': (100000, 100000)}"),
            "100,000 x 100,000 pixels; at most 178,956,970 are allowed. Raise max_pixels= if the image is intended.",
        ),
        (
            header("{'descr': '<f4', 'fortran_order': False, 'shape': (9000, 9000)}"),
            "a damaged or truncated npy file.",
        ),
        (
            header("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 1 << 60)}"),
            "a damaged or truncated npy file.",
        ),
        (
            header("{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 1000000000000000000000)}"),
            "a damaged or truncated npy file.",
        ),
        (
            header("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, -1)}"),
            "its shape is [-1, -1]; [height, width] and [height, width, channels] are read.",
        ),
        (
            npy(np.zeros(5, np.uint8)),
            "its shape is [5]; [height, width] and [height, width, channels] are read.",
        ),
        (
            npy(np.zeros((0, 5), np.uint8)),
            "its shape is [0, 5]; [height, width] and [height, width, channels] are read.",
        ),
        (npy(np.zeros((6, 9))), "its values are float64; uint8, uint16 and float32 are read."),
        (npy(np.zeros((6, 9), bool)), "its values are bool; uint8, uint16 and float32 are read."),
        (npy(np.zeros((6, 9), np.int64)), "its values are int64; uint8, uint16 and float32 are read."),
        (
            header("{'descr': '|O', 'fortran_order': False, 'shape': (6, 9)}"),
            "its values are object; uint8, uint16 and float32 are read.",
        ),
        (b"\x80\x04]\x94.", "not a PNG, TIFF, BMP, WebP, GIF, JPEG or npy file; those are read."),
        (b"", "empty (0 bytes)."),
    ],
)
def test_npy_files_that_are_refused(folder: Folder, data: bytes, reason: str) -> None:
    assert only_refusal(folder, {"1.npy": data}) == f"its mask 1.npy: {reason}"


def test_pictures_that_are_refused(encode: Encode, folder: Folder) -> None:
    whole_png, floats = encode(grey(60, 90), "PNG"), encode(grey(dtype="f4"), "TIFF")
    jpeg = encode(grey(), "JPEG")
    inexact = (
        "its pixels cannot be read exactly; grey of 8 and 16 bits, palettes, 8-bit RGB and 32-bit floats can. "
        "Store it as .npy."
    )
    cases = [
        (whole_png[: len(whole_png) // 2], "a damaged or truncated PNG file."),
        (floats[:20], "a damaged or truncated TIFF file."),
        (jpeg[: len(jpeg) // 2], "a damaged or truncated JPEG file."),
        (tiff(np.zeros((6, 9), np.int32)), inexact),
        (encode(Image.new("CMYK", (9, 6)), "TIFF"), inexact),
        (rgb16_png(), inexact),
        (raw_tiff([64], 3, 1, bytes(8 * 54)), inexact),
        (raw_tiff([8], 2, 1, bytes(54)), inexact),
        (raw_tiff([16, 16, 16], 1, 2, bytes(6 * 54)), inexact),
    ]
    for number, (data, reason) in enumerate(cases):
        assert only_refusal(folder, {"1.png": data}) == f"its mask 1.png: {reason}", number


def rgb16_png() -> bytes:
    """A PNG of 9 x 6 pixels with 16 bits in each of three channels, which Pillow cannot write."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + bytes(range(54)) for _ in range(6))
    head = struct.pack(">IIBBBBB", 9, 6, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def raw_tiff(bits: list[int], sample_format: int, photometric: int, body: bytes) -> bytes:
    """An uncompressed TIFF of 9 x 6 pixels of any kind."""
    tags = [
        (256, 4, [9]),
        (257, 4, [6]),
        (258, 3, bits),
        (259, 3, [1]),
        (262, 3, [photometric]),
        (273, 4, [300]),
        (277, 3, [len(bits)]),
        (278, 4, [6]),
        (279, 4, [len(body)]),
        (339, 3, [sample_format] * len(bits)),
    ]
    entries, extra, place = b"", b"", 8 + 2 + 12 * len(tags) + 4
    for tag, kind, values in tags:
        packed = struct.pack("<" + ("H" if kind == 3 else "I") * len(values), *values)
        if len(packed) > 4:
            packed, extra = struct.pack("<I", place + len(extra)), extra + packed
        entries += struct.pack("<HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0) + extra
    return head.ljust(300, b"\0") + body


def test_the_made_tiff_is_one(folder: Folder) -> None:
    values = grey()
    with opened({"1.tif": raw_tiff([8], 1, 1, values.tobytes())}, folder, (6, 9)) as pair:
        assert np.array_equal(whole(pair, values), values)


@pytest.mark.parametrize("format", ["PNG", "TIFF", "BMP", "WebP", "npy"])
def test_files_of_too_many_pixels_are_refused(encode: Encode, folder: Folder, format: str) -> None:
    values = np.zeros((20, 30), np.uint8)
    data = npy(values) if format == "npy" else encode(values, format)
    assert only_refusal(folder, {"1.png": data}, max_pixels=599).endswith(
        "1.png: 30 x 20 pixels; at most 599 are allowed. Raise max_pixels= if the image is intended."
    )


def test_endless_files_are_not_read(folder: Folder, tmp_path: Path) -> None:
    place = folder({"0.npy": npy(grey()), "1.npy": b""})
    os.truncate(tmp_path / "masks" / "1.npy", 1 << 40)
    with open_pair("mask", place, ["0.jpg", "1.jpg"], spec=SPEC) as pair, pytest.raises(ImageError) as error:
        row_of(pair, 1, ImagePlacement.for_fit("stretch", (6, 9), (8, 8)))
    assert str(error.value) == (
        "its mask 1.npy: 1,099,511,627,776 bytes; at most 2,863,311,520 are read. Raise max_pixels= if the size is correct."
    )


def test_what_is_no_file(folder: Folder, tmp_path: Path) -> None:
    place = folder({"0.npy": npy(grey())})
    os.mkfifo(tmp_path / "masks" / "1.npy")
    (tmp_path / "masks" / "2.npy").symlink_to("nothing")
    (tmp_path / "masks" / "3.npy").mkdir()
    keys = ["0.jpg", "1.jpg", "2.jpg"]
    messages = []
    with open_pair("mask", place, keys, spec=SPEC) as pair:
        for index in (1, 2):
            with pytest.raises(ImageError) as error:
                row_of(pair, index, ImagePlacement.for_fit("stretch", (6, 9), (8, 8)))
            messages.append(str(error.value))
    assert messages == [
        "its mask 1.npy: not a regular file.",
        "its mask 2.npy: cannot be read (No such file or directory).",
    ]
    assert refused(place, [*keys, "3.jpg"]).startswith("masks: 3.jpg has no mask; ")


# What tells whether the files are still the same


def test_fingerprints_and_the_newest_file(encode: Encode, folder: Folder, tmp_path: Path) -> None:
    place = folder({"a/1.png": encode(grey(), "PNG"), "a/2.png": encode(grey(), "PNG")})
    for number, name in enumerate(("2.png", "1.png")):
        os.utime(tmp_path / "masks" / "a" / name, ns=(0, number * 10**9 + 5))
    found = []

    def look(keys: list[str], spec: PixelSpec = SPEC) -> Pair:
        with open_pair("mask", place, keys, spec=spec) as pair:
            found.append(pair.fingerprint())
            return pair

    both = look(["a/1.jpg", "a/2.jpg"])
    assert str(both.newest) == "a/1.png of 1970-01-01 00:00:01.000000005"
    look(["a/2.jpg", "a/1.jpg"])
    look(["a/1.jpg"])
    folder({"a/2.png": encode(grey(7, 9), "PNG")})
    look(["a/1.jpg", "a/2.jpg"])
    (tmp_path / "masks" / "a" / "2.png").rename(tmp_path / "masks" / "a" / "2.tif")
    look(["a/1.jpg", "a/2.jpg"])
    assert len(set(found)) == 5
    look(["a/1.jpg", "a/2.jpg"])
    assert len(set(found)) == 5


# Suffixes, GIF and JPEG


def as_stored(pair: Pair, index: int = 0) -> NDArray[Any]:
    """The row of a partner of 6x9 pixels, unresized."""
    out = np.empty((6, 9), np.uint8)
    pair.read(index, ImagePlacement.for_fit("stretch", (6, 9), (6, 9)), out)
    return out


@pytest.mark.parametrize("suffix", ["_mask", "-seg", ".mask", "_L 0"])
@pytest.mark.parametrize("archive", [False, True])
def test_a_pattern_names_the_files(folder: Folder, encode: Encode, suffix: str, archive: bool) -> None:
    keys = ["a/1.jpg", "a/1_hd.jpg", "b/2_0.jpg"]
    files = {f"{key[:-4]}{suffix}.png": encode(grey(seed=n), "PNG") for n, key in enumerate(keys)}
    place = folder({**files, f"a/9{suffix}.png": encode(grey(), "PNG"), "a/1_edge.png": b"", "a/1.jpg": b""})
    if archive:
        with tarfile.open("masks.tar", "w") as tar:
            tar.add(place, "masks")
        place = "masks.tar"
    with open_pair("mask", f"{place}/*{suffix}.png", keys, spec=SPEC) as pair:
        for number in range(3):
            assert np.array_equal(as_stored(pair, number), grey(seed=number))
        assert pair.findings.notes == [
            f"{place}: 1 file belongs to no image, first a/9{suffix}.png; left out."
        ]


def test_a_mask_that_some_images_lack(folder: Folder, encode: Encode) -> None:
    place = folder({f"{n}_mask.png": encode(grey(), "PNG") for n in range(4)}) + "/*_mask.png"
    keys = [f"{n}.jpg" for n in range(5)]
    with pytest.raises(SourceError, match=r"masks: 4\.jpg has no mask; each image needs"):
        open_pair("mask", place, keys, spec=SPEC)
    with open_pair("mask", place, keys, spec=SPEC, findings=Findings(True)) as pair:
        assert pair.findings.refused == {4: "has no mask."}


@pytest.mark.parametrize("mode", ["1", "P"])
def test_gif_masks_hold_indices(folder: Folder, mode: str) -> None:
    buffer = io.BytesIO()
    picture = Image.fromarray((grey() % 2).astype(np.uint8))
    picture = picture.point(lambda value: 255 * value).convert("1") if mode == "1" else picture
    if mode == "P":
        picture = Image.fromarray(grey() % 7, "L").convert("P")
        picture.putpalette(bytes(range(21)))
    picture.save(buffer, "GIF")
    with open_pair("mask", folder({"1.gif": buffer.getvalue()}), ["1.jpg"], spec=SPEC) as pair:
        found = as_stored(pair)
    assert pair.field.dtype == "|u1"
    assert len(np.unique(found)) == (2 if mode == "1" else 7)
    if mode == "P":
        assert np.array_equal(found, grey() % 7)


def test_soft_partners_are_resampled_linearly(folder: Folder, encode: Encode) -> None:
    values = np.zeros((40, 20), np.uint16)
    values[:, 10:] = 60000
    place = folder({"1.png": encode(Image.fromarray(values), "PNG")})
    geometry = ImagePlacement.for_fit("pad", (40, 20), (8, 8))
    spec = PixelSpec((8, 8), "pad")
    with open_pair("alpha", place, ["1.jpg"], spec=spec, soft=True) as pair:
        row = row_of(pair, 0, geometry)
    assert pair.field == Field("alpha", "<u2", (8, 8), {"layout": "HW", "fit": "pad", "sampling": "linear"})
    assert (row[:, [0, 1, 6, 7]] == 0).all()
    assert (row[:, 2] < row[:, 3]).all()
    assert row[0, 2:6].tolist() == sorted(row[0, 2:6].tolist())
    assert 0 < row[0, 3] < 30000 < row[0, 4] < 60000
    with open_pair("alpha", place, ["1.jpg"], spec=spec) as other:
        assert other.fingerprint() != pair.fingerprint()


@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_soft_partners_with_a_palette_are_refused(folder: Folder, encode: Encode, format: str) -> None:
    picture = Image.fromarray(grey() % 7, "L").convert("P")
    picture.putpalette(bytes(range(21)))
    buffer = io.BytesIO()
    picture.save(buffer, format)
    good = encode(Image.fromarray(grey()), "JPEG")
    files = {"1.jpg": good, f"2.{format.lower()}": buffer.getvalue()}
    with open_pair("alpha", folder(files), ["1.png", "2.png"], spec=SPEC, soft=True) as pair:
        assert pair.findings.notes == []  # a JPEG matte is about right, as its image is
        with pytest.raises(ImageError) as error:
            row_of(pair, 1, ImagePlacement.for_fit("stretch", (6, 9), (8, 8)))
    assert str(error.value) == (
        f"its alpha 2.{format.lower()}: holds palette indices, which cannot be averaged; soft values "
        "are grey. Save it as grey."
    )


def test_jpeg_masks_in_color_have_one_channel(folder: Folder, encode: Encode) -> None:
    place = folder({"1.jpg": encode(Image.new("RGB", (60, 60)), "JPEG")})
    with open_pair("mask", place, ["1.png"], spec=SPEC) as pair:
        assert pair.field.shape == (8, 8)


def test_an_image_is_not_its_own_mask(folder: Folder, encode: Encode) -> None:
    place = folder({"1.jpg": encode(grey(), "JPEG"), "1_mask.png": encode(grey(), "PNG")})
    with open_pair(
        "mask", f"{place}/*.png", ["1_mask.jpg"], spec=SPEC, images=os.path.abspath(place)
    ) as pair:
        assert np.array_equal(as_stored(pair), grey())
    os.unlink("masks/1_mask.png")
    with pytest.raises(SourceError, match=r"masks: 1\.jpg has no mask; "):
        open_pair("mask", place, ["1.jpg"], spec=SPEC, images=os.path.abspath(place))
