"""What belongs to an image goes with it: masks, boxes, points, labels; and images that lie on the device are taken from there."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from packer import (  # noqa: E402
    PackedBatchDataset,
    PythonTransform,
    Weighted,
    convert_images,
    open_pack,
    pack_dataset,
)
from packer.augment import (  # noqa: E402
    ColorJitter,
    CutMix,
    MixUp,
    Normalize,
    Pipeline,
    RandomChoice,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    Resize,
)
from packer.augment.passes.prepared_draws import PreparedDraws  # noqa: E402
from packer.codecs import jpeg  # noqa: E402
from packer.errors import UsageError  # noqa: E402
from packer.format.fields import Field  # noqa: E402
from packer.load import order_choice  # noqa: E402
from packer.load.augmenting import Augmenter, fit_views, seed_of  # noqa: E402
from packer.load.batch import Host  # noqa: E402
from packer.load.batch_engine import BatchEngine  # noqa: E402
from packer.load.caches.gpu_cache import GpuStore  # noqa: E402
from packer.load.device import CopyingDevice, device_of  # noqa: E402
from packer.load.fillers import Reading, RowFiller  # noqa: E402
from packer.load.stats import Stats  # noqa: E402
from packer.orders.epochs import Share, read_request  # noqa: E402
from packer.orders.row_orders import Rows, Sequential  # noqa: E402
from packer.orders.runs import Subset  # noqa: E402
from packer.packs.pack import Pack  # noqa: E402
from packer.read.array_store import PackStore  # noqa: E402
from packer.read.row_selection import ROW, select_fields  # noqa: E402
from packer.starting import ForkSafeThreads  # noqa: E402
from packer.writing.pack_writer import PackWriter  # noqa: E402

ROWS, SIDE = 37, 12


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Images whose red channel is their mask; a box about the one white pixel of its green channel, and that pixel's middle."""
    out = tmp_path_factory.mktemp("paired") / "p.h5"
    rng = np.random.default_rng(0)
    images = rng.integers(0, 200, (ROWS, SIDE, SIDE, 3), dtype=np.uint8)
    y, x = rng.integers(0, SIDE, (2, ROWS))
    images[np.arange(ROWS), y, x, 1] = 255
    points = np.stack([x, y], axis=1)[:, None] + np.float32(0.5)
    boxes = [np.float32([[a, b, a + 1, b + 1]] * (i % 3)) for i, (a, b) in enumerate(zip(x, y, strict=True))]
    fields = (
        Field("image", "|u1", (SIDE, SIDE, 3), {"layout": "HWC"}),
        Field("mask", "|u1", (SIDE, SIDE), {"sampling": "nearest"}),
        Field("label", "<i8", ()),
        Field("keypoints", "<f4", (1, 2)),
        Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4], "format": "xyxy"}),
        Field("box_label", "|u1", None, {"dtype": "<i8", "row_shape": []}),
    )
    with PackWriter(str(out), fields=fields, rows=ROWS, block_rows=16, format="h5") as writer:
        for block in range(3):
            part = slice(block * 16, (block + 1) * 16)
            fixed = {
                "image": images[part],
                "mask": np.ascontiguousarray(images[part, :, :, 0]),
                "label": np.arange(ROWS)[part] % 4,
                "keypoints": points.astype("<f4")[part],
            }
            writer.write_block(block, fixed)
        writer.finish(
            rows=ROWS,
            ragged={
                "boxes": [b.tobytes() for b in boxes],
                "box_label": [np.arange(len(b)).tobytes() for b in boxes],
            },
        )
    return open_pack(out)


def with_more(sample: dict[str, Any]) -> dict[str, Any]:
    """As if it were needed."""
    return {**sample, "boxes": sample["boxes"].copy(), "more": 1.0}


@pytest.mark.parametrize("ranks", [1, 2])
def test_masks_boxes_and_labels_go_with_the_image(paired: Pack, ranks: int) -> None:
    """In whichever batch, on whichever rank."""
    stack = [RandomCrop(9, 2), Resize((24, 24), "nearest"), RandomHorizontalFlip()]
    fields = ["image", "mask", "boxes", "box_label", "row"]

    def by_row(batch: int, **share: Any) -> dict[int, Any]:
        options: dict[str, Any] = {"augment": stack, "fields": fields, "seed": 2, "ends": "uneven", **share}
        return {
            int(row): one
            for made in PackedBatchDataset(paired, batch, **options)
            for *one, row in zip(*made, strict=True)
        }

    expected, found = by_row(ROWS), {}
    for rank in range(ranks):
        found |= by_row(4, rank=rank, world_size=ranks)
    assert sorted(found) == [*range(ROWS)]
    for row, (image, mask, boxes, labels) in expected.items():
        for one, other in zip((image, mask, boxes, labels), found[row], strict=True):
            assert torch.equal(one, other)
        assert len(boxes) == len(labels) <= row % 3
        for left, top, right, bottom in boxes.round().int().tolist():
            assert image[1, top:bottom, left:right].amax() == 255
        assert torch.equal(image[0], mask)
    one, other = (expected[row][0] for row in (1, 2))
    assert not torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("transform", [None, PythonTransform(with_more, ragged=["boxes"], processes=1)])
