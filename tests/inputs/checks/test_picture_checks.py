"""Notes on a sample of headers: sizes, color profiles, pages and frames."""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from packer.inputs.checks.examine import examine
from packer.inputs.checks.picture_checks import note_on_size
from packer.pixels.decode_resize import PixelSpec
from packer.pixels.image_pages import has_more_pages
from packer.pixels.row_placement import place
from tests.inputs.checks.conftest import list_folder
from tests.pixels.profiles import ADOBE, P3, PROPHOTO, SRGB, cmyk, grey, rgb

Encode = Callable[..., bytes]


def notes(files: dict[str, bytes], **spec: object) -> list[str]:
    """Return the notes on these files, without those on labels."""
    listing = replace(list_folder(files), spec=PixelSpec((8, 8), **spec))  # type: ignore[arg-type]
    return [one.sentence for one in examine(listing) if "no labels" not in one.sentence]


# Sizes


def advised(note: str) -> tuple[int, int] | None:
    found = re.search(r"size='?(\d+)(?:x(\d+))?", note)
    return None if found is None else (int(found[1]), int(found[2] or found[1]))


def enlarged(target: tuple[int, int], sizes: list[tuple[int, int]], fit: str) -> int:
    return sum(
        box.height < to.height or box.width < to.width for box, to in (place(fit, s, target) for s in sizes)
    )


SHAPES = [
    *((side, side) for side in (28, 32, 100, 256, 257, 299, 400, 512, 1000, 4000)),
    *((400, 300), (300, 400), (480, 640), (28, 4000), (4000, 28), (1080, 1920)),
]
TARGETS = [*((n, n) for n in (*range(32, 1025, 61), 32, 64, 128, 224, 256, 400, 512, 640, 1024))]
TARGETS += [(640, 480), (480, 640), (300, 200), (1024, 37)]


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_advised_size_gives_no_further_note(shape: tuple[int, int], fit: str) -> None:
    for sizes in ([shape], [shape] * 20 + [(500, 400)] * 20, [shape] * 9 + [(512, 512)] * 31):
        for target in TARGETS:
            if note := note_on_size(target, sizes, fit):
                size = advised(note)
                assert size is not None
                assert note_on_size(size, sizes, fit) == ""
                assert 2 * enlarged(size, sizes, fit) < len(sizes)


@pytest.mark.parametrize(
    ("size", "image", "note"),
    [
        ((400, 400), (400, 400), None),
        (
            (512, 512),
            (400, 533),
            "5 of 5 images examined are smaller than 512x512 and are enlarged, which adds no detail. Pass size=400.",
        ),
        ((224, 224), (400, 400), "224: is not a power of two. Training usually takes size=256 and augment='RandomCrop(224)'."),
        ((28, 28), (28, 28), None),
        (
            (640, 480),
            (480, 640),
            "640x480: is height x width, so rows are upright, but 5 of 5 images examined are wider than high. If that "
            "was not meant, pass size='480x640'.",
        ),
        (
            (300, 600),
            (400, 200),
            "300x600: is height x width, so rows are wide, but 5 of 5 images examined are higher than wide. If that was "
            "not meant, pass size='400x200'.",
        ),
        ((256, 100), (400, 300), None),
        ((480, 640), (480, 640), None),
    ],
)  # fmt: skip
def test_sentences_on_sizes(size: tuple[int, int], image: tuple[int, int], note: str | None) -> None:
    assert note_on_size(size, [image] * 5, "crop") == (note or "")


