from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from packer import PackedBatchDataset, pack_dataset
from packer.errors import UsageError
from packer.format.fields import Field
from packer.format.own_size import partner_storage
from packer.load.processes.transforms import PythonTransform, Roles
from packer.machine import cores


def test_the_number_of_processes():
    assert PythonTransform(len, processes=3).count == 3
    assert PythonTransform(len).count == min(cores(), 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fn": 5}, "transform: 5 is no function. Pass a function of a sample, or a PythonTransform."),
        ({"processes": 0}, "transform: processes=0: is not a whole number from 1 to 512."),
        ({"processes": 2.0}, "transform: processes=2.0: is not a whole number from 1 to 512."),
        (
            {"context": "threads"},
            "transform: context='threads': is not one of 'fork', 'spawn', 'forkserver', 'thread'. Pass one of them.",
        ),
        (
            {"context": "thread"},
            "transform: len takes no rng; with context='thread' only functions of (sample, rng) are allowed, because"
            " threads share all other generators. Add the argument rng and draw from it, or leave context= out.",
        ),
        (
            {"ragged": "boxes"},
            "ragged='boxes': is not a list of names. Pass a list of names, such as ['boxes'], or leave it out.",
        ),
    ],
)
def test_wrong_arguments(options: dict[str, object], message: str):
    with pytest.raises(UsageError, match=re.escape(message)):
        PythonTransform(**({"fn": len} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [True, False])
def test_masks_of_sizes_of_their_own_move_with_their_image(raw: bool):
    jpeg, png = (None if raw else {"name": name, "shape": None} for name in ("jpeg", "png"))
    fields = (
        Field("image", "|u1", None, {"layout": "HWC", "color": "rgb"}, jpeg),
        Field("mask", "|u1", None, partner_storage("|u1", 1, soft=False)[0], png),
        Field("layers", "|u1", None, partner_storage("|u1", 3, soft=False)[0], png),
    )
    assert Roles(fields).masks == {"mask": False, "layers": True}


@pytest.fixture
def albumentations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The library; the current folder has train.h5: images 40x36, masks, a box or none."""
    pytest.importorskip("torch")
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it would ask the index for a newer version
    module: ModuleType = pytest.importorskip("albumentations")
    monkeypatch.chdir(tmp_path)
    samples = []
    for k in range(30):
        mask = np.zeros((40, 36), np.uint8)
        boxes = np.array([[k % 12, k % 9, k % 12 + 9, k % 9 + 14]], np.float32)[: k % 3]
        for x1, y1, x2, y2 in boxes.astype(int):
            mask[y1:y2, x1:x2] = 1
        image = np.stack([200 * mask] * 3, axis=-1)
        samples.append({"image": image, "mask": mask, "boxes": boxes, "box_label": np.full(len(boxes), k)})
    pack_dataset(samples, "train.h5")
    return module


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("albumentations")
def test_the_recipe_for_albumentations_moves_masks_and_boxes_with_the_image():
    page = (Path(__file__).parents[3] / "docs" / "loading.md").read_text()
    (code,) = re.findall(
        r"^```python\n([^`]*import albumentations.*?)^```", page, flags=re.MULTILINE | re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(compile(code, "loading.md", "exec"), names)
    epochs, sizes, fields = [], set(), ["image", "mask", "boxes", "box_label", "row"]
    for batch_size, processes in ((8, 1), (5, 2)):
        made = replace(names["transform"], processes=processes)
        rows = {}
        with PackedBatchDataset(
            "train.h5", batch_size, order="rows", fields=fields, output="numpy", transform=made
        ) as train:
            for batch in train:
                for i, row in enumerate(batch.row.tolist()):
                    rows[row] = [values[i] for values in batch[:4]]
        for image, mask, boxes, labels in rows.values():
            assert image.shape == (24, 24, 3)
            np.testing.assert_array_equal(image[..., 0] > 100, mask > 0)
            y, x = np.nonzero(mask)
            seen = [[x.min(), y.min(), x.max() + 1, y.max() + 1]] if len(x) else np.zeros((0, 4))
            np.testing.assert_allclose(boxes, seen, atol=1e-3)
            assert labels.shape == (len(boxes),)
            sizes.add(len(boxes))
        epochs.append(rows)
    assert sizes == {0, 1}
    assert epochs[0].keys() == epochs[1].keys() == set(range(30))
    for row, values in epochs[0].items():
        for one, other in zip(values, epochs[1][row], strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_transform_of_albumentations_is_an_error_that_names_the_recipe(albumentations: ModuleType):
    for transform in (
        albumentations.Compose([albumentations.HorizontalFlip()]),
        PythonTransform(albumentations.HorizontalFlip()),
    ):
        name = type(getattr(transform, "fn", transform)).__name__
        with pytest.raises(UsageError) as raised:
            PackedBatchDataset("train.h5", 8, fields=["image"], transform=transform)
        assert str(raised.value) == (
            f"transform: {name} of albumentations takes named arrays; functions of a sample are allowed."
            " Pass a function that calls it: docs/loading.md#albumentations has one."
        )