def test_masks_boxes_and_points_move_with_the_image(paired: Pack, transform: PythonTransform | None):
    stack = [RandomCrop(8, padding=2), RandomHorizontalFlip()]
    seen = lost = 0
    for batch in PackedBatchDataset(paired, 8, order="rows", seed=3, augment=stack, transform=transform):
        assert torch.equal(batch.image[:, 0], batch.mask)
        for image, (point,), boxes, labels in zip(
            batch.image, batch.keypoints, batch.boxes, batch.box_label, strict=True
        ):
            found = (image[1] == 255).nonzero()
            if not len(found):
                lost += 1
                assert point.isnan().all()
                assert not len(boxes)
                assert not len(labels)
                continue
            seen += 1
            row, column = found[0].tolist()
            assert point.tolist() == [column + 0.5, row + 0.5]
            assert labels.tolist() == list(range(len(boxes)))
            for box in boxes.tolist():
                assert box == [column, row, column + 1, row + 1]
    assert seen > 8
    assert lost > 3


def expected(batch: Any, augment: Any, seed: int = 0, epoch: int = 0) -> tuple[Pipeline, Any]:
    """A pipeline for a batch's images, as stored, and what it draws for them; the batch has its rows."""
    given = augment if isinstance(augment, Pipeline) else Pipeline(augment)
    pipeline = given.at(tuple(batch.image.shape[1:]))
    return pipeline, pipeline.sample(batch.row, epoch, seed=seed)


def pairs(pack: Pack, augment: Any, fields: list[str], size: int = 8, **options: Any) -> Iterator[Any]:
    """Batches with augmentation, and without."""
    options = {"order": "rows", "fields": [*fields, "row"]} | options
    augmented = PackedBatchDataset(pack, size, augment=augment, **options)
    return zip(augmented, PackedBatchDataset(pack, size, **options), strict=True)


def make_masked(
    out: Path, masks: np.ndarray, store: str = "raw", sampling: str = "nearest", **columns: np.ndarray
) -> Pack:
    """Images of noise with masks [N, H, W] or [N, H, W, K] and other columns; stored as JPEG files for store="jpeg"."""
    images = np.random.default_rng(5).integers(0, 256, (len(masks), SIDE, SIDE, 3), dtype=np.uint8)
    layout = "HWC" if masks.ndim == 4 else "HW"
    coded = {"name": "jpeg", "shape": [SIDE, SIDE, 3]} if store == "jpeg" else None
    image = Field(
        "image", "|u1", None if coded else (SIDE, SIDE, 3), {"layout": "HWC", "color": "rgb"}, coded
    )
    fields = [
        image,
        Field("mask", _type(masks), masks.shape[1:], {"layout": layout, "sampling": sampling}),
        *(Field(name, _type(column), column.shape[1:]) for name, column in columns.items()),
    ]
    fixed = {"mask": masks} | columns | ({} if coded else {"image": images})
    ragged = {"image": [jpeg.encode(one, 90) for one in images]} if coded else {}
    with PackWriter(
        str(out), fields=tuple(fields), rows=len(masks), block_rows=len(masks), format="h5"
    ) as writer:
        writer.write_block(0, {name: np.ascontiguousarray(column) for name, column in fixed.items()})
        writer.finish(rows=len(masks), ragged=ragged)
    return open_pack(out)


def _type(array: np.ndarray) -> str:
    return array.dtype.str if array.dtype.itemsize > 1 else "|" + array.dtype.str[1:]


