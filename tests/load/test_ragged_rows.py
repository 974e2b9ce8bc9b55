"""Images that kept their own size in batches: each cut from its own pixels, with draws that follow the row."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")

from packer import PackedBatchDataset, PackedDataset, native, open_pack  # noqa: E402
from packer.augment import (  # noqa: E402
    CenterCrop,
    GaussianBlur,
    MixUp,
    Normalize,
    Pipeline,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    Resize,
    ToDtype,
)
from packer.codecs import jpeg_parts  # noqa: E402
from packer.errors import FormatError, UsageError  # noqa: E402
from packer.format.fields import Field  # noqa: E402
from packer.load.augmenting import fit_views, parse_views  # noqa: E402
from packer.load.batch import LentSlot  # noqa: E402
from packer.load.device import CopyingDevice  # noqa: E402
from packer.writing.pack_writer import PackWriter  # noqa: E402

ROWS = 23
IMAGE = Field("image", "|u1", None, {"layout": "HWC", "color": "rgb"}, {"name": "jpeg"})
CROP: list[Any] = [RandomResizedCrop(20), RandomHorizontalFlip(), Normalize((0.5,) * 3, (0.5,) * 3)]


def photo(row: int, orientation: int = 1, **options: int) -> bytes:
    rng = np.random.default_rng(row)
    height, width = rng.integers(20, 60, 2)
    y, x = np.mgrid[0:height, 0:width]
    waves = [
        127 + 60 * np.sin(x / rng.uniform(4, 9) + row) + 60 * np.sin(y / rng.uniform(4, 9)) for _ in range(3)
    ]
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    pixels = np.stack(waves, axis=2).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=95, exif=exif, **options)
    return file.getvalue()


def written(path: Path, *others: Field, damaged: int | None = None, **options: int) -> str:
    """A pack of such images, encoded with these options, with labels, a box each (the upper left quarter) and the fields given, all 0."""
    images = [photo(row, orientation=6 if row == 4 else 1, **options) for row in range(ROWS)]
    if damaged is not None:
        images[damaged] = images[damaged][:-60]
    boxes = [np.float32([[0, 0, 9, 12]]).tobytes() for _ in images]
    fields = (
        IMAGE,
        Field("label", "<i8", ()),
        Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4], "format": "xyxy"}),
        *others,
    )
    with PackWriter(str(path), fields=fields, rows=ROWS, block_rows=ROWS, format="h5") as writer:
        fixed = {f.name: np.zeros((ROWS, *(f.shape or ())), f.dtype) for f in others}
        writer.write_block(0, {"label": np.arange(ROWS) % 3, **fixed})
        writer.finish(rows=ROWS, ragged={"image": images, "boxes": boxes}, classes=["a", "b", "c"])
    return str(path)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("ragged") / "p.h5")


def by_row(dataset: PackedBatchDataset) -> dict[int, Any]:
    """Every row's image of one epoch."""
    return {
        int(row): image.clone()
        for batch in dataset
        for row, image in zip(batch.row, batch.image, strict=True)
    }


def test_a_row_is_the_same_in_whichever_batch_on_whichever_rank(pack: str) -> None:
    options: dict[str, Any] = {"augment": CROP, "shuffle": True, "seed": 2, "fields": ["image", "row"]}
    with PackedBatchDataset(pack, 23, threads=1, **options) as one:
        expected = by_row(one)
        epoch_2 = by_row(one)
    assert sorted(expected) == [*range(ROWS)]
    assert all(
        list(image.shape) == [3, 20, 20] and image.dtype == torch.float32 for image in expected.values()
    )
    assert not all(torch.equal(expected[row], epoch_2[row]) for row in expected)
    found: dict[int, Any] = {}
    for rank in range(2):
        with PackedBatchDataset(
            pack, 3, threads=3, rank=rank, world_size=2, ends="uneven", **options
        ) as share:
            found |= by_row(share)
    assert sorted(found) == [*range(ROWS)]
    assert all(torch.equal(found[row], expected[row]) for row in expected)
    with PackedBatchDataset(pack, 4, **options) as some:
        begun = [*itertools.islice(iter(some), 2)]
        state = some.state_dict()
    with PackedBatchDataset(pack, 5, **options) as rest:
        rest.load_state_dict(state)
        rows = by_row(rest)
        first = rest.batch(0)
    assert len(rows) == ROWS - 8
    assert rows.keys().isdisjoint(int(row) for batch in begun for row in batch.row)
    assert all(torch.equal(rows[row], expected[row]) for row in rows)
    assert first.image.shape == (5, 3, 20, 20)


