"""What torchvision's transforms make of tv_tensors outside of packer is what batches hold."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from packer.errors import UsageError
from packer.load.batch_dataset import PackedBatchDataset
from packer.packs.pack import Pack
from tests import torchvision_here
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
from tests.torchvision_here import TorchvisionTransform

if not torchvision_here.READY:
    pytest.skip(torchvision_here.REASON, allow_module_level=True)

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return make_pack(tmp_path_factory.mktemp("torchvision") / "p.h5")


def usual() -> list[nn.Module]:
    return [
        v2.RandomResizedCrop(12, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]


def by_hand(transform: Any, row: Row, seed: int) -> Row:
    """What v2 makes of a row that a dataset of torchvision gives out: an image [C, H, W], and targets."""
    size = (HEIGHT, WIDTH)
    given: dict[str, Any] = {}
    for name, value in row.items():
        if name == "image":
            given[name] = tv_tensors.Image(torch.from_numpy(value.transpose(2, 0, 1).copy()))
        elif name == "seg":
            given[name] = tv_tensors.Mask(torch.from_numpy(value))
        elif name == "parts":
            given[name] = tv_tensors.Mask(torch.from_numpy(value.transpose(2, 0, 1).copy()))
        elif name == "boxes":
            given[name] = tv_tensors.BoundingBoxes(value, format="XYXY", canvas_size=size)
        elif name == "keypoints":
            given[name] = tv_tensors.KeyPoints(value, canvas_size=size)
        elif name == "box_label":
            given["labels"] = torch.from_numpy(value)
        else:
            given[name] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    torch.manual_seed(seed)
    if "image" not in row:  # v2 takes the first plain tensor for one
        given.pop("weight")
    made = row | transform(given)
    expected = {}
    for name in row:
        value = made["labels" if name == "box_label" else name]
        value = value.numpy() if isinstance(value, torch.Tensor) else value
        expected[name] = value.transpose(1, 2, 0) if name in ("image", "parts") else value
    return expected


@pytest.fixture(autouse=True)
def _one_thread():
    """More would wait for the processes' cores; and what is drawn here leaves no trace."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def check(pack: Pack, transform: Any, fields: tuple[str, ...], epochs: int = 1, **options: Any) -> None:
    """All rows, in a shuffled order, are what v2 makes of them by hand."""
    made = TorchvisionTransform(transform, **{"processes": 2} | options)
    names = (*fields, "row")
    with PackedBatchDataset(
        pack, 16, order="rows", seed=SEED, fields=names, output="numpy", transform=made
    ) as ds:
        for epoch in range(epochs):
            seen = []
            for batch in ds:
                drawn = seeds(batch.row, epoch)
                for i, number in enumerate(batch.row.tolist()):
                    row = row_of(number)
                    expected = by_hand(transform, {name: row[name] for name in fields}, drawn[i])
                    assert_same(row_values(batch, i), expected | {"row": np.int64(number)})
                    seen.append(number)
            assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize(
    "fields",
    [("image",), ("image", "label"), ("seg", "image", "parts"), ("image", "boxes", "box_label"), EVERYTHING],
    ids=", ".join,
)
def test_a_compose_does_what_it_does_to_tv_tensors(pack: Pack, fields: tuple[str, ...]):
    check(pack, v2.Compose(usual()), fields)


