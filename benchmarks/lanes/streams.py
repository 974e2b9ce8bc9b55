"""Peers that stream shards in order and shuffle what passes: WebDataset, MosaicML streaming, LitData."""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from glob import glob
from importlib import import_module
from typing import Any

import numpy as np

from lanes.lane import DATALOADER, STREAMS, Epoch, Lane, Rows, Setting, Store, dataloader

TAR_NPY, MDS, LITDATA = "webdataset-npy", "mds", "litdata"
SHARD_BYTES = 100 << 20
BUFFER = 1000  # rows that WebDataset shuffles among, as its examples have it


def _write_tar(rows: Rows, out: str) -> None:
    os.makedirs(out)
    with import_module("webdataset").ShardWriter(f"{out}/%06d.tar", maxsize=SHARD_BYTES, verbose=0) as writer:
        for number, (image, label) in enumerate(rows):
            file = io.BytesIO()
            np.save(file, image)
            writer.write({"__key__": f"{number:08}", "cls": label, "npy": file.getvalue()})


def open_webdataset(path: str, setting: Setting) -> Epoch:
    """Shards in a random order, rows shuffled in a buffer, batched in the worker."""
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
    """MosaicML's module. It imports torchvision, whose compiled half fails to load beside a torch without CUDA."""
    torch = import_module("torch")
    try:
        return import_module("streaming")
    except RuntimeError:
        # What torchvision then misses is the names of two operators, which nothing here calls.
        operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for module in [
            name for name in sys.modules if name.partition(".")[0] in ("streaming", "torchvision")
        ]:
            del sys.modules[module]
        _KEPT.append(operators)  # their names live as long as this
        return import_module("streaming")


_KEPT: list[Any] = []


def write_mds(rows: Rows, out: str) -> None:
    """Raw pixels, uncompressed and unhashed, shards of 64 MB: the defaults."""
    shape = ",".join(map(str, rows.images.shape[1:]))
    columns = {"image": f"ndarray:uint8:{shape}", "label": "int"}
    with _streaming().MDSWriter(out=out, columns=columns) as writer:
        for image, label in rows:
            writer.write({"image": image, "label": label})


def open_mds(path: str, setting: Setting) -> Epoch:
    """Its own shuffle, below a DataLoader."""
    streaming = _streaming()
    import_module("streaming.base.util").clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=path, shuffle=True, batch_size=setting.batch)
    loader = dataloader(dataset, setting, batch_size=setting.batch)
    return lambda: ((batch["image"], batch["label"]) for batch in loader)


def write_litdata(rows: Rows, out: str) -> None:
    """Raw pixels in the chunks of its README."""
    scratch = f"{out}.scratch"
    # It empties both folders before it starts; their defaults may be somebody's.
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
    return {"image": np.array(rows.images[index]), "label": int(rows.labels[index])}


def open_litdata(path: str, setting: Setting) -> Epoch:
    """Its own shuffle and its own DataLoader."""
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


STORES = (
    Store(TAR_NPY, ("webdataset",), _write_tar),
    Store(MDS, ("torch", "streaming"), write_mds),
    Store(LITDATA, ("torch", "litdata"), write_litdata),
)
LANES = (
    Lane("webdataset npy", STREAMS, TAR_NPY, ("torch", "webdataset"), open_webdataset, workers=DATALOADER),
    Lane("mosaicml MDS", STREAMS, MDS, ("torch", "streaming"), open_mds, workers=DATALOADER),
    Lane("litdata", STREAMS, LITDATA, ("torch", "litdata"), open_litdata, workers=DATALOADER),
)
