"""What albumentations makes of a row outside of packer is what batches hold."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

from packer import randomness
from packer.errors import UsageError
from packer.format.pack import Pack
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.processes.albumentations_call import from_format, to_format
from packer.load.processes.transforms import PythonTransform
from tests.load.processes.targets import (
    EVERYTHING,
    HEIGHT,
    ROWS,
    SEED,
    WIDTH,
    Row,
    assert_same,
    make_pack,
    row_of,
    row_values,
    seeds,
)

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would ask the index for a newer version
A = pytest.importorskip("albumentations")

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("albumentations") / "p.h5")


def usual() -> list[Any]:
    return [
        A.RandomCrop(12, 12),
        A.HorizontalFlip(p=0.5),
        A.RandomRotate90(p=0.5),
        A.RandomBrightnessContrast(p=1.0),
    ]


def by_hand(compose: Any, row: Row, number: int, seed: int, labels: str | None) -> Row:
    """What a Compose with bbox_params of pascal_voc and keypoint_params of xy makes of a row."""
    given = {name: value for name, value in row.items() if name not in ("boxes", "box_label", "keypoints")}
    if "boxes" in row:
        given["bboxes"] = row["boxes"]
        if labels:
            given[labels] = row["box_label"]
    if "keypoints" in row:
        there = ~np.isnan(row["keypoints"]).any(axis=1)
        given["keypoints"] = row["keypoints"][there]
        given["place"] = np.flatnonzero(there)
    key = np.array([randomness.key(SEED, 0, "transform"), number], np.uint64)
    compose.set_random_state(np.random.Generator(np.random.Philox(key=key)), random.Random(seed))
    made = compose(**given)
    expected: Row = {}
    for name, value in row.items():
        if name == "boxes":
            expected[name] = np.asarray(made["bboxes"], np.float32).reshape(-1, 4)
        elif name == "box_label":
            expected[name] = np.asarray(made[labels or "box_label"], np.int64)
        elif name == "keypoints":
            expected[name] = np.full((3, 2), np.nan, np.float32)
            expected[name][np.asarray(made["place"], np.int64)] = np.reshape(made["keypoints"], (-1, 2))
        else:
            expected[name] = value if name == "label" and labels == "label" else made[name]
    return expected


def check(
    pack: Pack,
    ours: Any,
    fields: tuple[str, ...],
    theirs: Any = None,
    labels: str | None = None,
    **options: Any,
) -> None:
    """All rows, in a shuffled order, are what it makes of them by hand. theirs: told of the masks' names; default: ours."""
    made = PythonTransform(ours, **{"processes": 2} | options)
    names = (*fields, "row")
    with PackedBatchDataset(
        pack, 16, order="rows", seed=SEED, fields=names, output="numpy", transform=made
    ) as ds:
        seen = []
        for batch in ds:
            for i, (number, seed) in enumerate(zip(batch.row.tolist(), seeds(batch.row), strict=True)):
                row = {name: value for name, value in row_of(number).items() if name in fields}
                expected = by_hand(theirs or ours, {name: row[name] for name in fields}, number, seed, labels)
                assert_same(row_values(batch, i), expected | {"row": np.int64(number)})
                seen.append(number)
        assert sorted(seen) == list(range(ROWS))


def compose(*transforms: Any, told: bool = False, **options: Any) -> Any:
    """told: of the pack's names, as one would tell it elsewhere."""
    if told:
        options["additional_targets"] = {"seg": "mask", "parts": "mask"}
        if "keypoint_params" in options:
            options["keypoint_params"] = A.KeypointParams("xy", label_fields=["place"])
    return A.Compose(list(transforms) or usual(), **options)


@pytest.mark.parametrize(
    "fields", [("image",), ("image", "label"), ("seg", "image", "parts", "key")], ids=", ".join
)
def test_images_and_masks_of_any_name(pack: Pack, fields: tuple[str, ...]):
    check(pack, compose(), fields, compose(told=True))


