"""Batches of images that differ in size, padded to one array: every pixel in its place, zeros and False elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from packer import PackedBatchDataset, PackedDataset, Padding, PythonTransform  # noqa: E402
from packer.augment import RandomResizedCrop  # noqa: E402
from packer.errors import FormatError, UsageError  # noqa: E402
from packer.format.fields import Field  # noqa: E402
from packer.writing.pack_writer import PackWriter  # noqa: E402
from tests.load.test_ragged_rows import ROWS, written  # noqa: E402


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("padded") / "p.h5")


def same(value: Any) -> Any:
    return value


@pytest.mark.parametrize(("collate", "multiple"), [("pad", 1), (Padding(multiple=16), 16)])
@pytest.mark.parametrize("output", ["torch", "numpy"])
def test_each_image_in_its_corner(pack: str, collate: Any, multiple: int, output: str) -> None:
    rows = PackedDataset(pack, fields=["image", "label"])
    originals = [rows[row].image.permute(1, 2, 0).numpy() for row in range(ROWS)]
    seen = []
    with PackedBatchDataset(
        pack,
        5,
        collate=collate,
        output=output,
        shuffle=True,
        fields=["image", "label", "boxes", "row"],
        threads=2,
    ) as dataset:
        kept = []  # held: memory is used again only once they are gone
        for epoch in range(2):
            kept += [(epoch, batch) for batch in dataset]
        kept.append((0, dataset.batch(1)))
    for epoch, batch in kept:
        assert batch._fields == ("image", "label", "boxes", "row", "pixel_mask", "image_sizes")
        images, mask, sizes = batch.image, batch.pixel_mask, batch.image_sizes
        if output == "torch":
            assert images.dtype == torch.uint8
            assert images.is_contiguous(memory_format=torch.channels_last)
            images, mask, sizes = images.permute(0, 2, 3, 1).numpy(), mask.numpy(), sizes.numpy()
        assert (mask.dtype, sizes.dtype, len(batch.boxes)) == (bool, np.int64, len(images))
        expected = [originals[row] for row in np.asarray(batch.row)]
        most = np.max([one.shape[:2] for one in expected], axis=0)
        assert images.shape[1:3] == mask.shape[1:] == tuple(-(-most // multiple) * multiple)
        for got, own, size, original in zip(images, mask, sizes, expected, strict=True):
            height, width = original.shape[:2]
            assert size.tolist() == [height, width]
            assert (got[:height, :width] == original).all()
            assert own[:height, :width].all()
            assert own.sum() == height * width
            assert not got[~own].any()
        if epoch == 1:
            seen += np.asarray(batch.row).tolist()
    assert sorted(set(seen)) == [*range(ROWS)]


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    with (
        PackedBatchDataset(written(tmp_path / "p.h5", damaged=3), ROWS, collate="pad") as dataset,
        pytest.raises(FormatError, match=r"p\.h5: row 3 of 'image' is damaged"),
    ):
        next(iter(dataset))


def test_what_cannot_be_padded(pack: str, tmp_path: Path) -> None:
    for arguments, sentence in [
        ({"collate": "stack"}, r"collate='stack': is not one of 'list', 'pad'\. Pass one of them"),
        ({"fields": ["label"]}, r"collate='pad': pads the field 'image', and there is none"),
        ({"augment": [RandomResizedCrop(8)]}, r"collate='pad' with augment: images are padded"),
        ({"transform": PythonTransform(same)}, r"collate='pad' with transform: images are padded"),
        ({"placement": "ram"}, r"placement='ram' with collate='pad': images that differ in size are decoded"),
    ]:
        with pytest.raises(UsageError, match=sentence):
            PackedBatchDataset(pack, 4, **{"collate": "pad", **arguments})
    with pytest.raises(UsageError, match=r"Padding: multiple=0: is not a whole number of at least 1"):
        Padding(multiple=0)
    with pytest.raises(
        UsageError, match=r"adds a field 'pixel_mask', and .* has one\. Name the other fields"
    ):
        PackedBatchDataset(written(tmp_path / "m.h5", Field("pixel_mask", "|u1", ())), 4, collate="pad")
    fixed = str(tmp_path / "fixed.h5")
    fields = [Field("image", "|u1", (2, 2, 3), {"layout": "HWC", "color": "rgb"})]
    with PackWriter(fixed, fields=fields, rows=2, block_rows=2, format="h5") as writer:
        writer.write_block(0, {"image": np.zeros((2, 2, 2, 3), np.uint8)})
        writer.finish(rows=2, ragged={})
    with pytest.raises(UsageError, match=r"images of .*fixed\.h5 have one size, so there is nothing to pad"):
        PackedBatchDataset(fixed, 2, collate="pad")
