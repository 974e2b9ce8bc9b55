"""The field "row": each row's number in the pack, wherever rows come from and whatever becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.errors import UsageError
from packer.format.fields import Field
from packer.load.batch_dataset import PackedBatchDataset
from packer.load.processes.transforms import PythonTransform
from packer.load.row_dataset import PackedDataset
from packer.orders.epochs import ReadRequest
from packer.orders.sampling import Weighted
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.writing.pack_writer import PackWriter
from tests.load.conftest import ORDERS
from tests.read.conftest import ROWS, make_pack

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

PICKED = np.random.default_rng(0).permutation(ROWS)[:70]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Labels are three times the row."""
    return make_pack(tmp_path_factory.mktemp("numbers") / "p.h5")


def rows_of(dataset: PackedBatchDataset) -> list[int]:
    """Rows of an epoch, whose labels say the same."""
    found = []
    for batch in dataset:
        assert batch.row.dtype == (np.int64 if dataset.output == "numpy" else torch.int64)
        assert (batch.label == 3 * batch.row).all()
        found += batch.row.tolist()
    return found


@pytest.mark.parametrize("subset", [None, PICKED])
@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("placement", ["disk", "ram"])
def test_it_is_the_row_in_the_pack(pack: Pack, order: str, output: str, placement: str, subset: Any):
    with PackedBatchDataset(
        pack,
        9,
        order=order,
        output=output,
        placement=placement,
        fields=["label", "row"],
        subset=subset,
        seed=3,
    ) as dataset:
        for _ in range(2):  # the second epoch is read from memory
            wanted = sorted(PICKED.tolist()) if subset is not None else list(range(ROWS))
            assert sorted(rows_of(dataset)) == wanted
        assert dataset.batch(2)._fields == ("label", "row")
        assert (dataset.batch(2).row == dataset.batch(2).label // 3).all()


def test_it_comes_where_it_is_named_and_only_then(pack: Pack):
    assert PackedBatchDataset(pack, 9).batch(0)._fields == ("image", "label")
    batch = PackedBatchDataset(pack, 9, fields=("row", "key", "image")).batch(1)
    assert batch._fields == ("row", "key", "image")
    assert batch.key == [f"row/{row}" for row in batch.row.tolist()]


def test_nothing_is_worked_out_unless_it_is_asked_for(pack: Pack, monkeypatch: pytest.MonkeyPatch):
    asked, numbers = [], ReadRequest.rows
    monkeypatch.setattr(ReadRequest, "rows", lambda *given: asked.append(1) or numbers(*given))
    list(PackedBatchDataset(pack, 9))
    assert not asked
    list(PackedBatchDataset(pack, 9, fields=["image", "row"]))
    assert asked


@pytest.mark.parametrize("ends", ["even", "uneven", "pad", "drop"])
def test_ranks_and_rows_drawn_twice(pack: Pack, ends: str):
    found = []
    for rank in range(3):
        found += rows_of(
            PackedBatchDataset(
                pack, 5, order="rows", fields=["label", "row"], ends=ends, rank=rank, world_size=3
            )
        )
    assert len(found) == {"even": 105, "uneven": ROWS, "pad": 105, "drop": 90}[ends]
    assert len(set(found)) == min(len(found), ROWS)
    weights = np.zeros(ROWS)
    weights[7] = 1
    assert set(rows_of(PackedBatchDataset(pack, 5, order=Weighted(weights), fields=["label", "row"]))) == {7}


def test_going_on_and_a_dataloader(pack: Pack):
    dataset = PackedBatchDataset(pack, 8, order="rows", fields=["label", "row"])
    whole = rows_of(dataset)
    dataset.load_state_dict(dataset.state_dict() | {"epoch": 0, "rows": 24})
    assert rows_of(dataset) == whole[24:]
    dataset.set_epoch(0)
    loader = DataLoader(dataset, batch_size=None)
    assert [row for batch in loader for row in batch.row.tolist()] == whole


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {"label": sample["label"], "double": 2 * sample["label"]}


def numbered(sample: dict[str, Any]) -> dict[str, Any]:
    return {"row": np.int64(-1), "label": sample["label"]}


def test_it_comes_last_after_a_transform_that_makes_none(pack: Pack):
    options: Any = {"order": "rows", "fields": ["row", "label"]}
    with PackedBatchDataset(pack, 9, transform=PythonTransform(doubled, processes=2), **options) as dataset:
        assert dataset.batch(0)._fields == ("label", "double", "row")
        assert sorted(rows_of(dataset)) == list(range(ROWS))
    with PackedBatchDataset(pack, 9, transform=PythonTransform(numbered, processes=1), **options) as dataset:
        assert dataset.batch(0)._fields == ("row", "label")
        assert set(dataset.batch(0).row.tolist()) == {-1}


def test_a_packs_own_field_wins(tmp_path: Path):
    fields = (Field("x", "<i8", ()), Field("row", "<i8", ()))
    with PackWriter(str(tmp_path / "p.h5"), fields=fields, rows=6, block_rows=6, format="h5") as writer:
        writer.write_block(0, {"x": np.arange(6), "row": 10 * np.arange(6)})
        writer.finish(rows=6, ragged={})
    pack = open_pack(tmp_path / "p.h5")
    assert PackedBatchDataset(pack, 6).batch(0).row.tolist() == [0, 10, 20, 30, 40, 50]
    assert PackedDataset(pack, fields=["row"])[2].row == 20


def test_rows_one_by_one(pack: Pack):
    dataset = PackedDataset(pack, fields=["row", "label"])
    assert dataset[-1].row.dtype == torch.int64
    assert (int(dataset[-1].row), int(dataset[-1].label)) == (ROWS - 1, 3 * (ROWS - 1))
    assert dataset[[5, 90, 2]].row.tolist() == [5, 90, 2]
    assert dataset[10:14].row.tolist() == [10, 11, 12, 13]
    batches = DataLoader(dataset, batch_size=20, num_workers=1)  # type: ignore[arg-type]
    assert [row for batch in batches for row in batch.row.tolist()] == list(range(ROWS))
    assert PackedDataset(pack)._names == ("image", "label")


def test_alone_it_is_refused(pack: Pack):
    for make in (
        lambda: PackedBatchDataset(pack, 8, fields=["row"]),
        lambda: PackedDataset(pack, fields=["row"]),
    ):
        with pytest.raises(UsageError) as raised:
            make()
        assert str(raised.value) == (
            "fields=['row']: names no field of the pack, which has image, label, key. Add one of these."
        )


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["disk", "ram", "gpu"])
@pytest.mark.parametrize("order", ORDERS)
def test_on_a_gpu(pack: Pack, order: str, placement: str):
    with PackedBatchDataset(
        pack, 9, order=order, device="cuda", placement=placement, fields=["label", "row"], subset=PICKED
    ) as dataset:
        for _ in range(3):
            assert sorted(rows_of(dataset)) == sorted(PICKED.tolist())
        assert dataset.batch(0).row.device.type == "cuda"