def test_everything_moves(pack: Pack):
    options = {
        "bbox_params": A.BboxParams("pascal_voc", label_fields=["box_label"]),
        "keypoint_params": A.KeypointParams("xy"),
    }
    check(pack, compose(**options), EVERYTHING, compose(**options, told=True), "box_label")


@pytest.mark.parametrize("labels", [["classes"], ["label"], []], ids=str)
def test_labels_of_boxes_have_any_name_or_none(pack: Pack, labels: list[str]):
    """Those of albumentations need a name; ours follow their boxes without one too."""
    ours = A.BboxParams("pascal_voc", label_fields=labels, min_visibility=0.4)
    name = (labels or ["classes"])[0]
    theirs = A.BboxParams("pascal_voc", label_fields=[name], min_visibility=0.4)
    fields = ("image", "label", "boxes", "box_label")
    check(pack, compose(bbox_params=ours), fields, compose(bbox_params=theirs), name)


def test_boxes_without_labels(pack: Pack):
    params = A.BboxParams("pascal_voc")
    check(pack, compose(bbox_params=params), ("image", "boxes"))


@pytest.mark.parametrize("format", ["coco", "yolo", "albumentations"])
def test_formats_of_boxes(pack: Pack, format: str):
    fields = ["image", "boxes", "box_label"]
    found = []
    for each in ("pascal_voc", format):
        made = PythonTransform(compose(bbox_params=A.BboxParams(each, clip=True)), processes=1)
        with PackedBatchDataset(pack, ROWS, seed=SEED, fields=fields, output="numpy", transform=made) as ds:
            found.append(ds[0])
    for expected, boxes in zip(found[0].boxes, found[1].boxes, strict=True):
        np.testing.assert_allclose(boxes, expected, atol=1e-4)
    assert 8 < sum(map(len, found[0].boxes)) < sum(i % 4 for i in range(ROWS))
    for expected, labels in zip(found[0].box_label, found[1].box_label, strict=True):
        np.testing.assert_array_equal(labels, expected)


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("pascal_voc", [10, 20, 40, 80]),
        ("coco", [10, 20, 30, 60]),
        ("yolo", [0.125, 0.5, 0.15, 0.6]),
        ("albumentations", [0.05, 0.2, 0.2, 0.8]),
    ],
)
def test_what_the_formats_are(format: str, expected: list[float]):
    boxes = np.float32([[10, 20, 40, 80]])
    made = to_format(boxes, format, 100, 200)
    np.testing.assert_allclose(made, [expected], rtol=1e-6)
    np.testing.assert_allclose(from_format(made, format, 100, 200), boxes, rtol=1e-6)
    assert from_format(to_format(boxes[:0], format, 100, 200), format, 100, 200).shape == (0, 4)


@pytest.mark.parametrize("format", ["xy", "yx"])
@pytest.mark.parametrize("removed", [True, False])
def test_points_keep_their_places(pack: Pack, format: str, removed: bool):
    """Those that the Compose takes out are NaN, as those that were not there."""
    params = A.KeypointParams(format, remove_invisible=removed)
    made = PythonTransform(compose(A.CenterCrop(10, 10), keypoint_params=params), processes=1)
    with PackedBatchDataset(pack, ROWS, fields=["image", "keypoints"], output="numpy", transform=made) as ds:
        batch = ds[0]
    top, left = (HEIGHT - 10) // 2, (WIDTH - 10) // 2
    expected = np.stack([row_of(number)["keypoints"] for number in range(ROWS)]) - np.float32([left, top])
    if removed:
        expected[((expected < 0) | (expected >= 10)).any(axis=-1)] = np.nan
    assert 0 < np.isnan(expected).sum() < expected.size
    np.testing.assert_allclose(batch.keypoints, expected, atol=1e-5)


