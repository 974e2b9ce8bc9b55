"""Masks of images, from files in folders and archives to rows: each row has the mask of its image."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from packer import convert_images
from packer.convert.conversion_task import Report
from packer.errors import SourceError, UsageError

NUMBERS = (1, 2, 11)

Make = Callable[..., None]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """make("a/{}_sat.png", "a/{}_mask.png") writes an image and a mask of its value for each number."""
    monkeypatch.chdir(tmp_path)

    def run(image: str, mask: str) -> None:
        for value, number in enumerate(NUMBERS, 10):
            for path, channels in ((image, 3), (mask, 1)):
                file = tmp_path / path.format(number)
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(np.full((8, 8, channels), value, np.uint8).squeeze()).save(file)

    return run


def packed(source: str, place: str, rows: int = 3, **options: object) -> Report:
    """The report of a conversion whose rows have the mask of their image."""
    report = convert_images(source, "p.h5", size=8, pairs={"mask": place}, overwrite=True, **options)  # type: ignore[arg-type]
    with h5py.File("p.h5") as file:
        images, masks = file["image"][:, 0, 0, 0], file["mask"][:, 0, 0]
    assert len(images) == rows
    assert images.tolist() == masks.tolist()
    return report


def matched(place: str, *examples: str) -> str:
    return (
        f"{place}: no file has the name of an image, so each mask was found by the part of the names that differs: "
        f"{' and '.join(examples)}. If that is wrong, pass patterns of both names by pairs=."
    )


@pytest.mark.parametrize("place", ["a/*_mask.png", "*_mask.png", "./a/*_mask.png"])
def test_masks_beside_their_images_are_no_images(make: Make, place: str) -> None:
    make("a/{}_sat.png", "a/{}_mask.png")
    shown = place if "/" in place else f"a/{place}"
    examples = "11_mask.png for 11_sat.png", "1_mask.png for 1_sat.png"
    assert packed("a", place).notes[0] == matched(shown, *examples)


def test_patterns_of_both_sides_say_what_is_an_image(make: Make) -> None:
    make("a/{}_sat.png", "a/{}_mask.png")
    both = "{stem}_mask.png from {stem}_sat.png"
    assert not any("mask" in note for note in packed("a", both).notes)
    Path("a/extra.png").write_bytes(Path("a/1_sat.png").read_bytes())
    with pytest.raises(SourceError) as error:
        packed("a", both)
    assert str(error.value) == (
        "a: extra.png is called neither *_sat.png nor *_mask.png; a file is an image, a partner, or not there. Remove it, or "
        "pass other patterns, or pass on_error='skip'."
    )
    assert [one["key"] for one in packed("a", both, on_error="skip").skipped] == ["extra.png"]
    with pytest.raises(SourceError) as error:
        packed("a", "a/*_mask.png")
    assert str(error.value) == (
        "a: 11_sat.png has no mask (and 3 more images); each image needs one file of its path and name, and the nearest to "
        "11_sat.png is 11_mask.png. Pass pairs={'mask': 'a/*_mask.png from *_sat.png'}, which fits 3 of 4 images, or pass "
        "on_error='skip'."
    )


def test_files_of_several_pairs_beside_their_images(make: Make) -> None:
    make("a/{}L.png", "a/{}L_1stHO.png")
    make("a/{}L.png", "a/{}L_2ndHO.png")
    report = convert_images("a", "p.h5", size=8, pairs={"one": "*_1stHO.png", "two": "*_2ndHO.png"})
    assert report.rows == 3


def test_masks_in_a_folder_below_the_images_are_no_class(make: Make) -> None:
    make("a/cat/{}.png", "a/masks/cat/{}.png")
    packed("a", "a/masks")
    with h5py.File("p.h5") as file:
        assert not file["label"][:].any()
    make("b/images/{}.png", "b/masks/{}.png")
    packed("b", "b/masks")


@pytest.mark.parametrize(
    ("place", "note"), [("a/*/masks", True), ("*/masks/* from */images/*", False), ("a/*/masks/*.png", True)]
)
def test_masks_of_each_split(make: Make, place: str, note: bool) -> None:
    for split in ("train", "val"):
        make(f"a/{split}/images/{{}}.png", f"a/{split}/masks/{{}}.png")
    assert any("no file has the name" in one for one in packed("a", place, rows=6).notes) is note


@pytest.mark.parametrize(
    ("image", "mask", "source", "place", "examples"),
    [
        (
            "x/case_{:03}_0000.png",
            "y/case_{:03}.png",
            "x",
            "y",
            ("case_001.png for case_001_0000.png", "case_002.png for case_002_0000.png"),
        ),
        ("x/cat/{}.png", "y/{}_m.png", "x", "y", ("1_m.png for cat/1.png", "11_m.png for cat/11.png")),
        ("x/{}.png", "y/cat/{}.png", "x", "y", ("cat/1.png for 1.png", "cat/11.png for 11.png")),
    ],
)
def test_names_that_differ(
    make: Make, image: str, mask: str, source: str, place: str, examples: tuple[str, str]
) -> None:
    make(image, mask)
    assert packed(source, place).notes[0] == matched(place, *examples)


def test_several_kinds_of_masks_are_named(make: Make) -> None:
    make("x/c/c_{}_left.png", "y/c/c_{}_fine_ids.png")
    make("x/c/c_{}_left.png", "y/c/c_{}_fine_color.png")
    with pytest.raises(SourceError) as error:
        packed("x", "y")
    assert str(error.value) == (
        "y: c/c_11_left.png has no mask (and 2 more images); each image needs one file of its path and name, and the nearest "
        "to c/c_11_left.png is c/c_11_fine_ids.png. Pass pairs={'mask': 'y/*_fine_color.png'} or pairs={'mask': "
        "'y/*_fine_ids.png'}, or pass on_error='skip'."
    )
    packed("x", "y/*_fine_ids.png")


def test_a_folder_of_masks_for_each_class_is_named(make: Make) -> None:
    make("x/{}.png", "y/road/{}.png")
    make("x/{}.png", "y/tree/{}.png")
    with pytest.raises(
        SourceError, match=r"Pass pairs=\{'mask': 'y/road'\} or pairs=\{'mask': 'y/tree'\}, or pass"
    ):
        packed("x", "y")
    report = convert_images("x", "p.h5", size=8, pairs={"road": "y/road", "tree": "y/tree"})
    assert report.rows == 3


def test_the_folder_of_the_images_alone_is_no_pair(make: Make) -> None:
    make("a/{}_sat.png", "a/{}_mask.png")
    with pytest.raises(SourceError) as error:
        packed("a", "a")
    assert str(error.value).endswith(
        "If images and masks lie together, pass pairs={'mask': 'a/*_sat.png'} or pairs={'mask': 'a/*_mask.png'}, or pass "
        "on_error='skip'."
    )
    with pytest.raises(UsageError) as usage:
        packed("a", "a/*.png")
    assert str(usage.value) == (
        "a: all of its images are named as partners by pairs=; their pattern must leave images. Pass patterns of both, such "
        "as pairs={'mask': 'a/*_mask.png from *_sat.jpg'}."
    )


def test_a_missing_mask_and_the_nearest_file(make: Make) -> None:
    make("x/{}.png", "y/{}.png")
    Path("y/11.png").rename("y/1l.png")
    with pytest.raises(SourceError) as error:
        packed("x", "y")
    assert str(error.value) == (
        "y: 11.png has no mask; each image needs one file of its path and name, and the nearest to 11.png is 1l.png. Add or "
        "remove files, or pass on_error='skip'."
    )


@pytest.mark.parametrize("ending", ["zip", "tar"])
@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("p", "p/*_mask.png"),
        ("p", "*_mask.png"),
        ("p/q", "p/q/*_mask.png"),
        ("p/q/a", "p/q/a/*_mask.png"),
        ("p", "*/*_mask.png from */*_sat.png"),
    ],
)
def test_archives(make: Make, ending: str, source: str, place: str) -> None:
    make("tree/q/a/{}_sat.png", "tree/q/a/{}_mask.png")
    if ending == "zip":
        with zipfile.ZipFile("p.zip", "w") as file:
            for path in sorted(Path("tree").rglob("*.png")):
                file.write(path, path.relative_to("tree"))
    else:
        shutil.make_archive("p", "tar", "tree")
    packed(*(text.replace("p", f"p.{ending}", 1) if text[0] == "p" else text for text in (source, place)))
