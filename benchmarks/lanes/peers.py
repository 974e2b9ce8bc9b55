"""Peers, as their documentation uses them.

TensorDict, Hugging Face datasets and grain read rows by number from memory maps. WebDataset, MosaicML
streaming and LitData stream shards in order, and shuffle the rows that pass. FFCV uses threads and reused
buffers, like packer; its batches are overwritten a few batches later, packer's stay valid.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from glob import glob
from importlib import import_module
from typing import Any

import numpy as np

from lanes.lane import (
    BETON,
    DATALOADER,
    JPEG,
    PACK_NPY,
    PLAIN,
    STREAMS,
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
    """Write a memory-mapped tensor for each field."""
    import torch

    tensordict = import_module("tensordict")
    images = tensordict.MemoryMappedTensor.empty(rows.images.shape, dtype=torch.uint8)
    for start in range(0, len(rows), 1024):
        images[start : start + 1024] = torch.from_numpy(np.array(rows.images[start : start + 1024]))
    labels = torch.from_numpy(rows.labels.copy())
    tensordict.TensorDict({"image": images, "label": labels}, batch_size=[len(rows)]).memmap(out)


def _same(batch: Any) -> Any:
    """Return the batch unchanged, as it was indexed as a batch."""
    return batch


def open_tensordict(path: str, setting: Setting) -> Epoch:
    """Return epochs of a DataLoader that indexes the TensorDict once a batch, with its __getitems__."""
    table = import_module("tensordict").TensorDict.load_memmap(path)
    loader = dataloader(table, setting, batch_size=setting.batch, shuffle=True, collate_fn=_same)
    return lambda: ((batch["image"], batch["label"]) for batch in loader)


def write_arrow(rows: Rows, out: str) -> None:
    """Write arrays of fixed shape with save_to_disk, a few hundred rows in a record batch."""
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
    """A dataset in arrow format: a list of rows comes as slices of the mapped file, copied once.

    Four times as fast as its conversion to torch or NumPy, which handles values one by one.
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
    """Return epochs, indexed with a list of rows a batch."""
    rows = Rows.of(setting.work)
    table = _Arrow(path, rows.images.shape[1:])
    loader = dataloader(table, setting, batch_size=None, sampler=random_batches(len(rows), setting.batch))
    return lambda: iter(loader)


def open_grain(path: str, setting: Setting) -> Epoch:
    """Return epochs shuffled, batched and prefetched by grain's threads."""
    grain = import_module("grain.python")
    source = grain.MapDataset.source(Rows.of(setting.work))
    options = grain.ReadOptions(num_threads=setting.workers, prefetch_buffer_size=4 * setting.workers)
    epoch = iter(range(1 << 30))

    def begin() -> Iterator[Batch]:
        shuffled = source.shuffle(seed=next(epoch))
        return iter(shuffled.batch(setting.batch, drop_remainder=False).to_iter_dataset(options))

    return begin


TAR_NPY, MDS, LITDATA = "webdataset-npy", "mds", "litdata"
SHARD_BYTES = 100 << 20
BUFFER = 1000  # rows in WebDataset's shuffle buffer, as in its examples


def _write_tar(rows: Rows, out: str) -> None:
    os.makedirs(out)
    with import_module("webdataset").ShardWriter(f"{out}/%06d.tar", maxsize=SHARD_BYTES, verbose=0) as writer:
        for number, (image, label) in enumerate(rows):
            file = io.BytesIO()
            np.save(file, image)
            writer.write({"__key__": f"{number:08}", "cls": label, "npy": file.getvalue()})


def open_webdataset(path: str, setting: Setting) -> Epoch:
    """Return epochs: shards in random order, rows shuffled in a buffer, batched in the worker."""
    webdataset = import_module("webdataset")
    shards = sorted(glob(f"{path}/*.tar"))
    dataset = (
        webdataset.WebDataset(
            shards,
            shardshuffle=len(shards),
            nodesplitter=webdataset.split_by_node,
            empty_check=False,  # small runs have fewer shards than workers
        )
        .shuffle(BUFFER)
        .map(_decode_tar)
        .batched(setting.batch, partial=True)
    )
    loader = dataloader(dataset, setting, batch_size=None)
    return lambda: iter(loader)


def _decode_tar(sample: dict[str, Any]) -> tuple[Any, int]:
    return np.load(io.BytesIO(sample["npy"])), int(sample["cls"])


def _streaming() -> Any:
    """Return MosaicML's module. Its import of torchvision fails beside a torch without CUDA."""
    torch = import_module("torch")
    try:
        return import_module("streaming")
    except RuntimeError:
        # torchvision only misses the names of two operators, which nothing here calls.
        operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for module in [
            name for name in sys.modules if name.partition(".")[0] in ("streaming", "torchvision")
        ]:
            del sys.modules[module]
        _KEPT.append(operators)  # keeps their names registered
        return import_module("streaming")


_KEPT: list[Any] = []


