"""Batches of images of like size: read from a pack's heights and widths, padded, and resumed on other ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

from packer import Buckets, PackedBatchDataset, convert_images  # noqa: E402
from packer.errors import UsageError  # noqa: E402
from tests.load.test_ragged_rows import written  # noqa: E402

ROWS = 60


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("buckets")
    rng = np.random.default_rng(0)
    for row in range(ROWS):
        (folder / "images" / "ab"[row % 2]).mkdir(parents=True, exist_ok=True)
        height, width = (64, int(rng.integers(16, 64)))[:: 1 if row % 3 else -1]
        pixels = np.full((height, width, 3), row * 4, np.uint8)
        Image.fromarray(pixels).save(folder / "images" / "ab"[row % 2] / f"{row}.jpg")
    convert_images(folder / "images", folder / "p.h5", size="max=64", store="jpeg")
    return str(folder / "p.h5")


def rows_of(batches: Any) -> list[int]:
    return [int(row) for batch in batches for row in batch.row]


def test_padded_resumed_and_on_every_rank(pack: str) -> None:
    options: dict[str, Any] = {"order": Buckets(), "collate": "pad", "fields": ["image", "row"], "seed": 3}
    with PackedBatchDataset(pack, 16, **options) as dataset:
        epochs = [list(dataset) for _ in range(2)]
        assert [len(one) for one in epochs] == [len(dataset)] * 2
        kept = [row for batch in epochs[0] for row in batch.row.tolist()]
        assert kept != rows_of(epochs[1])
        picked = dataset.batch(1)
    for batches in epochs:
        assert sorted(rows_of(batches)) == [*range(ROWS)]
    assert picked.row.tolist() == epochs[1][1].row.tolist()
    with PackedBatchDataset(pack, 16, **options) as dataset:
        loader = DataLoader(dataset, batch_size=None)
        assert [batch.row.tolist() for batch in loader] == [batch.row.tolist() for batch in epochs[0]]

    ranks = [PackedBatchDataset(pack, 4, rank=rank, world_size=2, **options) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1])
    begun = []
    for dataset in ranks:
        batches = iter(dataset)
        begun += rows_of(next(batches) for _ in range(3))
    states = [json.loads(json.dumps(dataset.state_dict())) for dataset in ranks]
    assert states[0] == states[1]
    with PackedBatchDataset(pack, 4, **options) as rest:
        rest.load_state_dict(states[0])
        assert sorted(begun + rows_of(rest)) == [*range(ROWS)]
    for dataset in ranks:
        dataset.close()


def test_a_class(pack: str) -> None:
    with PackedBatchDataset(pack, 8, order=Buckets(), fields=["label", "row"], classes="a") as dataset:
        assert len(set(rows_of(dataset))) == ROWS // 2 == dataset.rows


def test_packs_without_sizes(pack: str, tmp_path: Path) -> None:
    folder = Path(pack).parent
    kept = written(tmp_path / "keep.h5")
    with pytest.raises(
        UsageError, match=r"keep\.h5 lacks the fields 'height' and 'width', which it needs\. Convert"
    ):
        PackedBatchDataset(kept, 4, order=Buckets())
    convert_images(folder / "images", tmp_path / "fixed.h5", size=16)
    with pytest.raises(
        UsageError, match=r"images of .*fixed\.h5 have one size, so there is nothing to sort by"
    ):
        PackedBatchDataset(tmp_path / "fixed.h5", 4, order=Buckets())
    convert_images(folder / "images", folder / "q.h5", size="max=32", store="jpeg")
    with pytest.raises(UsageError, match=r"are not known \(packs with weights have none\)"):
        PackedBatchDataset([(pack, 0.5), (folder / "q.h5", 0.5)], 4, order=Buckets())
