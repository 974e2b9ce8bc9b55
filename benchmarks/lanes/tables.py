"""Peers that read rows by number out of memory maps: TensorDict, Hugging Face datasets, grain."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from lanes.lane import (
    DATALOADER,
    PACK_NPY,
    PLAIN,
    TABLES,
    Batch,
    Epoch,
    Lane,
    Rows,
    Setting,
    Store,
    dataloader,
    random_batches,
)

TENSORDICT, ARROW = "tensordict", "arrow"


def write_tensordict(rows: Rows, out: str) -> None:
    """One memory-mapped tensor a field."""
    import torch

    tensordict = import_module("tensordict")
    images = tensordict.MemoryMappedTensor.empty(rows.images.shape, dtype=torch.uint8)
    for start in range(0, len(rows), 1024):
        images[start : start + 1024] = torch.from_numpy(np.array(rows.images[start : start + 1024]))
    labels = torch.from_numpy(rows.labels.copy())
    tensordict.TensorDict({"image": images, "label": labels}, batch_size=[len(rows)]).memmap(out)


def _same(batch: Any) -> Any:
    """Nothing to collate: the batch was indexed as one."""
    return batch


def open_tensordict(path: str, setting: Setting) -> Epoch:
    """A DataLoader that indexes the TensorDict once a batch, by its own __getitems__."""
    table = import_module("tensordict").TensorDict.load_memmap(path)
    loader = dataloader(table, setting, batch_size=setting.batch, shuffle=True, collate_fn=_same)
    return lambda: ((batch["image"], batch["label"]) for batch in loader)


def write_arrow(rows: Rows, out: str) -> None:
    """save_to_disk of fixed-shape arrays, a record batch a few hundred rows."""
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    shape = rows.images.shape[1:]
    features = datasets.Features(
        {"image": datasets.Array3D(shape, "uint8"), "label": datasets.Value("int64")}
    )
    cache = f"{out}.cache"
    made = datasets.Dataset.from_generator(
        _arrow_rows, features=features, cache_dir=cache, gen_kwargs={"rows": rows}, writer_batch_size=256
    )
    made.save_to_disk(out)
    import_module("shutil").rmtree(cache)


def _arrow_rows(rows: Rows) -> Iterator[dict[str, Any]]:
    for image, label in rows:
        yield {"image": image, "label": label}


class _Arrow:
    """A dataset in arrow format: a list of rows comes as slices of the mapped file, which are copied once.

    Four times as fast as its own conversion to torch or NumPy, which goes through the values one by one.
    """

    def __init__(self, path: str, shape: tuple[int, ...]) -> None:
        self._table = import_module("datasets").load_from_disk(path).with_format("arrow")
        self._shape = shape

    def __getitem__(self, rows: list[int]) -> tuple[Any, Any]:
        found = self._table[rows]
        pieces = []
        for chunk in found["image"].chunks:
            values = chunk.storage
            for _ in self._shape:
                values = values.flatten()
            pieces.append(values.to_numpy())
        return np.concatenate(pieces).reshape(-1, *self._shape), found["label"].to_numpy()


def open_datasets(path: str, setting: Setting) -> Epoch:
    """Indexed with a list of rows a batch."""
    rows = Rows.of(setting.work)
    table = _Arrow(path, rows.images.shape[1:])
    loader = dataloader(table, setting, batch_size=None, sampler=random_batches(len(rows), setting.batch))
    return lambda: iter(loader)


class _Source:
    """What grain calls a random access data source: rows of mapped npy files."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        return self._rows.images[index], self._rows.labels[index]


def open_grain(path: str, setting: Setting) -> Epoch:
    """Shuffled, batched, read ahead by grain's threads."""
    grain = import_module("grain.python")
    source = grain.MapDataset.source(_Source(Rows.of(setting.work)))
    options = grain.ReadOptions(num_threads=setting.workers, prefetch_buffer_size=4 * setting.workers)
    epoch = iter(range(1 << 30))

    def begin() -> Iterator[Batch]:
        shuffled = source.shuffle(seed=next(epoch))
        return iter(shuffled.batch(setting.batch, drop_remainder=False).to_iter_dataset(options))

    return begin


STORES = (
    Store(TENSORDICT, ("torch", "tensordict"), write_tensordict),
    Store(ARROW, ("datasets",), write_arrow),
)
LANES = (
    Lane(
        "tensordict memmap", TABLES, TENSORDICT, ("torch", "tensordict"), open_tensordict, workers=DATALOADER
    ),
    Lane("datasets arrow", TABLES, ARROW, ("torch", "datasets"), open_datasets, workers=DATALOADER),
    Lane("grain over npy", PLAIN, PACK_NPY, ("grain",), open_grain, workers=DATALOADER),
)
