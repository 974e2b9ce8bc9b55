"""Batches of a table: small rows, many batches a request, several fields."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from packer import PackedBatchDataset
from packer.format.fields import Field
from packer.writing.pack_writer import PackWriter

ROWS, COLUMNS = 5000, 28
FIELDS = (
    Field("features", "<f4", (COLUMNS,)),
    Field("categories", "<i8", (2,)),
    Field("label", "<f4", ()),
    Field("id", "<i8", (), {"column": "id"}),
    Field("name", "|u1", None, {"column": "name", "encoding": "utf-8"}),
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each row tells its number in every field."""
    out = tmp_path_factory.mktemp("table") / "t.h5"
    numbers = np.arange(ROWS)
    with PackWriter(str(out), fields=FIELDS, rows=ROWS, block_rows=ROWS, format="h5") as writer:
        values = {
            "features": (numbers[:, None] + np.arange(COLUMNS) / 64).astype("f4"),
            "categories": numbers[:, None] * [1, -1],
            "label": numbers.astype("f4"),
            "id": numbers,
        }
        writer.write_block(0, values)
        writer.finish(rows=ROWS, ragged={"name": (b"%d" % number for number in numbers)})
    return out


def expected(numbers: torch.Tensor) -> list[torch.Tensor]:
    features = numbers[:, None] + torch.arange(COLUMNS) / 64
    return [features.float(), numbers[:, None] * torch.tensor([1, -1]), numbers.float(), numbers]


def test_fields_come_in_the_order_of_the_pack_but_texts_only_when_asked_for(table: Path) -> None:
    batch = next(iter(PackedBatchDataset(table, 64)))
    assert batch._fields == ("features", "categories", "label", "id")
    with PackedBatchDataset(table, 64, fields=["name", "features"], order="rows") as dataset:
        for names, features in dataset:
            assert names == [str(int(number)) for number in features[:, 0]]


@pytest.mark.parametrize("order", ["sequential", "slices", "blocks", "rows"])
@pytest.mark.parametrize("batch_size", [1, 63, 1024, ROWS])
def test_every_row_comes_once_with_all_of_its_fields(table: Path, order: str, batch_size: int) -> None:
    if batch_size == 1 and order in ("sequential", "slices"):
        pytest.skip("seconds, for nothing new")
    with PackedBatchDataset(table, batch_size, order=order) as dataset:
        seen = torch.zeros(ROWS, dtype=torch.int64)
        for batch in dataset:
            for values, wanted in zip(batch, expected(batch.id), strict=True):
                assert values.dtype == wanted.dtype
                assert values.is_contiguous()
                assert torch.equal(values, wanted)
            seen[batch.id] += 1
        assert (seen == 1).all()


def test_batches_that_were_read_together_have_nothing_to_do_with_each_other(table: Path) -> None:
    with PackedBatchDataset(table, 100) as dataset:
        kept = []
        for batch in dataset:
            assert all(values._version == 0 for values in batch)  # autograd sees no change of another one
            for values in batch:
                assert values._base is None
            numbers = batch.id.clone()
            for values in batch:
                values += 7
            kept.append((numbers, batch))
        assert len(kept) == 50
        for numbers, batch in kept:
            for values, wanted in zip(batch, expected(numbers), strict=True):
                assert torch.equal(values, wanted + 7)
        for batch in dataset:  # what was written into them is in no file
            assert torch.equal(batch.features, expected(batch.id)[0])