def test_a_size_is_not_noted_without_sizes_of_images_or_if_a_pack_has_chosen_it(encode: Encode) -> None:
    assert note_on_size((100, 100), [], "crop") == ""
    files = {"a.png": encode(Image.new("L", (4, 4)), "PNG")}
    assert notes(files) == []
    chosen = replace(list_folder(files), spec=PixelSpec((8, 8)), sized=True)
    assert [one.sentence for one in examine(chosen)][-1].startswith(
        "1 of 1 images examined are smaller than 8x8"
    )


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WebP"])
def test_sizes_are_upright(encode: Encode, format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {f"{k}.png": encode(Image.new("RGB", (16, 8)), format, exif=exif) for k in range(3)}
    for size, noted in (((16, 8), False), ((8, 16), True)):
        listing = replace(list_folder(files), spec=PixelSpec(size), sized=True)
        assert any("is height x width" in one.sentence for one in examine(listing)) is noted


# Color profiles


@pytest.mark.parametrize(
    ("name", "profile", "mode", "format"),
    [
        ("Display P3", rgb(P3, name="Display P3"), "RGB", "JPEG"),
        ("Adobe RGB (1998)", rgb(ADOBE, name="Adobe RGB (1998)"), "RGB", "TIFF"),
        ("ProPhoto", rgb(PROPHOTO, 1.8, name="ProPhoto"), "RGBA", "PNG"),
        ("Inks", cmyk("Inks"), "CMYK", "JPEG"),
        ("Dot gain", grey(1.5, "Dot gain"), "L", "JPEG"),
        ("damaged", b"none", "RGB", "WebP"),
    ],
)
def test_other_profiles_than_srgb_are_counted(
    encode: Encode, name: str, profile: bytes, mode: str, format: str
) -> None:
    files = {f"{k}.png": encode(Image.new("RGB", (8, 8)), "PNG") for k in range(3)}
    files["5.png"] = encode(Image.new(mode, (8, 8)), format, icc_profile=profile)
    assert notes(files) == [
        f"1 of 4 images examined have another color profile than sRGB, such as 5.png ({name}); it is ignored, so their "
        "colors differ from those of sRGB images. Pass icc='srgb' to convert them."
    ]
    assert notes(files, icc="srgb") == []
    assert notes(files, channels=3) == []
    deep = notes(files, dtype="uint16")
    assert deep[-1].endswith("sRGB images. Convert them to sRGB first.")


def test_srgb_profiles_of_any_name_are_not_noted(encode: Encode) -> None:
    profiles = {"none": rgb(SRGB, name="c2"), "same": rgb(SRGB, 2.2, name=""), "grey": grey(2.2)}
    files = {
        f"{name}.png": encode(Image.new("L" if name == "grey" else "RGB", (8, 8)), "PNG", icc_profile=profile)
        for name, profile in profiles.items()
    }
    assert notes(files) == []


# Pages and frames


def several(format: str, **options: object) -> bytes:
    file = io.BytesIO()
    first, *others = (Image.new("L", (8, 8), 40 * k) for k in range(3))
    first.save(file, format, save_all=True, append_images=others, **options)  # type: ignore[arg-type]
    return file.getvalue()


@pytest.mark.parametrize("format", ["TIFF", "GIF", "WebP", "PNG"])
def test_files_of_several_pages_or_frames_are_counted(encode: Encode, format: str) -> None:
    files = {f"{k}.png": encode(Image.new("L", (8, 8)), format) for k in range(3)}
    assert notes(files) == []
    files |= {"7.png": several(format), "8.png": several(format)}
    assert notes(files) == [
        "2 of 5 images examined have several pages or frames, such as 7.png and 8.png; only the first of each is packed. "
        "To pack the others, save them as files of their own."
    ]


def pyramid(*kinds: int, **options: object) -> bytes:
    """A TIFF file whose further pages have these values of NewSubfileType."""
    tifffile = pytest.importorskip("tifffile")
    file = io.BytesIO()
    with tifffile.TiffWriter(file, **options) as writer:
        writer.write(np.zeros((64, 64), np.uint8))
        for kind in kinds:
            writer.write(np.zeros((32, 32), bool if kind & 4 else np.uint8), subfiletype=kind)
    return file.getvalue()


@pytest.mark.parametrize(
    "options", [{}, {"bigtiff": True}, {"byteorder": ">"}, {"byteorder": ">", "bigtiff": True}], ids=str
)
@pytest.mark.parametrize(("kinds", "noted"), [((1, 1), False), ((1, 4), False), ((1, 0), True), ((2,), True)])
def test_previews_and_masks_of_a_page_are_no_pages(
    kinds: tuple[int, ...], noted: bool, options: dict[str, object]
) -> None:
    assert bool(notes({"a.tif": pyramid(*kinds, **options)})) is noted


def test_pages_that_only_bands_are_read_from() -> None:
    tifffile = pytest.importorskip("tifffile")
    file = io.BytesIO()
    tifffile.imwrite(
        file, np.zeros((5, 20, 20, 7), np.uint16), photometric="minisblack", planarconfig="contig"
    )
    (note,) = notes({"a.tif": file.getvalue()}, channels=7, dtype="uint16")
    assert note.startswith("1 of 1 images examined have several pages")


def test_a_chain_of_pages_that_does_not_end() -> None:
    data = bytearray(pyramid(1))
    assert not has_more_pages(bytes(data[: len(data) // 2]))
    loop = struct.pack("<2sHIHHHIIHHIII", b"II", 42, 8, 2, 254, 4, 1, 1, 255, 3, 1, 1, 8)
    assert not has_more_pages(loop)
