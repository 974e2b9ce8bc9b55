"""Which file belongs to which image, by the names alone."""

from __future__ import annotations

import pytest

from packer.inputs.pair_names import PairPlace, belonging, complete, derived, kinds, nearest, patterns

NUMBERS = (1, 2, 11)
CITIES = ("aachen/aachen_000000_000019", "bochum/bochum_000000_000029", "ulm/ulm_000001_000019")


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("masks/", ("masks", "*", None)),
        ("/", ("/", "*", None)),
        ("masks/*_mask.png", ("masks", "*_mask.png", None)),
        ("/data/*.png", ("/data", "*.png", None)),
        ("*_mask.png", ("", "*_mask.png", None)),
        ("{stem}_mask.png from {stem}_sat.jpg", ("", "*_mask.png", "*_sat.jpg")),
        ("masks from bob/", ("masks from bob", "*", None)),
        ("masks from bob/*.png from *_s.jpg", ("masks from bob", "*.png", "*_s.jpg")),
        ("data/*/masks", ("data", "*/masks/*", None)),
        ("data/*/seg/label.png", ("data", "*/seg/label.png", None)),
        ("*/masks/* from */images/*", ("", "*/masks/*", "*/images/*")),
        ("masks.zip/a/*_m.png", ("masks.zip/a", "*_m.png", None)),
    ],
)
def test_a_text_has_a_place_and_patterns(given: str, parts: tuple[str, str, str | None]) -> None:
    place = PairPlace.parse(given)
    assert (place.place, place.pattern, place.images) == parts
    assert PairPlace.parse(str(place)) == place


# What the images and the files have, and what is told apart: the image, the file that belongs to it.
LAYOUTS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "equal": ("m", [(f"a/{n}.jpg", f"a/{n}.png") for n in NUMBERS]),
    "suffix": ("m/*_mask.png", [(f"{n}.jpg", f"{n}_mask.png") for n in NUMBERS]),
    "prefix": ("m/mask_*.png", [(f"{n}.jpg", f"mask_{n}.png") for n in NUMBERS]),
    "deepglobe": ("m/*_mask.png", [(f"{n}_sat.jpg", f"{n}_mask.png") for n in NUMBERS]),
    "deepglobe, both": ("*_mask.png from *_sat.jpg", [(f"{n}_sat.jpg", f"{n}_mask.png") for n in NUMBERS]),
    "nnU-Net": ("m", [(f"case_{n:03}_0000.png", f"case_{n:03}.png") for n in NUMBERS]),
    "cityscapes": (
        "m/*_labelIds.png",
        [(f"{c}_leftImg8bit.png", f"{c}_gtFine_labelIds.png") for c in CITIES],
    ),
    "DRIVE": ("m", [(f"{n}_training.tif", f"{n}_manual1.gif") for n in NUMBERS]),
    "DIV2K": ("m", [(f"{n:04}.png", f"X2/{n:04}x2.png") for n in NUMBERS]),
    "NYU": ("m/sync_depth_*.png", [(f"rgb_{n:05}.jpg", f"sync_depth_{n:05}.png") for n in NUMBERS]),
    "SIDD": ("m/GT_*", [(f"{n:04}/NOISY_SRGB_010.PNG", f"{n:04}/GT_SRGB_010.PNG") for n in NUMBERS]),
    "cell tracking": ("m", [(f"t{n:03}.tif", f"man_seg{n:03}.tif") for n in NUMBERS]),
    "camel": ("m", [(f"frame{n}.png", f"mask{n}.png") for n in "ABC"]),
    "rain": ("m", [(f"rain-{n}.png", f"norain-{n}.png") for n in NUMBERS]),
    "KITTI": (
        "m/*_road_*.png from *_*.png",
        [(f"{n}_00.png", f"{n}_road_00.png") for n in ("um", "umm", "uu")],
    ),
    "extensions": ("m", [(f"{n}.jpg", f"{n}.jpg.png") for n in NUMBERS]),
    "flat masks": ("m", [(f"{c}/{n}.jpg", f"{n}.png") for c, n in zip("aba", NUMBERS, strict=True)]),
    "class masks": ("m", [(f"{n}.jpg", f"{c}/{n}.png") for c, n in zip("aba", NUMBERS, strict=True)]),
    "root": ("m", [(f"images/{n}.jpg", f"{n}.png") for n in NUMBERS]),
    "splits": ("m/*/masks", [(f"{s}/images/1.jpg", f"{s}/masks/1.png") for s in ("train", "val", "test")]),
    "splits, both": ("*/m/* from */i/*", [(f"{s}/i/1.png", f"{s}/m/1.png") for s in ("train", "val")]),
    "patients": ("m", [(f"p{n}/ct/scan.png", f"p{n}/seg/label.png") for n in NUMBERS]),
    "one": ("m", [("photo.jpg", "photo_mask.png")]),
}


