"""Masks and soft maps of images that kept their own size, and raw rows: each moved as its image, alone in a batch of its size, would be."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from packer import PackedBatchDataset, PackedDataset, Padding, open_pack  # noqa: E402
from packer.augment import (  # noqa: E402
    GaussianBlur,
    Normalize,
    Pipeline,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Resize,
)
from packer.codecs import jpeg, png  # noqa: E402
from packer.errors import FormatError, UsageError  # noqa: E402
from packer.format.fields import Field  # noqa: E402
from packer.writing.pack_writer import PackWriter  # noqa: E402
from tests.augment.conftest import forced  # noqa: E402

ROWS = 12
MASKS = ("mask", "instance", "matte", "depth")
JPEG = {"name": "jpeg", "shape": None}


def field(name: str, sampling: str, dtype: str = "|u1") -> Field:
    about = {"layout": "HW", "of": "image", "sampling": sampling} | (
        {"dtype": dtype} if dtype != "|u1" else {}
    )
    return Field(name, "|u1", None, about, None if dtype == "<f4" else {"name": "png", "shape": None})


def written(path: Path, codec: dict[str, Any] | None, wrong: int | None = None) -> str:
    """A pack of smooth pictures of sizes of their own. wrong: a row whose mask has another size."""
    rng = np.random.default_rng(3)
    ragged: dict[str, list[bytes]] = {name: [] for name in ("image", *MASKS)}
    sizes = []
    for row in range(ROWS):
        height, width = rng.integers(30, 70, 2)
        y, x = np.mgrid[0:height, 0:width]
        waves = [127 + 60 * np.sin(x / rng.uniform(4, 9)) + 60 * np.sin(y / rng.uniform(4, 9)) for _ in "rgb"]
        image = np.stack(waves, axis=2).astype(np.uint8)
        mask = (x // 7 + 3 * (y // 5)).astype(np.uint8)
        depth = (x * y / 50).astype(np.float32)
        ragged["image"].append(jpeg.encode(image, 90) if codec else image.tobytes())
        sizes.append((height, width))
        ragged["mask"].append(png.encode(mask[:, : -1 if row == wrong else None]))
        ragged["instance"].append(png.encode((300 * mask.astype(int) % 65_536).astype(np.uint16)))
        ragged["matte"].append(png.encode(image[..., 0]))
        ragged["depth"].append(depth.tobytes())
    fields = (
        Field("image", "|u1", None, {"layout": "HWC", "color": "rgb"}, codec),
        field("mask", "nearest"),
        field("instance", "nearest", "<u2"),
        field("matte", "linear"),
        field("depth", "linear", "<f4"),
        Field("row", "<i8", ()),
        *(Field(name, "<i4", (), {"of": "image"}) for name in ("height", "width")),
    )
    with PackWriter(str(path), fields=fields, rows=ROWS, block_rows=ROWS, format="h5") as writer:
        tall, wide = (np.array(sides, np.int32) for sides in zip(*sizes, strict=True))
        writer.write_block(0, {"row": np.arange(ROWS), "height": tall, "width": wide})
        writer.finish(rows=ROWS, ragged=ragged)
    return str(path)


@pytest.fixture(scope="module", params=["raw", "jpeg"])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("masks") / f"{request.param}.h5"
    return written(path, None if request.param == "raw" else JPEG)


def test_masks_of_several_values_a_pixel_are_padded(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    layers = [rng.integers(0, 255, (5 + row, 9 - row, 3), np.uint8) for row in range(4)]
    about = {"layout": "HWC", "of": "image", "sampling": "nearest", "channels": 3}
    fields = (
        Field("image", "|u1", None, {"layout": "HWC", "color": "rgb"}, JPEG),
        Field("mask", "|u1", None, about, {"name": "png", "shape": None}),
    )
    path = str(tmp_path / "p.h5")
    ragged = {"image": [jpeg.encode(one, 90) for one in layers], "mask": [png.encode(one) for one in layers]}
    with PackWriter(path, fields=fields, rows=4, block_rows=4, format="h5") as writer:
        writer.finish(rows=4, ragged=ragged)
    with PackedBatchDataset(path, 4, collate=Padding(mask_fill=7)) as dataset:
        (batch,) = dataset
    assert batch.mask.shape == (4, 3, 8, 9)
    for found, own, mask in zip(batch.mask, layers, batch.pixel_mask, strict=True):
        height, width = own.shape[:2]
        assert (found[:, :height, :width].permute(1, 2, 0).numpy() == own).all()
        assert (found[:, ~mask] == 7).all()


def test_an_image_that_is_too_small_is_named_at_once(pack: str) -> None:
    with PackedBatchDataset(pack, 1, fields=["image", "row"]) as dataset:
        sizes = {int(batch.row): batch.image[0].shape[1:] for batch in dataset}
    order = np.arange(ROWS)[::-1]
    row = next(row for row in order if min(sizes[row]) < 40)
    sentence = f"{pack}: the image of row {row} is too small. RandomCrop: size is 40x40 and the images are {sizes[row][0]}x{sizes[row][1]};"
    with pytest.raises(UsageError, match=re.escape(sentence)):
        PackedBatchDataset(pack, 4, fields=["image"], subset=order, augment=[RandomCrop(40)])
    large = [row for row in order if min(sizes[row]) >= 40]
    with PackedBatchDataset(pack, 4, fields=["image"], subset=large, augment=[RandomCrop(40)]) as dataset:
        assert sum(len(batch.image) for batch in dataset) == len(large)


def test_rows_come_as_they_are(pack: str) -> None:
    with PackedBatchDataset(pack, 5, fields=["image", *MASKS]) as dataset:
        batch = next(iter(dataset))
    for i, image in enumerate(batch.image):
        assert {tuple(getattr(batch, name)[i].shape) for name in MASKS} == {tuple(image.shape[1:])}
    assert [getattr(batch, name)[0].dtype for name in MASKS] == [
        torch.uint8,
        torch.uint16,
        torch.uint8,
        torch.float32,
    ]
    if "raw" in pack:
        assert torch.equal(batch.matte[2], batch.image[2][0])
    assert PackedDataset(pack)[3]._fields == ("image", *MASKS, "row")
    assert torch.equal(PackedDataset(pack)[3].mask, batch.mask[3])


@pytest.mark.parametrize("implementation", ["auto", "plain"])
@pytest.mark.parametrize(
    "transforms",
    [
        [RandomResizedCrop(20, scale=(0.1, 1)), RandomHorizontalFlip(), Normalize((0.5,) * 3, (0.2,) * 3)],
        [Resize((24, 18)), RandomRotation(40, interpolation="bilinear")],
        [Resize((24, 30)), RandomRotation(20), RandomResizedCrop(15)],
    ],
)
def test_masks_follow_their_images(pack: str, transforms: list[Any], implementation: str) -> None:
    pipeline = Pipeline(transforms, mask_fill=9, soft_fill=7)
    options: dict[str, Any] = {"fields": ["image", *MASKS, "row"], "seed": 4, "shuffle": True}
    with forced(implementation):
        check_masks(pack, pipeline, options)


def check_masks(pack: str, pipeline: Pipeline, options: dict[str, Any]) -> None:
    with PackedBatchDataset(pack, 5, augment=pipeline, threads=2, **options) as dataset:
        dataset.set_epoch(2)
        made = [(batch, i) for batch in dataset for i in range(len(batch.row))]
    assert len(made) == ROWS
    whole = PackedDataset(pack)
    for batch, i in made:
        row = whole[int(batch.row[i])]
        alone = pipeline.at(tuple(row.image.shape))
        draws = alone.sample(np.array([int(batch.row[i])]), 2, seed=4)
        image = alone.apply(row.image[None], draws)[0]
        if "raw" in pack:
            assert torch.equal(batch.image[i], image)
        for name in ("mask", "instance"):
            assert torch.equal(getattr(batch, name)[i], alone.apply_masks(getattr(row, name)[None], draws)[0])
        depth = alone.apply_soft(row.depth[None], draws)[0]
        if len(alone.stages) == 1:
            torch.testing.assert_close(batch.depth[i], depth)
            assert torch.equal(batch.matte[i], alone.apply_soft(row.matte[None], draws)[0])
        else:
            assert (batch.depth[i] - depth).abs().mean() < 0.5


def test_masks_of_another_size_are_damage(tmp_path: Path) -> None:
    wrong = written(tmp_path / "w.h5", JPEG, wrong=7)
    with (
        PackedBatchDataset(wrong, 4, augment=[Resize((8, 8))]) as dataset,
        pytest.raises(FormatError, match=r"row 7 of 'mask' is damaged \(\d+ x \d+ pixels beside an image of"),
    ):
        list(dataset)


def test_numbers_that_a_mask_does_not_hold_are_refused(pack: str) -> None:
    header = open_pack(pack).header
    assert header.field("mask").by_default
    with pytest.raises(UsageError, match=r"mask_fill is 300 and the masks are torch.uint8"):
        next(iter(PackedBatchDataset(pack, 4, augment=Pipeline([Resize((8, 8))], mask_fill=300))))


@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_masks_are_padded_as_their_images(pack: str, output: str) -> None:
    whole = PackedDataset(pack)
    options: dict[str, Any] = {"collate": Padding(multiple=8, mask_fill=255), "output": output}
    with PackedBatchDataset(pack, 5, shuffle=True, **options) as dataset:
        batches = [*dataset, dataset.batch(0)]
    for batch in batches:
        sides = tuple(batch.pixel_mask.shape)
        assert sides[1] % 8 == sides[2] % 8 == 0
        for i, number in enumerate(batch.row):
            row, own = whole[int(number)], np.asarray(batch.pixel_mask[i])
            for name, fill in (("mask", 255), ("instance", 255), ("matte", 0), ("depth", 0)):
                expected, got = getattr(row, name), getattr(batch, name)
                assert tuple(got.shape) == sides
                got = np.asarray(got[i])
                height, width = expected.shape
                assert np.array_equal(got[:height, :width], expected)
                assert (got[~own] == fill).all()
    with pytest.raises(UsageError, match=r"mask_fill is 300 and 'mask' of .* is uint8; 0 to 255 are allowed"):
        PackedBatchDataset(pack, 5, collate=Padding(mask_fill=300))
    with pytest.raises(UsageError, match=r"Padding: mask_fill=1\.5: is not a whole number"):
        Padding(mask_fill=1.5)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "then", [[], [Normalize((0.5,) * 3, (0.2,) * 3), RandomErasing(1.0)], [GaussianBlur(3)]]
)
def test_batches_on_a_gpu_are_those_of_the_cpu(pack: str, then: list[Any]) -> None:
    pipeline = Pipeline([RandomResizedCrop(20), *then], mask_fill=9)
    options: dict[str, Any] = {
        "augment": pipeline,
        "seed": 1,
        "shuffle": True,
        "fields": ["image", *MASKS, "row"],
    }
    with (
        PackedBatchDataset(pack, 5, device="cuda", **options) as there,
        PackedBatchDataset(pack, 5, device="cpu", **options) as here,
    ):
        for ours, theirs in zip(there, here, strict=True):
            assert ours.image.device.type == ours.mask.device.type == "cuda"
            assert torch.equal(ours.row.cpu(), theirs.row)
            torch.testing.assert_close(ours.image.cpu().float(), theirs.image.float(), atol=1, rtol=1e-4)
            for name in MASKS:
                expected = getattr(theirs, name)
                torch.testing.assert_close(getattr(ours, name).cpu(), expected, equal_nan=True)