def write_mds(rows: Rows, out: str) -> None:
    """Write raw pixels, uncompressed and unhashed, in shards of 64 MB: the defaults."""
    shape = ",".join(map(str, rows.images.shape[1:]))
    columns = {"image": f"ndarray:uint8:{shape}", "label": "int"}
    with _streaming().MDSWriter(out=out, columns=columns) as writer:
        for image, label in rows:
            writer.write({"image": image, "label": label})


def open_mds(path: str, setting: Setting) -> Epoch:
    """Return epochs with its own shuffle, below a DataLoader."""
    streaming = _streaming()
    import_module("streaming.base.util").clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=path, shuffle=True, batch_size=setting.batch)
    loader = dataloader(dataset, setting, batch_size=setting.batch)
    return lambda: ((batch["image"], batch["label"]) for batch in loader)


def write_litdata(rows: Rows, out: str) -> None:
    """Write raw pixels in the chunks of its README."""
    scratch = f"{out}.scratch"
    # It empties both folders before it starts; the defaults may contain a user's files.
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = os.path.join(scratch, "chunks")
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = os.path.join(scratch, "data")
    import_module("litdata").optimize(
        partial(_litdata_row, rows),
        list(range(len(rows))),
        out,
        num_workers=1,
        chunk_bytes="64MB",
        reorder_files=False,
        start_method="fork",
        verbose=False,
    )
    import_module("shutil").rmtree(scratch, ignore_errors=True)


def _litdata_row(rows: Rows, index: int) -> dict[str, Any]:
    return dict(zip(("image", "label"), rows[index], strict=True))


def open_litdata(path: str, setting: Setting) -> Epoch:
    """Return epochs with its own shuffle and DataLoader."""
    litdata = import_module("litdata")
    dataset = litdata.StreamingDataset(path, shuffle=True)
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=setting.batch,
        num_workers=setting.workers,
        persistent_workers=setting.workers > 0,
        drop_last=False,
    )
    return lambda: ((batch["image"], batch["label"]) for batch in loader)


BETON_RAW, BETON_JPEG = "ffcv-raw.beton", "ffcv-jpeg.beton"
QUALITY = 90


def _write_beton(rows: Rows, out: str, *, mode: str) -> None:
    writer, fields = import_module("ffcv.writer"), import_module("ffcv.fields")
    image = fields.RGBImageField(write_mode=mode, jpeg_quality=QUALITY)
    columns = {"image": image, "label": fields.IntField()}
    writer.DatasetWriter(out, columns, num_workers=1).from_indexed_dataset(rows)


def _open_beton(order: str) -> Callable[[str, Setting], Epoch]:
    def open_order(path: str, setting: Setting) -> Epoch:
        loader, transforms = import_module("ffcv.loader"), import_module("ffcv.transforms")
        decoders = import_module("ffcv.fields.decoders")
        pipelines = {
            "image": [decoders.SimpleRGBImageDecoder(), transforms.ToTensor()],
            "label": [decoders.IntDecoder(), transforms.ToTensor()],
        }
        made = loader.Loader(
            path,
            batch_size=setting.batch,
            num_workers=setting.threads,
            order=getattr(loader.OrderOption, order),
            os_cache=True,  # required by QUASI_RANDOM; its own cache is for data beyond memory
            drop_last=False,
            pipelines=pipelines,
        )
        return lambda: iter(made)

    return open_order


FFCV = ("torch", "ffcv")
STORES = (
    Store(TENSORDICT, ("torch", "tensordict"), write_tensordict),
    Store(ARROW, ("datasets",), write_arrow),
    Store(TAR_NPY, ("webdataset",), _write_tar),
    Store(MDS, ("torch", "streaming"), write_mds),
    Store(LITDATA, ("torch", "litdata"), write_litdata),
    Store(BETON_RAW, FFCV, partial(_write_beton, mode="raw")),
    Store(BETON_JPEG, FFCV, partial(_write_beton, mode="jpg")),
)
LANES = (
    Lane(
        "tensordict memmap", TABLES, TENSORDICT, ("torch", "tensordict"), open_tensordict, workers=DATALOADER
    ),
    Lane("datasets arrow", TABLES, ARROW, ("torch", "datasets"), open_datasets, workers=DATALOADER),
    Lane("grain over npy", PLAIN, PACK_NPY, ("grain",), open_grain, workers=DATALOADER),
    Lane("webdataset npy", STREAMS, TAR_NPY, ("torch", "webdataset"), open_webdataset, workers=DATALOADER),
    Lane("mosaicml MDS", STREAMS, MDS, ("torch", "streaming"), open_mds, workers=DATALOADER),
    Lane("litdata", STREAMS, LITDATA, ("torch", "litdata"), open_litdata, workers=DATALOADER),
    Lane("ffcv raw", BETON, BETON_RAW, FFCV, _open_beton("RANDOM")),
    Lane("ffcv jpeg", JPEG, BETON_JPEG, FFCV, _open_beton("RANDOM"), exact=False),
)