@pytest.mark.parametrize(("given", "pairs"), LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("more", [(), ("zebra.png", "a/zebra_9.txt")], ids=["", "more"])
def test_layouts(given: str, pairs: list[tuple[str, str]], more: tuple[str, ...]) -> None:
    keys, files = [key for key, _ in pairs], [file for _, file in pairs]
    place = PairPlace.parse(given)
    given_files = sorted((*files, *(more if place.pattern != "*" else ())))
    found, _ = belonging(keys, given_files, place)
    assert (found == [[file] for file in files]) or (
        not any(found) and derived(keys, given_files, place) == files
    )


@pytest.mark.parametrize(
    ("keys", "files"),
    [
        (["a.jpg"], ["b.png"]),
        (["1.jpg", "2.jpg"], ["101.png", "102.png"]),
        (["a_1.jpg", "a_2.jpg"], ["1_2.png", "2_1.png"]),  # two ways
        (["1.jpg", "2.jpg"], ["a/1.png", "a/2.png", "b/1.png", "b/2.png"]),
        (["a/1.jpg", "b/1.jpg"], ["1.png", "2.png"]),
        (["1_0.png", "1_1.png"], ["1.png"]),
        (["1_x.png", "2_x.png", "y.png"], ["1.png", "2.png"]),
        (["a/photo.jpg"], ["a/other.png"]),
        (["cat.jpg", "dog.jpg"], ["cut.png", "dig.png"]),
    ],
)
def test_names_that_are_not_clear(keys: list[str], files: list[str]) -> None:
    place = PairPlace("m")
    assert not any(belonging(keys, files, place)[0])
    assert derived(keys, files, place) is None


def test_files_of_images_that_are_not_there_are_left() -> None:
    keys, files = ["img_1.jpg"], ["mask_1.png", "mask_2.png"]
    assert derived(keys, files, PairPlace("m")) == ["mask_1.png"]
    assert belonging(["1.jpg"], ["1.png", "2.png"], PairPlace("m")) == ([["1.png"]], ["2.png"])


@pytest.mark.parametrize(
    ("key", "file", "expected"),
    [
        ("1_sat.jpg", "1_mask.png", ("*_mask.png", "*_sat.jpg")),
        ("1_satellite.png", "1_satmask.png", ("*_satmask.png", "*_satellite.png")),
        ("rgb_001.jpg", "sync_depth_001.png", ("sync_depth_*.png", "rgb_*.jpg")),
        ("a/x.png", "b/x.png", ("*.png", "*.png")),
        ("cat.png", "dog.png", ("", "")),
    ],
)
def test_two_names_give_patterns(key: str, file: str, expected: tuple[str, str]) -> None:
    assert patterns(key, file) == expected


def test_the_nearest_file() -> None:
    files = sorted(["10_mask.png", "1l_mask.png", "2_mask.png", "readme.png"])
    assert nearest("11.jpg", files) in ("10_mask.png", "1l_mask.png")
    assert nearest("case_11.jpg", sorted(f"case_{n}x.png" for n in range(3000))) == "case_11x.png"
    assert nearest("é.jpg", files) == ""


def test_what_is_complete_is_told() -> None:
    kinds_of = [f"{city}_gtFine_{kind}.png" for city in CITIES for kind in ("color", "labelIds")]
    keys = [f"{city}_leftImg8bit.png" for city in CITIES]
    assert list(map(str, complete(keys, sorted(kinds_of), PairPlace("gt")))) == [
        "gt/*_gtFine_color.png",
        "gt/*_gtFine_labelIds.png",
    ]
    classes = [f"{folder}/{n}.png" for folder in ("road", "tree") for n in NUMBERS]
    assert list(map(str, complete([f"{n}.jpg" for n in NUMBERS], classes, PairPlace("m")))) == [
        "m/road",
        "m/tree",
    ]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            [f"{n}_{kind}" for n in NUMBERS for kind in ("sat.jpg", "mask.png")],
            {"s/*_sat.jpg", "s/*_mask.png"},
        ),
        ([f"{n}{kind}" for n in NUMBERS for kind in (".jpg", ".png")], {"s/*.jpg", "s/*.png"}),
        (
            [f"{s}/{k}/{n}.png" for s in ("train", "val") for k in ("x", "y") for n in NUMBERS],
            {"s/*/x/*", "s/*/y/*"},
        ),
        ([f"{n}.png" for n in NUMBERS], set()),
    ],
)
def test_images_of_two_kinds(keys: list[str], expected: set[str]) -> None:
    assert set(map(str, kinds(keys, "s"))) == expected


@pytest.mark.parametrize(
    ("given", "partners", "images"),
    [
        ("*_mask.png", ["1_mask.png"], ["1.png", "1_mask.jpg"]),
        ("*.png from *_sat.png", ["1.png"], ["1_sat.png", "1.jpg"]),
        ("*_mask.png from *.png", ["a/1_mask.png"], ["1.png"]),
        ("*/masks/*", ["a/masks/1.png"], ["masks/1.png", "a/images/1.png"]),
    ],
)
def test_partners_among_images(given: str, partners: list[str], images: list[str]) -> None:
    place = PairPlace.parse(given)
    assert [place.is_partner(path) for path in partners + images] == [True] * len(partners) + [False] * len(
        images
    )
