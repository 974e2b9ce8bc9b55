"""A pipeline called on a batch of a user's own loop gives what the loader gives, in the form that was passed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from packer.augment import Pipeline
from packer.augment.annotations import moved_lists
from packer.errors import UsageError
from tests.augment.conftest import noise_images

TEXT = "RandomResizedCrop(20), RandomHorizontalFlip(), ColorJitter(0.4)"
NORMALIZE = f"{TEXT}, Normalize((0.4, 0.5, 0.6), 0.25)"
COUNT, HEIGHT, WIDTH = 5, 32, 28


@pytest.fixture
def images() -> torch.Tensor:
    return noise_images(COUNT, 3, HEIGHT, WIDTH)


@pytest.mark.parametrize("text", [TEXT, NORMALIZE, ""])
def test_images_come_back_in_their_layout_and_kind(images: torch.Tensor, text: str) -> None:
    pipeline = Pipeline(text, (3, HEIGHT, WIDTH))
    wanted = pipeline.apply(images, pipeline.sample(np.arange(COUNT), seed=7))
    last = images.permute(0, 2, 3, 1)
    assert torch.equal(pipeline(images, seed=7), wanted)
    assert torch.equal(pipeline(images, torch.arange(COUNT), 0, seed=7), wanted)
    assert torch.equal(pipeline(last, seed=7), wanted.permute(0, 2, 3, 1))
    found = pipeline(last.contiguous().numpy(), seed=7)
    assert isinstance(found, np.ndarray)
    assert np.array_equal(found, wanted.permute(0, 2, 3, 1).numpy())
    assert np.array_equal(pipeline(images.numpy(), seed=7), wanted.numpy())
    if text:
        assert not torch.equal(pipeline(images, seed=8), wanted)
        assert not torch.equal(pipeline(images, epoch=1, seed=7), wanted)


def test_arrays_that_torch_does_not_take_are_copied(images: torch.Tensor) -> None:
    pipeline = Pipeline(TEXT, (3, HEIGHT, WIDTH))
    array = images.permute(0, 2, 3, 1).contiguous().numpy()
    locked, mirrored = array.copy(), array[..., ::-1].copy()[..., ::-1]
    locked.flags.writeable = False
    assert np.array_equal(pipeline(locked, seed=1), pipeline(array, seed=1))
    assert np.array_equal(pipeline(mirrored, seed=1), pipeline(array, seed=1))


def test_a_side_that_is_the_number_of_channels_is_channels_first(images: torch.Tensor) -> None:
    square = images[:, :, :3, :3]
    pipeline = Pipeline("RandomHorizontalFlip(1), RandomVerticalFlip(0)", (3, 3, 3))
    assert torch.equal(pipeline(square, seed=0), square.flip(-1))


def test_annotations_follow_as_by_hand(images: torch.Tensor) -> None:
    pipeline = Pipeline(TEXT, (3, HEIGHT, WIDTH), flip_pairs=[(0, 1)])
    draws = np.random.default_rng(0)
    masks = torch.from_numpy(draws.integers(0, 5, (COUNT, HEIGHT, WIDTH)))
    boxes = [torch.tensor([[2.0, 3, 9, 9]] * number + [[0.0, 0, 1, 1]]) for number in range(COUNT)]
    fields: dict[str, Any] = {
        "key": ["a"] * COUNT,
        "image": images,
        "label": torch.arange(COUNT),
        "mask": masks,
        "layers": torch.stack([masks, masks + 1], dim=-1),
        "depth": masks[:, None].float() / 3,
        "boxes": boxes,
        "box_label": [torch.arange(len(each)) for each in boxes],
        "keypoints": torch.from_numpy(draws.uniform(0, 28, (COUNT, 2, 2))),
        "weight": torch.rand(COUNT),
    }
    params = pipeline.sample(np.arange(COUNT), 3)
    found = pipeline(fields, np.arange(COUNT), 3)
    kept, numbers = moved_lists(
        boxes, {"box_label": fields["box_label"]}, lambda padded: pipeline.apply_boxes(padded, params)
    )
    wanted = {
        "image": pipeline.apply(images, params),
        "mask": pipeline.apply_masks(masks, params),
        "depth": pipeline.apply_soft(fields["depth"], params),
        "keypoints": pipeline.apply_keypoints(fields["keypoints"], params),
        "label": fields["label"],
        "weight": fields["weight"],
    }
    assert list(found) == list(fields)
    for name, values in wanted.items():
        assert torch.equal(found[name].nan_to_num(-1), values.nan_to_num(-1)), name
    assert torch.equal(
        found["layers"], torch.stack([wanted["mask"], pipeline.apply_masks(masks + 1, params)], -1)
    )
    assert all(map(torch.equal, found["boxes"], kept))
    assert all(map(torch.equal, found["box_label"], numbers["box_label"]))
    assert found["key"] is fields["key"]
    given = {name: [each.numpy() for each in fields[name]] for name in ("boxes", "box_label")}
    arrays = pipeline({"image": images.numpy(), **given}, np.arange(COUNT), 3)
    for name, wanted_lists in (("boxes", kept), ("box_label", numbers["box_label"])):
        for array, tensor in zip(arrays[name], wanted_lists, strict=True):
            assert isinstance(array, np.ndarray)
            assert np.array_equal(array, tensor.numpy())


@pytest.mark.parametrize("empty", [np.zeros(0, np.float32), np.zeros((0, 4), np.float32), []])
def test_batches_may_have_no_boxes(images: torch.Tensor, empty: Any) -> None:
    batch = {"image": images, "boxes": [empty] * COUNT, "box_label": [np.zeros(0, np.int64)] * COUNT}
    found = Pipeline(TEXT, (3, HEIGHT, WIDTH))(batch, seed=0)
    assert [tuple(each.shape) for each in found["boxes"]] == [(0, 4)] * COUNT
    assert [len(each) for each in found["box_label"]] == [0] * COUNT


def test_a_mask_called_label_moves_and_labels_are_mixed(images: torch.Tensor) -> None:
    flip = Pipeline("RandomHorizontalFlip(1)", (3, HEIGHT, WIDTH))
    masks = torch.arange(COUNT * HEIGHT * WIDTH).view(COUNT, HEIGHT, WIDTH)
    assert torch.equal(flip({"image": images, "label": masks}, seed=0)["label"], masks.flip(-1))
    mix = Pipeline("Normalize(0.5, 0.5), MixUp(num_classes=5)", (3, HEIGHT, WIDTH))
    assert mix({"image": images, "label": torch.arange(COUNT)}, seed=0)["label"].shape == (COUNT, 5)
    with pytest.raises(UsageError, match=r"'label' is \[0, 1, 2, 3, 4\], and the pipeline mixes labels"):
        mix({"image": images, "label": [*range(COUNT)]}, seed=0)


@pytest.mark.parametrize("batch", [None, [1, 2], {"pixels": 3}, {"image": [1]}, "photos"])
def test_what_is_no_batch_is_an_error(batch: object) -> None:
    with pytest.raises(UsageError, match="are allowed, alone or as the field 'image'"):
        Pipeline(TEXT, (3, HEIGHT, WIDTH))(batch, seed=0)


def test_images_of_another_shape_are_an_error(images: torch.Tensor) -> None:
    with pytest.raises(UsageError):
        Pipeline(TEXT, (3, 64, 64))(images, seed=0)
    with pytest.raises(UsageError, match="shape is not known"):
        Pipeline(TEXT)(images, seed=0)


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ({"bbox": torch.zeros(COUNT, 4)}, "whether 'bbox' moves with the images is not known"),
        ({"bboxes": [torch.zeros(2, 4)] * COUNT}, "whether 'bboxes' moves"),
        ({"bboxes": [[[1, 2, 3, 4]]] * COUNT}, "whether 'bboxes' moves"),
        ({"points": np.zeros((COUNT, 3, 2))}, "whether 'points' moves"),
        ({"mask": torch.zeros(COUNT, 64, 64)}, f"have the images' size, [N, {HEIGHT}, {WIDTH}]"),
        ({"mask": [torch.zeros(HEIGHT, WIDTH)] * COUNT}, "whether 'mask' moves"),
        ({"mask": torch.zeros(COUNT - 1, HEIGHT, WIDTH)}, "'mask' has 4 rows and there are 5 images"),
        ({"boxes": [torch.zeros(1, 4)]}, "'boxes' has 1 row and there are 5"),
        ({"key": ["a"]}, "'key' has 1 row and there are 5"),
        ({"boxes": [np.zeros((2, 5))] * COUNT}, "each of the boxes has the shape [5]; [4] is allowed"),
        ({"boxes": [[[0.0, 0, 1, 1]]] * COUNT, "box_name": [["a"]] * COUNT}, "['a'] is in the batch; images"),
    ],
)
def test_what_may_belong_to_the_images_is_not_passed_by(
    images: torch.Tensor, field: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        Pipeline(TEXT, (3, HEIGHT, WIDTH))({"image": images, **field}, seed=0)


def test_all_batches_alike_are_an_error(images: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="neither rows nor seed is given"):
        Pipeline(TEXT, (3, HEIGHT, WIDTH))(images)
