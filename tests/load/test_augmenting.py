"""What belongs to an image goes with it: masks, boxes, points, labels; and images that lie on the device are taken from there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from packer import PackedBatchDataset, open_pack  # noqa: E402
from packer.augment import (  # noqa: E402
    Normalize,
    Pipeline,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
)
from packer.errors import UsageError  # noqa: E402
from packer.format.header import Field  # noqa: E402
from packer.format.pack import Pack  # noqa: E402
from packer.format.writer import PackWriter  # noqa: E402
from packer.load import options  # noqa: E402
from packer.load.augmenting import Augmenter  # noqa: E402
from packer.load.feed import Feed, Portion  # noqa: E402
from packer.load.places.ongpu import OnDevice  # noqa: E402
from packer.load.prefetch import Threads  # noqa: E402
from packer.orders.epoch import Epoch  # noqa: E402
from packer.orders.order import Rows, Sequential  # noqa: E402
from packer.orders.runs import one_run  # noqa: E402
from packer.orders.subset import Subset  # noqa: E402
from packer.read.reader import Reader  # noqa: E402

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
            writer.write_block(block, (), fixed)
        writer.finish(
            rows=ROWS,
            ragged={
                "boxes": [b.tobytes() for b in boxes],
                "box_label": [np.arange(len(b)).tobytes() for b in boxes],
            },
        )
    return open_pack(out)


def test_masks_boxes_and_points_move_with_the_image(paired: Pack):
    stack = [RandomCrop(8, padding=2), RandomHorizontalFlip()]
    seen = lost = 0
    for batch in PackedBatchDataset(paired, 8, order="rows", seed=3, augment=stack):
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


def test_masks_keep_their_values_where_images_are_resized(paired: Pack):
    augment = Pipeline([RandomResizedCrop(9)], mask_fill=255)
    for batch in PackedBatchDataset(paired, 8, augment=augment, fields=["image", "mask", "label"]):
        assert batch.mask.shape == (len(batch.image), 9, 9)
        assert batch.mask.dtype == torch.uint8


def test_labels_are_mixed_as_the_images(paired: Pack):
    from packer.augment import MixUp

    stack = [MixUp(num_classes=4), Normalize((0.5,) * 3, (0.5,) * 3)]
    fields = ["image", "label"]
    plain = list(PackedBatchDataset(paired, 8, order="rows", fields=fields))
    for batch, raw in zip(
        PackedBatchDataset(paired, 8, order="rows", augment=stack, fields=fields), plain, strict=True
    ):
        assert batch.label.shape == (len(raw.image), 4)
        assert torch.allclose(batch.label.sum(1), torch.ones(len(raw.image)))
        before = raw.label.roll(1)
        own = batch.label[torch.arange(len(raw.label)), raw.label]
        same = raw.label == before
        assert torch.allclose(own[same], torch.ones(int(same.sum())))
        mixed = (
            own[~same, None, None, None] * raw.image[~same]
            + (1 - own[~same, None, None, None]) * (raw.image.roll(1, 0)[~same])
        )
        assert (batch.image[~same] * 127.5 + 127.5 - mixed).abs().max() <= 0.51


def test_mixing_asks_for_the_number_of_classes(paired: Pack):
    from packer.augment import MixUp

    with pytest.raises(UsageError) as raised:
        PackedBatchDataset(paired, 8, augment=[MixUp()])
    assert str(raised.value) == (
        f"augment: mixes labels, and {paired.path} does not name its classes. Pass num_classes to MixUp or CutMix."
    )


@pytest.mark.parametrize("order", [Rows(), Sequential()])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_images_are_augmented_from_where_they_lie(paired: Pack, order: Any, device: str):
    """As placement="gpu" does; on the CPU too, where no dataset would."""
    fields = tuple(f.loaded for f in paired.fields if f.name in ("image", "mask", "label"))
    reader, subset = Reader(paired, fields), Subset(((0, ROWS),))
    pipeline = options.fit_images(Pipeline([RandomCrop(8, padding=2)]), fields, paired.path, None)
    held = OnDevice(reader, fields, subset, device)
    assert held.wait(10)
    from packer.load.device import device_of

    feed = Feed(
        reader,
        fields,
        Threads(2),
        batch_rows=8,
        prefetch=2,
        device=device_of(device),
        ongpu=held,
        augmenter=Augmenter(pipeline, fields, None, 8, 4),
    )
    bound = order.bind(options.context(reader, subset, 8))
    epoch = Epoch(bound, subset, 5, 1)
    loading = feed.start(Portion(epoch, one_run(3, 3 + 8 + 5), [8, 5], (3, 16), True))
    batches, draws = loading.result()
    assert draws is not None
    assert type(batches[0].image).__name__ == "Chosen"
    first = 0
    usual = PackedBatchDataset(
        paired, 8, order=order, seed=5, augment=[RandomCrop(8, padding=2)], fields=["image", "mask", "label"]
    )
    usual.load_state_dict({**usual.state_dict(), "epoch": 1, "rows": 3})
    for expected, size in zip(usual, (8, 5), strict=False):
        batch = feed.augmented(batches.pop(), draws, first)
        first += size
        assert torch.equal(batch.image.cpu(), expected.image[:size])
        assert torch.equal(batch.mask.cpu(), expected.mask[:size])
        assert torch.equal(batch.label.cpu(), expected.label[:size])
    feed.close()
