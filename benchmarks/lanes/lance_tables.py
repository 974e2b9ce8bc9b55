"""Lance: rows by number, and batches of its torch dataset.

According to its documentation, a fixed-size list of pixels becomes a tensor without a copy, processes must be
spawned (it is not fork-safe), and a list of rows is taken in one call. Sorted lists are up to three times as
fast, and give the same rows in each batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from lanes.lane import (
    DATALOADER,
    TABLES,
    Batch,
    Epoch,
    Lane,
    Rows,
    Setting,
    Store,
    random_batches,
)

LANCE = "rows.lance"
WRITTEN = 256  # rows of a record batch


def write_lance(rows: Rows, out: str) -> None:
    """Write pixels as a fixed-size list of bytes, in the format's default version."""
    arrow = import_module("pyarrow")
    values = int(rows.images[0].size)
    kind = arrow.list_(arrow.uint8(), values)
    schema = arrow.schema([("image", kind), ("label", arrow.int64())])

    def batches() -> Iterator[Any]:
        for start in range(0, len(rows), WRITTEN):
            part = slice(start, start + WRITTEN)
            pixels = arrow.array(rows.images[part].reshape(-1))
            images = arrow.FixedSizeListArray.from_arrays(pixels, type=kind)
            yield arrow.record_batch([images, arrow.array(rows.labels[part])], schema=schema)

    import_module("lance").write_dataset(batches(), out, schema=schema)


class Taken:
    """Lists of row numbers, taken from a table that each process opens."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._table: Any = None

    def __getitem__(self, rows: list[int]) -> Any:
        if self._table is None:
            self._table = import_module("lance").dataset(self._path)
        found = self._table.take(sorted(rows)).combine_chunks().to_batches()[0]
        return import_module("lance.torch.data")._to_tensor(found)


def _batch(shape: tuple[int, ...], columns: dict[str, Any]) -> Batch:
    return columns["image"].view(-1, *shape), columns["label"]


def open_taken(path: str, setting: Setting) -> Epoch:
    """Return epochs of random rows, a list a batch, below a DataLoader with spawned processes."""
    from torch.utils.data import DataLoader

    rows = Rows.of(setting.work)
    several = setting.workers > 0
    table: Any = Taken(path)
    loader: Any = DataLoader(
        table,
        batch_size=None,
        sampler=random_batches(len(rows), setting.batch),
        num_workers=setting.workers,
        persistent_workers=several,
        multiprocessing_context="spawn" if several else None,
    )
    return lambda: map(partial(_batch, rows.images.shape[1:]), loader)


def open_batches(path: str, setting: Setting) -> Epoch:
    """Return epochs of its LanceDataset: adjacent rows in randomly ordered batches, read ahead by threads."""
    sampler = import_module("lance.sampler").ShardedBatchSampler(0, 1, randomize=True)
    table = import_module("lance.torch.data").LanceDataset(
        path, batch_size=setting.batch, sampler=sampler, batch_readahead=4 * setting.threads
    )
    shape = Rows.of(setting.work).images.shape[1:]
    epoch = iter(range(1 << 30))

    def begin() -> Iterator[Batch]:
        sampler.set_epoch(next(epoch))
        return map(partial(_batch, shape), table)

    return begin


NEEDS = ("torch", "lance")
STORES = (Store(LANCE, ("lance",), write_lance),)
LANES = (
    Lane("lance, lists of rows", TABLES, LANCE, NEEDS, open_taken, workers=DATALOADER),
    Lane("lance, LanceDataset", TABLES, LANCE, NEEDS, open_batches),
)
