from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from packer.errors import UsageError
from packer.format.pack import Pack
from packer.load.rows import PackedDataset
from packer.orders.runs import consecutive
from tests.read.conftest import ROWS, SHAPE, image_of, make_pack

torch = pytest.importorskip("torch")
from torch.utils.data import BatchSampler, DataLoader, RandomSampler  # noqa: E402


def check(images, labels) -> list[int]:
    rows = (labels // 3).tolist()
    assert all(
        (image.permute(1, 2, 0).numpy() == image_of(row)).all()
        for image, row in zip(images, rows, strict=True)
    )
    return rows


def test_one_row(pack: Pack):
    dataset = PackedDataset(pack.path)
    assert len(dataset) == ROWS
    sample = dataset[17]
    assert sample._fields == ("image", "label")
    assert (sample.image.shape, sample.image.dtype) == ((3, *SHAPE[:2]), torch.uint8)
    assert (sample.label.shape, sample.label.dtype) == ((), torch.int64)
    assert check([sample.image], sample.label[None]) == [17]
    assert int(dataset[-1].label) == 3 * (ROWS - 1)


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (slice(5, 9), [5, 6, 7, 8]),
        (slice(None, None, 40), [0, 40, 80]),
        (slice(4, 1, -1), [4, 3, 2]),
        ([7, 3, 3, -1], [7, 3, 3, ROWS - 1]),
        (np.array([2, 1]), [2, 1]),
        (torch.tensor([9, 10]), [9, 10]),
        ([], []),
    ],
)
def test_many_rows(pack: Pack, way: str, index: object, rows: list[int]):
    batch = PackedDataset(pack, fields=("label", "key", "image"))[index]
    assert check(batch.image, batch.label) == rows
    assert batch.key == [f"row/{row}" for row in rows]
    assert batch.image.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, [0, ROWS], [0.5], np.array([True])])
def test_wrong_rows_are_index_errors(pack: Pack, index: object):
    with pytest.raises(IndexError):
        PackedDataset(pack)[index]


def test_unknown_field(pack: Pack):
    with pytest.raises(UsageError, match="has no field 'mask'; it has image, label, key"):
        PackedDataset(pack, fields=["mask"])


@pytest.mark.parametrize("context", [None, "fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_dataloader_row_by_row_and_by_batch_sampler(tmp_path: Path, context: str | None):
    pack = make_pack(tmp_path / "p.h5")
    dataset = PackedDataset(pack)
    check(*dataset[:3])  # files are open before workers start
    options = {"num_workers": 2, "multiprocessing_context": context} if context else {}
    sampler = BatchSampler(RandomSampler(dataset), batch_size=16, drop_last=False)
    for loader in (
        DataLoader(dataset, batch_size=16, shuffle=True, **options),
        DataLoader(dataset, sampler=sampler, batch_size=None, **options),
    ):
        seen = []
        for batch in loader:
            assert type(batch).__name__ == "Batch"
            assert batch.image.shape[1:] == (3, *SHAPE[:2])
            seen += check(batch.image, batch.label)
        assert sorted(seen) == list(range(ROWS))
        assert seen != sorted(seen)


def test_getitems_gives_samples_for_the_default_collate(pack: Pack):
    samples = PackedDataset(pack).__getitems__([4, 90, 4])
    assert isinstance(samples, list)
    assert check([s.image for s in samples], torch.stack([s.label for s in samples])) == [4, 90, 4]


def test_pickled_and_closed_datasets_read_on(pack: Pack):
    dataset = PackedDataset(pack)
    dataset[0]
    dataset.close()
    for again in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert check(*again[3:5]) == [3, 4]


@pytest.mark.parametrize("rows", [[], [5], [1, 2, 3, 7, 8, 8, 9, 2], [4, 3, 2]])
def test_consecutive_joins_neighbours(rows: list[int]):
    runs = consecutive(np.array(rows, np.int64))
    assert runs.rows().tolist() == rows
    assert len(runs.starts) == 1 + sum(b != a + 1 for a, b in pairwise(rows)) - (not rows)