def test_a_transform_by_itself(pack: Pack):
    check(pack, A.HorizontalFlip(p=0.5), ("image", "label", "seg"), flip_told())
    check(pack, A.ToGray(p=0.5), ("image", "label", "seg"))
    check(pack, A.OneOf([A.HorizontalFlip(p=1), A.VerticalFlip(p=1)], p=1), ("image", "label"))


def flip_told() -> Any:
    flip = A.HorizontalFlip(p=0.5)
    flip.add_targets({"seg": "mask"})
    return flip


def test_a_strict_compose_is_given_what_it_knows(pack: Pack):
    check(pack, compose(strict=True), ("image", "label", "seg", "weight"), compose(told=True))


def test_a_compose_that_is_not_run_leaves_boxes_and_points(pack: Pack):
    options = {"bbox_params": A.BboxParams("coco"), "keypoint_params": A.KeypointParams("yx"), "p": 0.0}
    made = PythonTransform(compose(**options), processes=1)
    with PackedBatchDataset(pack, 20, fields=EVERYTHING, output="numpy", transform=made) as ds:
        batch = ds[0]
        for number in range(20):
            expected = row_of(number)
            found = row_values(batch, number)
            np.testing.assert_allclose(found["boxes"], expected["boxes"], rtol=1e-5)
            assert_same(found | {"boxes": None}, expected | {"boxes": None})


def test_a_process_that_is_not_forked_from_here_makes_the_same(pack: Pack):
    check(pack, compose(), ("image", "seg"), compose(told=True), processes=1, context="forkserver")


def test_the_users_compose_stays_as_it_is(pack: Pack):
    mine = compose()
    PackedBatchDataset(pack, 8, fields=["image", "seg"], transform=mine)
    assert not mine.additional_targets


def refused(pack: Pack, transform: Any, message: str, **options: Any) -> None:
    with pytest.raises(UsageError) as raised:
        PackedBatchDataset(pack, 8, transform=transform, **options)
    assert str(raised.value) == message


def test_what_cannot_be_mapped_is_refused(pack: Pack):
    refused(
        pack,
        compose(),
        "transform: Compose has no bbox_params, so 'boxes' would stay where they are. Pass A.Compose([...],"
        " bbox_params=A.BboxParams('pascal_voc')). Leave them out: fields=['image', 'label'].",
        fields=["image", "label", "boxes", "box_label"],
    )
    refused(
        pack,
        A.HorizontalFlip(),
        "transform: HorizontalFlip has no keypoint_params, so 'keypoints' would stay where they are. Pass A.Compose([...],"
        " keypoint_params=A.KeypointParams('xy')). Leave it out: fields=['image', 'label'].",
        fields=["image", "label", "keypoints"],
    )
    refused(
        pack,
        compose(keypoint_params=A.KeypointParams("xya")),
        "transform: keypoint_params has 'xya'; points of a pack are x and y alone, formats xy, yx. Pass A.KeypointParams('xy').",
        fields=["image", "keypoints"],
    )
    refused(
        pack,
        compose(bbox_params=A.BboxParams("coco", label_fields=["a", "b"])),
        "transform: bbox_params names the label_fields 'a', 'b'; the boxes have 'box_label' alone. Pass"
        " label_fields=['box_label'].",
        fields=["image", "boxes", "box_label"],
    )
    refused(
        pack,
        compose(bbox_params=A.BboxParams("coco", label_fields=["a"])),
        "transform: bbox_params names the label_fields 'a'; the boxes have no labels. Pass label_fields=[].",
        fields=["image", "boxes"],
    )
    refused(
        pack,
        PythonTransform(compose(), batched=True),
        "transform: Compose of albumentations takes one image at a time; rows one by one are allowed. Leave out batched=True.",
        fields=["image"],
    )
    refused(
        pack,
        compose(),
        "transform: Compose of albumentations works on images, and there are none among label, seg. Pass fields with 'image'.",
        fields=["label", "seg"],
    )