def test_masks_keep_their_values_where_images_are_resized(paired: Pack):
    augment = Pipeline([RandomResizedCrop(9), RandomRotation(40)], mask_fill=255)
    filled = 0
    for batch, raw in pairs(paired, augment, ["image", "mask"]):
        pipeline, drawn = expected(raw, augment)
        assert batch.mask.shape == (len(raw.mask), 9, 9)
        assert batch.mask.dtype == torch.uint8
        assert torch.equal(batch.mask, pipeline.apply_masks(raw.mask, drawn))
        assert torch.equal(batch.image, pipeline.apply(raw.image, drawn))
        for mask, source in zip(batch.mask, raw.mask, strict=True):
            assert set(mask.unique().tolist()) <= {*source.unique().tolist(), 255}
            assert len(mask.unique()) > 10
            filled += int((mask == 255).sum())
    assert filled > 100


@pytest.mark.parametrize(("dtype", "layers"), [("|u1", 0), ("<u2", 3), ("<f4", 0)])
def test_soft_maps_are_moved_linearly_and_mix(tmp_path: Path, dtype: str, layers: int):
    shape = (20, SIDE, SIDE, layers) if layers else (20, SIDE, SIDE)
    maps = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    if dtype == "<f4":
        maps[:, 3:6] = np.nan
    pack = make_masked(tmp_path / "p.h5", maps, sampling="linear", label=np.arange(20) % 2)
    augment = Pipeline([RandomResizedCrop(9), MixUp(num_classes=2)], mask_fill=255)
    for batch, raw in pairs(pack, augment, ["image", "mask", "label"]):
        pipeline, drawn = expected(raw, augment)
        assert batch.mask.dtype == raw.mask.dtype
        assert torch.equal(batch.image, pipeline.apply(raw.image, drawn))
        moved = pipeline.apply_soft(raw.mask, drawn)
        assert torch.equal(batch.mask.double().nan_to_num(-1), moved.double().nan_to_num(-1))
        assert len(moved.double().unique()) > 100
        assert moved.double().isnan().any() == (dtype == "<f4")


@pytest.mark.parametrize("store", ["raw", "jpeg"])
@pytest.mark.parametrize(("dtype", "layers"), [("|u1", 0), ("<i2", 0), ("<u2", 3), ("<f4", 2)])
def test_masks_of_all_kinds(tmp_path: Path, store: str, dtype: str, layers: int):
    shape = (20, SIDE, SIDE, layers) if layers else (20, SIDE, SIDE)
    masks = (
        np.random.default_rng(1).integers(0, 200, shape).astype(dtype) - np.array(dtype == "<i2", dtype) * 90
    )
    pack = make_masked(tmp_path / "p.h5", masks, store)
    augment = [RandomCrop(8, padding=3), RandomHorizontalFlip()]
    seen = []
    for batch, raw in pairs(pack, augment, ["image", "mask"]):
        pipeline, drawn = expected(raw, augment)
        stored = torch.from_numpy(masks[raw.row.numpy()])
        stored = stored.permute(0, 3, 1, 2) if layers else stored
        assert torch.equal(raw.mask, stored)
        assert batch.mask.dtype == stored.dtype
        assert torch.equal(batch.mask, pipeline.apply_masks(stored, drawn))
        assert torch.equal(batch.image, pipeline.apply(raw.image, drawn))
        assert set(batch.mask.unique().tolist()) <= {*stored.unique().tolist(), 0}
        seen += raw.row.tolist()
    assert sorted(seen) == list(range(20))


def test_what_is_no_mask_stays(tmp_path: Path):
    other = np.random.default_rng(0).integers(0, 9, (8, SIDE + 1, SIDE), dtype=np.uint8)
    pack = make_masked(tmp_path / "p.h5", other, plain=np.ascontiguousarray(other[:, :SIDE]))
    for batch, raw in pairs(pack, [RandomHorizontalFlip(p=1)], ["image", "mask", "plain"]):
        assert torch.equal(batch.image, raw.image.flip(-1))
        assert torch.equal(batch.mask, raw.mask)
        assert torch.equal(batch.plain, raw.plain)


@pytest.mark.parametrize("mix", ["MixUp", "CutMix"])
@pytest.mark.parametrize("size", [8, 37])
def test_labels_are_mixed_as_the_images(paired: Pack, mix: str, size: int):
    from packer import augment as operations

    augment = [getattr(operations, mix)(num_classes=4), Normalize((0.5,) * 3, (0.5,) * 3)]
    mixed = 0
    for batch, raw in pairs(paired, augment, ["image", "label"], size):
        pipeline, drawn = expected(raw, augment)
        assert torch.equal(batch.image, pipeline.apply(raw.image, drawn))
        assert torch.equal(batch.label, pipeline.apply_labels(raw.label, drawn))
        assert batch.label.shape == (len(raw.image), 4)
        assert torch.allclose(batch.label.sum(1), torch.ones(len(raw.image)))
        # And as seen: an image is its own and one other of the batch, in the shares that the label says.
        own = batch.label[torch.arange(len(raw.label)), raw.label]
        shown = (batch.image + 1) * 127.5
        for i in range(len(raw.image)):
            share, source = float(own[i]), raw.image.float()
            if share > 0.999 or mix == "CutMix":
                unchanged = (shown[i] - source[i]).abs().amax(0) < 0.6
                assert float(unchanged.float().mean()) >= share - 0.01 or (batch.label[i] > 0.999).any()
                continue
            partners = source[raw.label != raw.label[i]]
            off = (shown[i] - share * source[i] - (1 - share) * partners).abs().amax((1, 2, 3))
            assert off.min() < 0.6
            mixed += 1
    assert mixed > 5 or mix == "CutMix"


