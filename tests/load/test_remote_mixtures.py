"""Packs in a store beside local ones: every row where it belongs, kept in a cache or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.filling.opening import open_pack
from packer.load.batch_dataset import PackedBatchDataset
from packer.orders.mixture import Mixture
from packer.orders.regions import Regions
from tests.read.conftest import ROWS, make_pack, make_stored
from tests.remote.conftest import server as server
from tests.remote.object_server import ObjectServer


@pytest.fixture
def packs(tmp_path: Path, server: ObjectServer) -> list[str]:
    """A local pack, and two by their URLs: of 40 rows, and of shards."""
    local = make_pack(tmp_path / "a.h5")
    server.objects["bucket/b.h5"] = Path(make_pack(tmp_path / "b.h5", 40).path).read_bytes()
    return [local.path, "s3://bucket/b.h5"]


def check(batch: Any, sizes: tuple[int, ...]) -> list[int]:
    """See that a batch holds the rows whose numbers it has; return these."""
    firsts = np.cumsum([0, *sizes])
    own = batch.row - firsts[np.searchsorted(firsts, batch.row, "right") - 1]
    assert (batch.label == 3 * own).all()
    assert (batch.image.reshape(len(own), -1)[:, :8].copy().view("<i8")[:, 0] == own).all()
    rows: list[int] = batch.row.tolist()
    return rows


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_a_local_pack_beside_one_at_a_url(
    packs: list[str], tmp_path: Path, server: ObjectServer, cached: bool, weighted: bool
) -> None:
    cache = tmp_path / "cache" if cached else None
    opened = [open_pack(pack, cache if pack.startswith("s3://") else None) for pack in packs]
    given: Any = [(opened[0], 0.5), (opened[1], 0.5)] if weighted else opened
    with PackedBatchDataset(
        given, 10, shuffle=True, output="numpy", fields=("image", "label", "row")
    ) as dataset:
        orders = dataset.order.orders
        assert isinstance(dataset.order, Mixture) == weighted
        assert isinstance(orders[-1], Regions)
        for _ in range(2):
            rows = [row for batch in dataset for row in check(batch, (ROWS, 40))]
            assert len(rows) == ROWS + 40
            assert weighted or sorted(rows) == list(range(ROWS + 40))
        asked = sum(
            count
            for (method, key), count in server.requests.items()
            if key == "bucket/b.h5" and method == "GET"
        )
        list(dataset)
        again = sum(
            count
            for (method, key), count in server.requests.items()
            if key == "bucket/b.h5" and method == "GET"
        )
        assert not cached or again == asked


@pytest.mark.parametrize("store", ["raw", "jpeg", "zstd"])
def test_ragged_fields_and_compressed_rows_of_two_stores(
    tmp_path: Path, server: ObjectServer, store: str
) -> None:
    if store == "zstd":
        pytest.importorskip("zstandard", reason="zstandard is not installed")
    urls = []
    for name in "ab":
        (tmp_path / name).mkdir()
        pack = make_stored(tmp_path / name, "h5", store, None)
        server.objects[f"bucket/{name}.h5"] = Path(pack.path).read_bytes()
        urls.append(f"s3://bucket/{name}.h5")
    local = make_stored(tmp_path, "h5", store, (40, 1, 62))
    given = [(urls[0], 1), (open_pack(local.path, verify="blocks"), 1), (urls[1], 2)]
    options: dict[str, Any] = {
        "shuffle": True,
        "output": "numpy",
        "fields": ("image", "label", "text", "row"),
    }
    with PackedBatchDataset(given, 16, split="all", **options) as dataset:
        alone = PackedBatchDataset(local.path, ROWS, split="all", output="numpy", fields=("image",))
        images = next(iter(alone)).image
        for batch in dataset:
            own = batch.row % ROWS
            assert (batch.label == 3 * own).all()
            assert list(batch.text) == [b"abcd"[: row % 5] for row in own.tolist()]
            assert (batch.image == images[own]).all()