def test_boxes_follow_the_row_and_drop_what_goes_with_a_box(tmp_path: Path) -> None:
    """Of images that differ in size, too; fields named box_... lose the entries of the boxes that go."""
    images = [photo(row) for row in range(ROWS)]
    rng = np.random.default_rng(0)
    corners = [rng.uniform(0, 15, (row % 7, 2)) for row in range(ROWS)]
    boxes = [np.concatenate([some, some + 4], axis=1).astype("<f4") for some in corners]
    fields = (
        IMAGE,
        Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4], "format": "xyxy"}),
        Field("box_corner", "|u1", None, {"dtype": "<f4", "row_shape": [2]}),
    )
    with PackWriter(str(tmp_path / "p.h5"), fields=fields, rows=ROWS, block_rows=9, format="h5") as writer:
        for block in range(3):
            writer.write_block(block, {})
        ragged = {"image": images, "boxes": [one.tobytes() for one in boxes]}
        ragged["box_corner"] = [one[:, :2].tobytes() for one in boxes]
        writer.finish(rows=ROWS, ragged=ragged)
    options: dict[str, Any] = {
        "augment": [RandomResizedCrop(20)],
        "fields": ["image", "boxes", "box_corner", "row"],
        "seed": 3,
        "ends": "uneven",
    }
    expected: dict[int, Any] = {}
    found: dict[int, Any] = {}
    with PackedBatchDataset(str(tmp_path / "p.h5"), ROWS, threads=1, **options) as one:
        for *values, row in zip(*next(iter(one)), strict=True):
            expected[int(row)] = values
    with PackedBatchDataset(str(tmp_path / "p.h5"), 4, threads=3, shuffle=True, **options) as other:
        for batch in other:
            found |= {int(row): values for *values, row in zip(*batch, strict=True)}
    lost = 0
    for row, values in expected.items():
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(values, found[row], strict=True))
        _, moved, kept = values
        assert len(moved) == len(kept) <= row % 7
        lost += row % 7 - len(kept)
        if len(kept) > 1:  # upright and not mirrored: neighbours stay on their sides
            assert torch.equal(kept.argsort(dim=0), (moved[:, :2] + moved[:, 2:]).argsort(dim=0))
    assert lost > 5