def test_several_labels_and_numbers_are_mixed_too(tmp_path: Path):
    draws = np.random.default_rng(2)
    flags, value = draws.integers(0, 2, (16, 5), dtype=np.int64), draws.random(16).astype("<f4")
    masks = np.zeros((16, SIDE, SIDE), np.uint8)
    for number, label in enumerate((flags, value)):
        pack = make_masked(tmp_path / f"{number}.h5", masks, label=label)
        for batch, raw in pairs(pack, [MixUp()], ["image", "label"]):
            pipeline, drawn = expected(raw, [MixUp()])
            soft = raw.label.float() if number == 0 else raw.label[:, None]
            mixed = pipeline.apply_labels(soft, drawn)
            assert torch.equal(batch.label, mixed if number == 0 else mixed[:, 0])
            assert not torch.equal(batch.label, raw.label.float())


def test_images_without_labels_are_mixed(paired: Pack):
    for batch, raw in pairs(paired, [MixUp()], ["image"]):
        pipeline, drawn = expected(raw, [MixUp()])
        assert batch._fields == ("image", "row")
        assert torch.equal(batch.image, pipeline.apply(raw.image, drawn))
        assert not torch.equal(batch.image, raw.image)


def test_cutmix_mixes_masks_as_the_images(paired: Pack):
    augment = [RandomHorizontalFlip(), CutMix(num_classes=4)]
    for batch, raw in pairs(paired, augment, ["image", "mask", "label"]):
        assert torch.equal(batch.image[:, 0], batch.mask)
        assert not torch.equal(batch.mask, raw.mask)


def test_what_cannot_be_mixed_is_refused_at_once(paired: Pack, tmp_path: Path):
    named = make_masked(tmp_path / "p.h5", np.zeros((8, SIDE, SIDE), np.uint8), label=np.zeros(8, "<i8"))
    asks = (
        f"augment: mixes labels, and needs the number of classes; {paired.path} names 0. Pass num_classes to MixUp or"
        " CutMix, as many or more."
    )
    refused: list[tuple[Pack, Any, Any, str]] = [
        (paired, ["image", "label"], MixUp(), asks),
        (
            named,
            None,
            MixUp(num_classes=3),
            "augment: MixUp blends images, and values of the mask 'mask' cannot be blended. Use CutMix, or "
            "name the other fields.",
        ),
        (
            paired,
            ["image", "boxes"],
            CutMix(num_classes=4),
            f"augment: mixes images, and boxes of {paired.path} cannot be mixed. Name the other fields, or leave MixUp and CutMix out.",
        ),
    ]
    for pack, fields, mix, message in refused:
        with pytest.raises(UsageError) as raised:
            PackedBatchDataset(pack, 8, fields=fields, augment=[mix])
        assert str(raised.value) == message


VIEWS = {
    "view1": [RandomCrop(8, padding=2), RandomHorizontalFlip()],
    "view2": Pipeline([RandomResizedCrop(6), Normalize((0.5,) * 3, (0.5,) * 3)], seed=40),
    "plain": [],
}


@pytest.mark.parametrize("placement", ["disk", "ram"])
@pytest.mark.parametrize("size", [8, 5])
def test_views_are_made_of_the_same_images(paired: Pack, placement: str, size: int):
    fields = ["label", "image", "mask", "keypoints"]
    for batch, raw in pairs(paired, VIEWS, fields, size, seed=7, placement=placement):
        assert batch._fields == ("label", "view1", "view2", "plain", "mask", "keypoints", "row")
        assert torch.equal(batch.row, raw.row)
        for number, (name, given) in enumerate(VIEWS.items()):
            own = given.seed if isinstance(given, Pipeline) else 0
            pipeline, drawn = expected(raw, given, seed=seed_of(7 + own, number))
            assert torch.equal(getattr(batch, name), pipeline.apply(raw.image, drawn)), name
        pipeline, drawn = expected(raw, VIEWS["view1"], seed=7)
        assert torch.equal(batch.mask, batch.view1[:, 0])
        assert torch.equal(
            batch.keypoints.nan_to_num(-1), pipeline.apply_keypoints(raw.keypoints, drawn).nan_to_num(-1)
        )