@pytest.mark.parametrize(
    "transform",
    [
        v2.RandomHorizontalFlip(),
        nn.Sequential(*usual()),
        v1.Compose(usual()),
        v2.Compose([v2.ToImage(), v2.RandomRotation(30), v2.GaussianBlur(3)]),
        v2.RandomApply([v2.RandomVerticalFlip(1.0), v2.ConvertBoundingBoxFormat("CXCYWH")]),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_kinds_of_transforms(pack: Pack, transform: Any):
    check(pack, transform, EVERYTHING)


def test_labels_of_boxes_go_with_those_that_are_left(pack: Pack):
    sanitize = v2.Compose([v2.RandomCrop(9), v2.SanitizeBoundingBoxes(min_size=4), v2.Resize((8, 8))])
    check(pack, sanitize, ("image", "label", "seg", "boxes", "box_label"))


def test_later_epochs_draw_anew(pack: Pack):
    check(pack, v2.RandomHorizontalFlip(), ("image", "seg"), epochs=2)


def test_a_process_that_is_not_forked_from_here_makes_the_same(pack: Pack):
    check(pack, v2.Compose(usual()), EVERYTHING, processes=1, context="forkserver")


def test_a_mask_alone(pack: Pack):
    check(pack, v2.RandomCrop(9), ("seg", "weight"))


def test_a_transform_of_ones_own_is_given_tv_tensors(pack: Pack):
    check(pack, v2.Compose([Mine(), v2.RandomHorizontalFlip()]), ("image", "label", "seg"))


class Mine(v2.Transform):
    def transform(self, value: Any, params: dict[str, Any]) -> Any:
        if isinstance(value, tv_tensors.Image):
            return tv_tensors.wrap(value.flip(-3), like=value)
        assert isinstance(value, tv_tensors.Mask)
        return value


def test_torch_batches_are_laid_out_as_without_a_transform(pack: Pack):
    with PackedBatchDataset(pack, 8, fields=EVERYTHING, transform=v2.Compose(usual())) as ds:
        batch = next(iter(ds))
    assert (batch.image.shape, batch.image.dtype) == ((8, 3, 12, 12), torch.float32)
    assert batch.image.is_contiguous(memory_format=torch.channels_last)
    assert (batch.seg.shape, batch.seg.dtype) == ((8, 12, 12), torch.uint8)
    assert batch.parts.shape == (8, 2, 12, 12)
    assert [tuple(one.shape) for one in batch.boxes] == [(i % 4, 4) for i in range(8)]
    assert batch.label.tolist() == [i % 7 for i in range(8)]
    assert type(batch.image) is torch.Tensor


def refused(pack: Pack, transform: Any, message: str, **options: Any) -> None:
    with pytest.raises(UsageError) as raised:
        PackedBatchDataset(pack, 8, transform=transform, **options)
    assert str(raised.value) == message


def test_what_cannot_be_mapped_is_refused(pack: Pack):
    flip = v2.RandomHorizontalFlip()
    refused(
        pack,
        flip,
        "transform: RandomHorizontalFlip works on images, and moves boxes and keypoints within one; there is no image among"
        " label, weight. Pass fields with 'image'.",
        fields=["label", "weight"],
    )
    refused(
        pack,
        flip,
        "transform: RandomHorizontalFlip works on images, and moves boxes and keypoints within one; there is no image among"
        " seg, boxes. Pass fields with 'image'.",
        fields=["seg", "boxes"],
    )
    for old in (v1.Compose([v2.RandomHorizontalFlip(), v1.ToTensor()]), v1.ToTensor()):
        refused(
            pack,
            old,
            "transform: ToTensor is one of torchvision's v1 transforms, which take only an image. Take the one of"
            " torchvision.transforms.v2, or call it in a function of the sample.",
            fields=["image"],
        )


def test_keypoints_need_a_torchvision_that_has_them(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(tv_tensors, "KeyPoints")
    with pytest.raises(UsageError, match=re.escape("has no KeyPoints, so Resize would leave 'keypoints'")):
        PackedBatchDataset(pack, 8, transform=v2.Resize((8, 8)))
    PackedBatchDataset(pack, 8, transform=v2.Resize((8, 8)), fields=["image", "seg"])


def test_a_compose_of_ones_own_functions_is_given_arrays(pack: Pack):
    def shape(sample: dict[str, Any]) -> dict[str, Any]:
        assert type(sample["image"]) is np.ndarray
        return {"shape": np.array(sample["image"].shape)}

    for compose in (v1.Compose([shape]), v2.Compose([shape])):
        with PackedBatchDataset(pack, 8, output="numpy", transform=compose) as ds:
            assert ds.batch(0).shape.tolist() == 8 * [[HEIGHT, WIDTH, 3]]
