"""Peers that stream shards in order and shuffle what passes: WebDataset, MosaicML streaming."""

from __future__ import annotations

import io
import os
from glob import glob
from importlib import import_module
from typing import Any

import numpy as np

from lanes.lane import DATALOADER, STREAMS, Epoch, Lane, Rows, Setting, Store, dataloader

TAR_NPY, MDS = "webdataset-npy", "mds"
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


def write_mds(rows: Rows, out: str) -> None:
    """Raw pixels, uncompressed and unhashed, shards of 64 MB: the defaults."""
    shape = ",".join(map(str, rows.images.shape[1:]))
    columns = {"image": f"ndarray:uint8:{shape}", "label": "int"}
    with import_module("streaming").MDSWriter(out=out, columns=columns) as writer:
        for image, label in rows:
            writer.write({"image": image, "label": label})


def open_mds(path: str, setting: Setting) -> Epoch:
    """Its own shuffle, below a DataLoader."""
    streaming = import_module("streaming")
    import_module("streaming.base.util").clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(local=path, shuffle=True, batch_size=setting.batch)
    loader = dataloader(dataset, setting, batch_size=setting.batch)
    return lambda: ((batch["image"], batch["label"]) for batch in loader)


STORES = (
    Store(TAR_NPY, ("webdataset",), _write_tar),
    Store(MDS, ("torch", "streaming"), write_mds),
)
LANES = (
    Lane("webdataset npy", STREAMS, TAR_NPY, ("torch", "webdataset"), open_webdataset, workers=DATALOADER),
    Lane("mosaicml MDS", STREAMS, MDS, ("torch", "streaming"), open_mds, workers=DATALOADER),
)