def test_two_views_of_one_list_differ_and_are_kept(paired: Pack):
    stack = [RandomCrop(8, padding=2)]
    dataset = PackedBatchDataset(paired, 8, fields=["image"], augment={"a": stack, "b": stack}, prefetch=1)
    kept = list(dataset)
    again = [dataset.batch(i) for i in range(len(dataset))]
    for (a, b), (c, d) in zip(kept, again, strict=True):
        assert torch.equal(a, c)  # memory of kept batches was not used for others
        assert torch.equal(b, d)
        assert not torch.equal(a, b)
    assert len({tensor.data_ptr() for batch in kept for tensor in batch}) == 2 * len(kept)
    copied = pickle.loads(pickle.dumps(kept[0]))
    assert type(copied) is type(kept[0])
    assert torch.equal(copied.b, kept[0].b)


WRITE = "augment: RandomCrop is no transform of packer.augment. Write RandomCrop() of packer.augment."
PASS = "Pass a list of these, or one text; a function of the sample is passed as transform=."


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ({"1": []}, "augment: '1' is no name for a view; names such as 'view1' are allowed. Rename it."),
        ({"mask": [], "b": []}, "augment: 'mask' is the name of another field of the batch. Pass another."),
        (
            {"a": [], "b": [CutMix(num_classes=4)]},
            "augment: 'b' mixes images and labels, and there are 2 views; mixing is allowed for a single view. Leave MixUp and CutMix out.",
        ),
        (
            {"a": {"b": []}},
            "augment: dict is no transform of packer.augment. Pass a list of these, or one text; a function of the sample is passed as"
            " transform=.",
        ),
        (RandomCrop, WRITE),
        ([RandomCrop], WRITE),
        ([type("RandomCrop", (torch.nn.Module,), {})()], WRITE),
        ([torch.nn.Flatten()], "augment: Flatten is no transform of packer.augment. " + PASS),
        ([np.flip], "augment: flip is no transform of packer.augment. " + PASS),
        (
            [Pipeline([RandomCrop(8)])],
            "augment: Pipeline is no transform of packer.augment. Pass it as augment= itself: packer.augment.Pipeline([...]).",
        ),
        (["RandomCrop(8)"], "augment: RandomCrop(8) is no transform of packer.augment. " + PASS),
        (
            [type("ToTensor", (), {"__call__": print})()],
            "augment: ToTensor is no transform of packer.augment. Leave it out: images are tensors already; "
            "Normalize() or ToDtype(float32) converts them to floating point.",
        ),
        (
            " ",
            "augment: the text names no transform; transforms with their arguments are allowed. Write for example RandomCrop(32), "
            "or leave it out.",
        ),
        (
            Pipeline([RandomCrop(8)], (3, 20, 20)),
            "augment: the pipeline is for torch.uint8 [3, 20, 20] and the images of PACK are torch.uint8 [3, 12, 12]. Make it without a"
            " shape: Pipeline([...], dtype=torch.uint8).",
        ),
        (
            Pipeline([RandomCrop(8)], dtype=torch.float32),
            "augment: the pipeline is for torch.float32 None and the images of PACK are torch.uint8 [3, 12, 12]. Make it without a"
            " shape: Pipeline([...], dtype=torch.uint8).",
        ),
    ],
)
def test_what_is_no_augmentation_is_a_sentence(paired: Pack, augment: Any, message: str):
    with pytest.raises(UsageError) as raised:
        PackedBatchDataset(paired, 8, fields=["image", "mask", "label"], augment=augment)
    assert str(raised.value) == message.replace("PACK", paired.path)


def test_one_transform_alone_is_a_sentence(paired: Pack):
    with pytest.raises(UsageError, match=r"is no list\. Pass \[RandomCrop\(\.\.\.\)\]\.$"):
        PackedBatchDataset(paired, 8, augment=RandomCrop(8))  # type: ignore[arg-type]