def test_an_image_is_what_torchvision_makes_of_the_whole_one(pack: str) -> None:
    from tests import torchvision_here

    if not torchvision_here.READY:
        pytest.skip(torchvision_here.REASON)
    from torchvision.transforms.v2 import functional

    augment = [RandomResizedCrop(20, scale=(0.2, 0.6)), RandomHorizontalFlip()]
    with PackedBatchDataset(pack, ROWS, augment=augment, fields=["image", "row"]) as dataset:
        batch = next(iter(dataset))
        pipeline = dataset.views["image"].at((3, None, None))
    whole = PackedDataset(pack, fields=["image"])
    images = [whole[int(row)].image for row in batch.row]
    sizes = np.array([image.shape[1:] for image in images])
    crop, flip = pipeline.sample(batch.row, 0, seed=0, sizes=sizes)
    for i, image in enumerate(images):
        cut = [int(crop[name][i]) for name in ("top", "left", "height", "width")]
        expected = functional.resized_crop(image, *cut, [20, 20], antialias=True)
        expected = expected.flip(-1) if flip["flip"][i] else expected
        assert (batch.image[i].int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("shape", [(31, 40, 1), (31, 40, 3), (31, 40, 6)])
@pytest.mark.parametrize(
    "augment",
    [
        [RandomResizedCrop(20), RandomHorizontalFlip()],
        [RandomResizedCrop(20, scale=(0.5, 1)), Normalize(0.5, 0.25)],
        [Resize((25, 22)), RandomRotation(30)],
    ],
    ids=["whole numbers", "normalized", "turned"],
)
def test_pictures_of_16_bits_are_made_as_rows_of_one_size_are(
    tmp_path: Path, shape: tuple[int, int, int], augment: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same images twice: of one size, and as pictures of sizes of their own, which all happen to be equal."""
    *_, channels = shape
    pixels = np.random.default_rng(0).integers(0, 65_536, (ROWS, *shape), dtype=np.uint16)
    color = {1: "gray", 3: "rgb"}.get(channels, "bands")
    about = {"layout": "HWC", "color": color}
    own = about | {"dtype": "<u2"} | ({"channels": channels} if color == "bands" else {})
    sides = tuple(Field(name, "<i4", (), {"of": "image"}) for name in ("height", "width"))
    for name, fields in (
        ("one.h5", (Field("image", "<u2", shape, about),)),
        ("own.h5", (Field("image", "|u1", None, own), *sides)),
    ):
        with PackWriter(str(tmp_path / name), fields=fields, rows=ROWS, block_rows=9, format="h5") as writer:
            rows = {"image": pixels} | {
                f.name: np.full(ROWS, size, "<i4") for f, size in zip(sides, shape, strict=False)
            }
            for block in range(3):
                some = {f.name: rows[f.name][9 * block : 9 * block + 9] for f in fields if not f.ragged}
                writer.write_block(block, some)
            writer.finish(
                rows=ROWS, ragged={"image": [row.tobytes() for row in pixels]} if fields[1:] else {}
            )
    options: dict[str, Any] = {"augment": augment, "seed": 4, "fields": ["image", "row"]}
    with PackedBatchDataset(str(tmp_path / "one.h5"), ROWS, **options) as dataset:
        expected = by_row(dataset)
    with PackedBatchDataset(str(tmp_path / "own.h5"), 5, threads=3, ends="uneven", **options) as dataset:
        found = by_row(dataset)
    assert found.keys() == expected.keys()
    for row, image in found.items():
        assert image.dtype == expected[row].dtype
        assert torch.equal(image.float(), expected[row].float()), row
    batches, device = on_a_device(str(tmp_path / "own.h5"), monkeypatch, ends="uneven", **options)
    assert device.sent["image"] == {("uint16", 2 * found[0].numel())}
    for batch in batches:
        for row, image in zip(batch.row, batch.image, strict=True):
            away = (image.double() - found[int(row)].double()).abs().max()
            assert away <= (0 if image.dtype == torch.uint16 else 4 / 65_535)  # rounded before it is scaled


def test_pixels_that_are_not_needed_are_not_decoded(pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from packer.read.encoded_images import EncodedImages

    options: dict[str, Any] = {"augment": [RandomResizedCrop(7, scale=(0.5, 1))], "fields": ["image", "row"]}
    sides, decode = {}, EncodedImages.decode_into

    def noted(self: EncodedImages, number: int, out: Any, by: int = 1) -> None:
        sides[self._numbers[number]] = 1 / by
        decode(self, number, out, by)

    monkeypatch.setattr(EncodedImages, "decode_into", noted)
    with PackedBatchDataset(pack, ROWS, **options) as dataset:
        made = by_row(dataset)
    assert {0.5, 0.25} <= {round(4 * side) / 4 for side in sides.values()}
    assert sides[4] == 1  # it is turned
    monkeypatch.setattr("packer.load.ragged_rows.reductions", lambda columns: 1)
    with PackedBatchDataset(pack, ROWS, **options) as dataset:
        full = by_row(dataset)
    assert torch.equal(made[4], full[4])
    errors = [float((made[row].float() - full[row].float()).square().mean()) for row in full]
    assert 10 * np.log10(255**2 / np.mean(errors)) > 38


@pytest.mark.skipif(not native.COMPILED, reason="whole files are decoded without the compiled loops")
@pytest.mark.parametrize(
    ("encoding", "markers"),
    [({}, {"restart_marker_rows": 1}), ({"subsampling": 0}, {"restart_marker_blocks": 2})],
)
def test_parts_of_files_give_what_whole_files_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: dict[str, int], markers: dict[str, int]
) -> None:
    crop = RandomResizedCrop(9, scale=(0.1, 0.5))
    views = {"image": [crop, RandomRotation(30)], "second": [crop, RandomHorizontalFlip()]}
    plain = written(tmp_path / "plain.h5", **encoding)
    with PackedBatchDataset(plain, ROWS, augment=views, fields=["image", "row"]) as dataset:
        whole = next(iter(dataset))
    marked = written(tmp_path / "marked.h5", **encoding, **markers)
    found, cut = [], jpeg_parts.part
    monkeypatch.setattr(jpeg_parts, "part", lambda *given: found.append(cut(*given)) or found[-1])
    with PackedBatchDataset(marked, ROWS, augment=views, fields=["image", "row"]) as dataset:
        parts = next(iter(dataset))
    assert len(found) == ROWS - 1  # one is turned
    assert sum(one is not None for one in found) > ROWS / 5
    assert torch.equal(parts.image, whole.image)
    assert torch.equal(parts.second, whole.second)


@pytest.mark.parametrize(
    "after", [[GaussianBlur(3)], [Normalize((0.5,) * 3, (0.5,) * 3, dtype=torch.bfloat16)]]
)
def test_what_follows_is_applied_too(pack: str, after: list[Any]) -> None:
    def batch(transforms: list[Any]) -> Any:
        with PackedBatchDataset(pack, 9, augment=transforms) as dataset:
            return next(iter(dataset)).image

    resized = batch([Resize((20, 24))])
    from packer.augment import Pipeline

    pipeline = Pipeline([Resize((20, 24)), *after], (3, 20, 24))
    expected = pipeline(resized, np.arange(9))
    made = batch([Resize((20, 24)), *after])
    assert made.dtype == expected.dtype
    limit = 1 if made.dtype == torch.uint8 else 0.02
    assert (made.float() - expected.float()).abs().max() <= limit


def test_views_boxes_and_mixed_labels(pack: str) -> None:
    whole, crop = [Resize((10, 10))], [RandomResizedCrop(8), ToDtype(torch.float32)]
    with PackedBatchDataset(pack, 6, augment={"whole": whole, "crop": crop}) as dataset:
        batch = next(iter(dataset))
    assert batch._fields == ("whole", "crop", "label", "boxes")
    assert batch.whole.shape == (6, 3, 10, 10)
    assert batch.whole.dtype == torch.uint8
    assert batch.crop.shape == (6, 3, 8, 8)
    assert float(batch.crop.max()) <= 1
    for row, boxes in enumerate(batch.boxes):
        height, width = PackedDataset(pack, fields=["image"])[row].image.shape[1:]
        expected = torch.tensor([[0, 0, 90 / width, 120 / height]])
        torch.testing.assert_close(boxes, expected, rtol=0, atol=1e-3)
    with PackedBatchDataset(pack, 6, fields=["image", "label"], augment=[CenterCrop(12), MixUp()]) as mixed:
        labels = next(iter(mixed)).label
    assert labels.shape == (6, 3)
    torch.testing.assert_close(labels.sum(1), torch.ones(6))


class Copies(CopyingDevice):
    """A device that is this machine's memory, by a copy; notes the types and bytes that it was sent."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.name = "mps"
        self.sent: dict[str, set[tuple[str, int]]] = {}

    def send(self, slot: LentSlot) -> Any:
        for name, array in slot.arrays.items():
            self.sent.setdefault(name, set()).add((str(array.dtype), array.nbytes // len(array)))
        return super().send(slot)


def on_a_device(pack: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[list[Any], Copies]:
    """The batches of an epoch for a device other than the CPU, and what was copied."""
    device = Copies()
    monkeypatch.setattr("packer.load.device.device_of", lambda name: device)
    with PackedBatchDataset(pack, 6, device="mps", **options) as dataset:
        return list(dataset), device


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_device_gets_bytes_and_does_the_rest(
    pack: str, monkeypatch: pytest.MonkeyPatch, dtype: Any
) -> None:
    """Of two views: the threads cut, with the draws of the CPU, and colours and scale are left to the device."""
    cut: list[Any] = [RandomResizedCrop(20), RandomHorizontalFlip()]
    rest: list[Any] = [RandomSolarize(128, p=0.5), Normalize((0.5,) * 3, (0.5,) * 3, dtype=dtype)]
    options: dict[str, Any] = {"fields": ["image", "label", "boxes", "row"], "shuffle": True, "seed": 5}
    both = {"a": [*cut, *rest], "b": cut}
    made, device = on_a_device(pack, monkeypatch, augment=both, **options)
    assert device.sent["a"] == device.sent["b"] == {("uint8", 20 * 20 * 3)}
    monkeypatch.undo()
    bytes_of = [*PackedBatchDataset(pack, 6, augment={"a": cut, "b": cut}, **options)]
    floats = [*PackedBatchDataset(pack, 6, augment=both, **options)]
    for batch, uint8, wanted in zip(made, bytes_of, floats, strict=True):
        pipeline = Pipeline(
            [*cut, *rest], (3, 20, 20)
        )  # the same operations, of which the first two are not needed
        drawn = pipeline.sample(batch.row, seed=5)
        after = Pipeline(rest, (3, 20, 20)).apply(uint8.a, drawn[2:])
        assert batch.a.dtype == dtype
        assert torch.equal(batch.a, after)
        assert torch.equal(batch.b, wanted.b)
        assert torch.equal(batch.label, wanted.label)
        assert all(map(torch.equal, batch.boxes, wanted.boxes))
        near = (batch.a - wanted.a).abs() <= 1 / 255 + (dtype == torch.bfloat16) / 128
        assert near.float().mean() > 0.98  # a colour beside the threshold may be rounded past it


def test_mistakes_are_sentences(pack: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CenterCrop: size is 40x40 and the images are"):
        next(iter(PackedBatchDataset(pack, 6, augment=[CenterCrop(40)])))
    with pytest.raises(
        UsageError, match=r"Pipeline: the images differ in size, and the first pass .* Put one of them first"
    ):
        PackedBatchDataset(pack, 6, augment=[RandomHorizontalFlip()])
    with pytest.raises(UsageError, match=r"placement='ram' with augment: .* Pass placement='disk'\."):
        PackedBatchDataset(pack, 6, augment=CROP, placement="ram")
    header = open_pack(pack).header
    views = parse_views(CROP, "torch", header.normalization)
    with pytest.raises(UsageError, match=r"is uint8 sizes of their own\. Convert the pack"):
        fit_views(views, header.fields, pack, None)
    masked = written(tmp_path / "m.h5", Field("mask", "|u1", (4, 4), {"sampling": "nearest"}))
    with pytest.raises(
        UsageError, match="differ in size, and 'mask' cannot follow them; boxes, keypoints, and masks"
    ):
        PackedBatchDataset(masked, 6, augment=CROP)
    damaged = written(tmp_path / "d.h5", damaged=7)
    with (
        PackedBatchDataset(damaged, 6, augment=CROP) as dataset,
        pytest.raises(FormatError, match="row 7 of 'image' is damaged"),
    ):
        list(dataset)
