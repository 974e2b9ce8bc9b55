"""Points that are sides, such as left and right eye, from a CSV to batches: mirrored images exchange them."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

from packer import (  # noqa: E402
    Labels,
    PackedBatchDataset,
    append_images,
    convert_images,
    export_images,
    merge_packs,
    open_pack,
)
from packer.augment import Pipeline  # noqa: E402
from packer.errors import UsageError  # noqa: E402
from tests import torchvision_here  # noqa: E402

SIDE, NAMES = 32, ("left_eye", "nose", "right_eye")
COLUMNS = [f"{name}_{axis}" for name in NAMES for axis in "xy"]
NUMBERED = [f"{axis}{number}" for number in range(1, 4) for axis in "xy"]

Convert = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    """convert(columns, **options) -> a pack whose point k is the one pixel of channel k that is 255; the notes."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    places = {}
    for number in range(6):
        pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
        flat = rng.choice(SIDE * SIDE, 3, replace=False)
        y, x = np.divmod(flat, SIDE)
        pixels[y, x, np.arange(3)] = 255
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
        places[f"{number}.png"] = (np.stack([x, y], axis=1) + 0.5).ravel().tolist()

    def run(columns: list[str] = COLUMNS, out: str = "p.h5", **options: Any) -> tuple[str, list[str]]:
        with (tmp_path / "l.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["file", *columns], *([k, *v] for k, v in places.items())])
        flip_pairs, path = options.pop("flip_pairs", None), str(tmp_path / out)
        labels = Labels(tmp_path / "l.csv", keypoints=columns, flip_pairs=flip_pairs)
        report = convert_images(tmp_path / "images", path, size=SIDE, labels=labels, **options)
        return path, [note for note in report.notes if "oints" in note]

    return run


def channels(path: str, augment: Any) -> list[list[int]]:
    """The channel of the pixel under each point, -1 for a point that is not seen; each row once."""
    with PackedBatchDataset(path, 6, augment=augment, fields=["image", "keypoints"]) as dataset:
        batch = next(iter(dataset))
    found = []
    for image, points in zip(batch.image, batch.keypoints.tolist(), strict=True):
        under = [image[:, int(y), int(x)] if x == x else torch.zeros(3) for x, y in points]
        found.append([int(pixel.argmax()) if pixel.max() == 255 else -1 for pixel in under])
    return found


KEPT, EXCHANGED = [0, 1, 2], [2, 1, 0]


@pytest.mark.parametrize(
    ("augment", "expected"),
    [
        ("RandomHorizontalFlip(1)", EXCHANGED),
        ("RandomVerticalFlip(1)", EXCHANGED),
        ("RandomHorizontalFlip(1), RandomVerticalFlip(1)", KEPT),
        ("RandomHorizontalFlip(1), RandomHorizontalFlip(1)", KEPT),
        ("RandomHorizontalFlip(1), GaussianBlur(1), RandomVerticalFlip(1)", KEPT),  # two passes
        ("RandomHorizontalFlip(1), ColorJitter(0), RandomCrop(32)", EXCHANGED),
        ("RandomApply([RandomHorizontalFlip(1)], 1)", EXCHANGED),
        ("RandomApply([RandomHorizontalFlip(1)], 0)", KEPT),
        ("RandomCrop(32)", KEPT),
    ],
)
def test_a_mirrored_image_has_its_right_eye_where_the_left_one_was(
    convert: Convert, augment: str, expected: list[int]
) -> None:
    path, notes = convert()
    assert notes == [
        "Points that are sides by their names exchange their numbers in mirrored images: 1 pair of 3 points "
        "(left_eye:right_eye). Pass labels=Labels(flip_pairs='none') if they are no sides."
    ]
    assert channels(path, augment) == [expected] * 6


@pytest.mark.parametrize("augment", ["RandomHorizontalFlip()", "AlternatingHorizontalFlip()"])
def test_each_image_is_mirrored_for_itself(convert: Convert, augment: str) -> None:
    found = channels(convert()[0], augment)
    assert {tuple(row) for row in found} == {tuple(KEPT), tuple(EXCHANGED)}


def test_images_of_different_sizes(convert: Convert, tmp_path: Path) -> None:
    path, _ = convert()
    labels = Labels(tmp_path / "l.csv", keypoints=COLUMNS)
    convert_images(tmp_path / "images", tmp_path / "k.h5", size="keep", labels=labels)
    with (
        PackedBatchDataset(path, 6, augment="RandomHorizontalFlip(1)", fields=["keypoints", "image"]) as one,
        PackedBatchDataset(tmp_path / "k.h5", 6, augment="RandomHorizontalFlip(1), CenterCrop(32)") as other,
    ):
        assert torch.equal(next(iter(one)).keypoints, next(iter(other)).keypoints)


def test_twice_mirrored_is_not_mirrored() -> None:
    pipeline = Pipeline("RandomHorizontalFlip()", (3, 9, 9), flip_pairs=[(0, 2)])
    params = pipeline.sample(np.arange(50))
    points = torch.rand(50, 3, 2) * 9
    points[3, 1] = torch.nan
    once = pipeline.apply_keypoints(points, params)
    assert torch.allclose(pipeline.apply_keypoints(once, params), points, equal_nan=True, atol=1e-5)
    flipped = params[0]["flip"]
    assert torch.allclose(once[flipped, 0, 0], 9 - points[flipped, 2, 0])
    assert torch.equal(once[~flipped, 0], points[~flipped, 0])


@pytest.mark.parametrize("pairs", [[(0, 0)], [(0, 1), (1, 2)], [(0, 1, 2)], 3, [(-1, 0)], "ab", [(0.5, 1)]])
def test_what_are_no_pairs_of_numbers(pairs: Any) -> None:
    with pytest.raises(UsageError, match="pairs of numbers from 0 up are allowed, each number in one"):
        Pipeline([], flip_pairs=pairs)


def test_numbers_beyond_the_points() -> None:
    pipeline = Pipeline("RandomHorizontalFlip(1)", (3, 9, 9), flip_pairs=[(0, 5)])
    with pytest.raises(UsageError) as error:
        pipeline.apply_keypoints(torch.zeros(1, 3, 2), pipeline.sample([0]))
    assert str(error.value) == (
        "Pipeline: flip_pairs has the point 5 and there are 3; their numbers, from 0, are allowed. Pass those."
    )


def test_unknown_sides_are_a_warning_once(convert: Convert) -> None:
    path, notes = convert(NUMBERED)
    assert notes == [
        "The names of the 3 points (1, 2, 3) say no sides, so in mirrored images each keeps its number. If some are "
        "sides, such as left and right eye, pass them, for example labels=Labels(flip_pairs='1:2'); if none are, "
        "labels=Labels(flip_pairs='none')."
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert channels(path, "RandomHorizontalFlip(1)") == [KEPT] * 6
    assert [str(one.message) for one in caught] == [
        f"{path}: augment mirrors images, and it does not say which of its 3 keypoints are sides, such as left and right "
        "eye, so each keeps its number. Convert it again with labels=Labels(flip_pairs='LEFT:RIGHT') (or 'none'), or pass "
        "augment=Pipeline(..., flip_pairs=[(0, 1)]) with the numbers of the points ([] for none)."
    ]
    assert channels(path, "RandomCrop(32)") == [KEPT] * 6
    assert channels(path, Pipeline("RandomHorizontalFlip(1)", flip_pairs=[])) == [KEPT] * 6
    assert channels(path, Pipeline("RandomHorizontalFlip(1)", flip_pairs=[(0, 2)])) == [EXCHANGED] * 6


@pytest.mark.parametrize(("pairs", "expected"), [("1:3", EXCHANGED), ("none", KEPT), ("", KEPT)])
def test_sides_are_given(convert: Convert, pairs: str, expected: list[int]) -> None:
    path, notes = convert(NUMBERED, flip_pairs=pairs)
    assert notes == []
    assert channels(path, "RandomHorizontalFlip(1)") == [expected] * 6


def test_names_are_seen_everywhere(convert: Convert, tmp_path: Path) -> None:
    path, _ = convert()
    about = open_pack(path).header.field("keypoints").about
    assert (about["points"], about["flip_pairs"]) == (list(NAMES), [["left_eye", "right_eye"]])
    assert "flip_pairs left_eye:right_eye, format xy, points left_eye nose right_eye" in "\n".join(
        open_pack(path).describe()
    )
    assert export_images(path, tmp_path / "files").notes == ()
    with (tmp_path / "files" / "labels.csv").open() as file:
        assert next(csv.reader(file)) == ["file", *COLUMNS]
    merge_packs([path, path], tmp_path / "m.h5", duplicates="keep")
    assert open_pack(tmp_path / "m.h5").header.field("keypoints").about == about
    other, _ = convert([name.replace("nose", "chin") for name in COLUMNS], out="o.h5")
    with pytest.raises(UsageError) as error:
        merge_packs([path, other], tmp_path / "n.h5", duplicates="keep")
    assert str(error.value) == (
        f"{other}, {path}: their fields mean different things (of 'keypoints', points was left_eye, nose, right_eye, now it "
        "is left_eye, chin, right_eye); the packs must have equal fields."
    )


@pytest.mark.parametrize("pairs", ["1:3", "none"])
def test_an_export_says_what_its_names_do_not(convert: Convert, tmp_path: Path, pairs: str) -> None:
    path, _ = convert(NUMBERED, flip_pairs=pairs)
    assert export_images(path, tmp_path / "files").notes == (
        "labels.csv does not say which points are sides; to pack it again, pass "
        f"labels=Labels(flip_pairs={pairs!r}).",
    )


@pytest.mark.parametrize("named", [True, False])
def test_rows_are_appended(
    convert: Convert, tmp_path: Path, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        if not named:  # as packs were before points had names
            patch.setattr("packer.inputs.table_targets._named", lambda *_: {})
        path, _ = convert(out="shards", shards=4)
    report = append_images(path, tmp_path / "images", labels=tmp_path / "l.csv", duplicates="keep")
    assert [note for note in report.notes if "oints" in note] == [] or named
    assert open_pack(path).rows == 12
    assert ("points" in open_pack(path).header.field("keypoints").about) is named


def test_a_function_before_augmentation_keeps_the_sides(convert: Convert) -> None:
    path, _ = convert()
    options: dict[str, Any] = {"transform": lambda sample: sample, "augment": "RandomHorizontalFlip(1)"}
    with PackedBatchDataset(path, 6, fields=["image", "keypoints"], **options) as dataset:
        batch = next(iter(dataset))
    image, points = batch.image[0], batch.keypoints[0].tolist()
    assert [int(image[:, int(y), int(x)].argmax()) for x, y in points] == EXCHANGED


def test_torchvisions_flips_are_a_warning(convert: Convert) -> None:
    if not torchvision_here.READY:
        pytest.skip(torchvision_here.REASON)
    from torchvision.transforms import v2

    path, _ = convert()
    with pytest.warns(UserWarning, match="does not exchange left and right ones") as caught:
        PackedBatchDataset(path, 6, transform=v2.Compose([v2.RandomHorizontalFlip(1)])).close()
    assert str(caught[0].message) == (
        f"transform: RandomHorizontalFlip of torchvision moves the keypoints of {path}, but does not exchange left and right "
        "ones. Exchange them in a function of the sample, or pass augment='RandomHorizontalFlip()'."
    )
    PackedBatchDataset(path, 6, transform=v2.Compose([v2.ColorJitter()])).close()