def test_a_text_is_taken_and_normalises_as_the_pack_says(tmp_path: Path, photo_folder: Path):
    convert_images(photo_folder, tmp_path / "p.h5", size=16)
    pack = open_pack(tmp_path / "p.h5")
    text = "RandomCrop(12, padding=2), Normalize()"
    stack = [RandomCrop(12, padding=2), Normalize(**pack.header.statistics["image"])]
    for batch, listed in zip(
        PackedBatchDataset(pack, 8, augment=text), PackedBatchDataset(pack, 8, augment=stack), strict=True
    ):
        assert torch.equal(batch.image, listed.image)


def test_seeds_of_dataset_and_pipeline_add_up(paired: Pack):
    stack = [RandomCrop(8, padding=2)]

    def images(seed: int, own: int) -> Any:
        dataset = PackedBatchDataset(
            paired, 37, order="sequential", seed=seed, fields=["image"], augment=Pipeline(stack, seed=own)
        )
        return dataset.batch(0).image

    assert torch.equal(images(5, 0), images(0, 5))
    assert torch.equal(images(2, 3), images(0, 5))
    assert not torch.equal(images(2, 3), images(2, 0))


STACK = [RandomCrop(8, padding=2), RandomHorizontalFlip(), ColorJitter(0.4)]
FIELDS = ["image", "mask", "row"]


@pytest.mark.parametrize("ends", ["uneven", "pad"])
def test_rows_are_augmented_alike_on_any_number_of_ranks(paired: Pack, ends: str):
    def run(size: int, **ranks: int) -> list[Any]:
        return list(
            PackedBatchDataset(
                paired, size, order="rows", seed=1, fields=FIELDS, augment=STACK, ends=ends, **ranks
            )
        )

    alone = run(37)[0]
    where = {row: i for i, row in enumerate(alone.row.tolist())}
    seen = []
    for rank in range(3):
        for batch in run(5, rank=rank, world_size=3):
            place = [where[row] for row in batch.row.tolist()]
            assert torch.equal(batch.image, alone.image[place])
            assert torch.equal(batch.mask, alone.mask[place])
            seen += batch.row.tolist()
    assert len(seen) == (45 if ends == "pad" else 37)
    assert set(seen) == set(range(37))


@pytest.mark.parametrize("augment", [STACK, {"a": STACK, "b": STACK}, [MixUp(), RandomHorizontalFlip()]])
def test_going_on_in_mid_epoch_augments_alike(paired: Pack, augment: Any):
    fields = ["image", "row"]

    def dataset() -> PackedBatchDataset:
        return PackedBatchDataset(paired, 4, order="rows", seed=9, fields=fields, augment=augment)

    first = dataset()
    first.set_epoch(3)
    batches, state = [], {}
    for number, batch in enumerate(first):
        batches.append(batch)
        if number == 3:
            state = first.state_dict()
    second = dataset()
    second.load_state_dict(state)
    rest = list(second)
    assert len(rest) == len(batches) - 4 > 4
    for one, other in zip(batches[4:], rest, strict=True):
        for a, b in zip(one, other, strict=True):
            assert torch.equal(a, b)


def test_a_dataloader_augments_alike(paired: Pack):
    from torch.utils.data import DataLoader

    augment = {"a": STACK, "b": Pipeline([RandomResizedCrop(6)], seed=3)}
    dataset = PackedBatchDataset(paired, 8, order="rows", seed=2, fields=FIELDS, augment=augment)
    loader = DataLoader(dataset, batch_size=None)  # type: ignore[arg-type]
    count = 0
    for number, batch in enumerate(loader):
        for name in batch._fields:
            assert torch.equal(getattr(batch, name), getattr(dataset.batch(number), name))
        count += 1
    assert count == len(dataset) == 5


def test_a_dataset_with_a_pipeline_is_pickled(paired: Pack):
    augment = Pipeline([RandomCrop(8, padding=2), MixUp(num_classes=4)], seed=4)
    dataset = PackedBatchDataset(paired, 8, order="rows", fields=["image", "label", "row"], augment=augment)
    batch = dataset.batch(1)
    other = pickle.loads(pickle.dumps(dataset)).batch(1)
    assert batch._fields == other._fields
    for a, b in zip(batch, other, strict=True):
        assert torch.equal(a, b)


def halved(sample: dict[str, Any]) -> dict[str, Any]:
    """Images and masks of half the height; the mask is where it was, the label is new."""
    image = np.ascontiguousarray(sample["image"][::2])
    return {"image": image, "label": int(image[0, 0, 0]) % 4}


@pytest.mark.parametrize("views", [False, True])
def test_augmentation_follows_a_transform(paired: Pack, views: bool):
    stack = [RandomCrop((4, 8)), RandomHorizontalFlip()]
    with PackedBatchDataset(
        paired,
        8,
        order="rows",
        seed=3,
        fields=["image", "row"],
        transform=PythonTransform(halved, processes=2),
        augment={"a": stack, "b": stack} if views else stack,
    ) as dataset:
        for batch, raw in zip(
            dataset, PackedBatchDataset(paired, 8, order="rows", seed=3, fields=["image", "row"]), strict=True
        ):
            assert batch._fields == (("a", "b") if views else ("image",)) + ("label", "row")
            assert torch.equal(batch.row, raw.row)
            half = raw.image[:, :, ::2]
            assert torch.equal(batch.label, half[:, 0, 0, 0].long() % 4)
            pipeline = Pipeline(stack, (3, SIDE // 2, SIDE))
            for number, made in enumerate(batch[: 1 + views]):
                assert torch.equal(
                    made, pipeline.apply(half, pipeline.sample(raw.row, 0, seed=seed_of(3, number)))
                )


@pytest.mark.parametrize("order", [Rows(), Sequential()])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_rows_of_a_device_are_augmented(paired: Pack, order: Any, device: str):
    """As placement="gpu" does; on the CPU too, where no dataset would."""
    fields = select_fields(paired, ["image", "mask", "label"])
    store, subset = PackStore(paired, fields), Subset(((0, ROWS),))
    stack = [RandomCrop(8, padding=2)]
    views = fit_views({"image": Pipeline(stack), "other": Pipeline(stack)}, fields, paired.path, None)
    where = device_of(device) if device == "cuda" else CopyingDevice(torch.device("cpu"))
    threads = ForkSafeThreads(2)
    held = GpuStore(store, (*fields, ROW), where, threads)
    engine = BatchEngine(
        RowFiller(Reading(store, held, threads, where), (*fields, ROW)),
        Augmenter(views, (*fields, ROW), None, 8, 4),
        batch_rows=8,
        prefetch=2,
    )
    bound = order.bind(order_choice.context(store, subset, 8, seed=5))
    request = read_request(bound, 1, Share(16, 8, origin=3), 0, 2)
    usual = PackedBatchDataset(
        paired,
        8,
        order=order,
        seed=5,
        augment={"image": stack, "other": stack},
        fields=["image", "mask", "label", "row"],
    )
    usual.load_state_dict({**usual.state_dict(), "epoch": 1, "rows": 3})
    made = engine.batches_of([request], Stats())
    for usual_batch, size, batch in zip(usual, (8, 5), made, strict=False):
        assert batch._fields == usual_batch._fields == ("image", "other", "mask", "label", "row")
        for name in batch._fields:
            value = getattr(batch, name)
            assert value.device.type == device
            assert torch.equal(value.cpu(), getattr(usual_batch, name)[:size])
    assert engine._slots.allocated == 0
    engine.close()


def test_draws_are_on_the_stream_of_their_batch(paired: Pack, monkeypatch: pytest.MonkeyPatch):
    """A request of several batches has one copy of its draws on the device, and another where the stream changes."""
    stream, copied, followed = "", [], []

    def on(draws: PreparedDraws, device: Any) -> Any:
        if draws.device is None:
            copied.append(stream)
            draws.device = draws.host.clone()
        return draws.device

    monkeypatch.setattr(PreparedDraws, "on", on)
    monkeypatch.setattr(Host, "current_stream", lambda host: stream)
    monkeypatch.setattr(Host, "follow", lambda host, batch, other: followed.append((stream, other)))
    dataset = PackedBatchDataset(paired, 4, augment=[RandomCrop(8)], fields=("image",), prefetch=0)
    batches = iter(dataset)
    for turn in "aabbba":
        stream = turn
        next(batches)
    assert copied == ["a", "a", "b", "b", "a"]  # requests of 1, 2 and 3 batches
    assert followed == [("b", "a"), ("a", "b")]


def test_a_row_that_is_drawn_again_is_augmented_anew(paired: Pack):
    """And the same whatever the batch size."""
    weights = np.ones(ROWS)
    weights[5] = 100.0

    def crops(batch_size: int) -> list[bytes]:
        order = Weighted(weights, rows=60)
        dataset = PackedBatchDataset(
            paired, batch_size, order=order, augment=[RandomCrop(8, padding=2)], fields=["image", "row"]
        )
        return [
            image.numpy().tobytes()
            for batch in dataset
            for image, row in zip(*batch, strict=True)
            if row == 5
        ]

    drawn = crops(8)
    assert len(drawn) > 30
    assert len(set(drawn)) > 15
    assert crops(13) == drawn


def test_views_of_neighbouring_seeds_differ(paired: Pack):
    views = {"a": Pipeline([RandomCrop(8)], seed=1), "b": Pipeline([RandomCrop(8)], seed=0)}
    (batch,) = PackedBatchDataset(paired, ROWS, augment=views, fields=["image"])
    (other,) = PackedBatchDataset(paired, ROWS, augment=views, fields=["image"], seed=1)
    made = [batch.a, batch.b, other.a, other.b]
    assert not any(torch.equal(one, two) for i, one in enumerate(made) for two in made[:i])


def test_blending_in_a_choice_is_refused_beside_masks(paired: Pack):
    augment = [RandomChoice([CutMix(num_classes=4), MixUp(num_classes=4)])]
    with pytest.raises(
        UsageError, match="MixUp blends images, and values of the mask 'mask' cannot be blended"
    ):
        PackedBatchDataset(paired, 8, augment=augment, fields=["image", "mask", "label"])
    assert (
        len(next(iter(PackedBatchDataset(paired, 8, augment=augment, fields=["image", "label"]))).label[0])
        == 4
    )


def test_normalize_without_numbers_takes_the_packs(photo_folder: Path, tmp_path: Path) -> None:
    convert_images(photo_folder, tmp_path / "p.h5", size=32)
    chosen: dict[str, Any] = {"batch_size": 8, "seed": 1}
    with (
        PackedBatchDataset(
            tmp_path / "p.h5", augment="RandomHorizontalFlip(), Normalize()", **chosen
        ) as text,
        PackedBatchDataset(
            tmp_path / "p.h5", augment=[RandomHorizontalFlip(), Normalize()], **chosen
        ) as listed,
        PackedBatchDataset(
            tmp_path / "p.h5", augment={"a": [RandomHorizontalFlip(), Normalize(dtype="float16")]}, **chosen
        ) as views,
    ):
        for one, other, half in zip(text, listed, views, strict=True):
            assert torch.equal(one.image, other.image)
            assert torch.allclose(half.a.float(), one.image, atol=1e-2)


@pytest.mark.parametrize("size", [32, "max=32"])
def test_a_pipeline_normalizes_as_its_list(photo_folder: Path, tmp_path: Path, size: Any) -> None:
    """With the numbers of each pack that takes it; the pipeline itself keeps none."""
    listed = [RandomResizedCrop(16), RandomHorizontalFlip(), Normalize(dtype="bfloat16")]
    pipeline = pickle.loads(pickle.dumps(Pipeline(listed, seed=3, mask_fill=255, soft_fill=0.5)))
    for number, folder in enumerate((photo_folder, photo_folder / "red")):
        convert_images(folder, path := tmp_path / f"{number}.h5", size=size)
        with (
            PackedBatchDataset(path, 8, seed=4, augment=listed) as expected,
            PackedBatchDataset(path, 8, seed=1, augment=pipeline) as found,
            PackedBatchDataset(path, 8, seed=1, augment={"a": pipeline}) as views,
        ):
            for one, other, view in zip(expected, found, views, strict=True):
                assert torch.equal(one.image, other.image)
                assert torch.equal(one.image, view.a)
            bound = found.views["image"]
            assert (bound.seed, bound.mask_fill, bound.soft_fill) == (3, 255, 0.5)
            mean = found.pack.header.statistics["image"]["mean"]
            assert bound.transforms[2].mean == tuple(mean)  # type: ignore[union-attr]
        assert repr(pipeline.transforms[2]) == "Normalize(mean=None, std=None, dtype=torch.bfloat16)"


def test_normalize_without_numbers_needs_a_pack() -> None:
    with pytest.raises(
        UsageError, match=r"Normalize\(\): has no mean and std here; a dataset fills in those of its pack"
    ):
        Pipeline([Normalize()], (3, 8, 8))
    with pytest.raises(UsageError, match=r"Normalize: std is None; a number, or one a channel, is allowed"):
        Normalize([0.5])


def test_images_of_floats_are_refused_by_the_packs_name(tmp_path: Path):
    images = [(np.zeros((8, 6, 3), np.float32), 0)] * 4
    pack_dataset(images, path := tmp_path / "float.h5")
    with pytest.raises(UsageError) as refused:
        PackedBatchDataset(path, 4, augment=[RandomHorizontalFlip()])
    assert str(refused.value) == (
        f"augment: works on uint8 or uint16 images [H, W, C] of one size; 'image' of {path} is float32 [8, 6, 3]."
        " Pack uint8 images, or have the transform return such images."
    )
