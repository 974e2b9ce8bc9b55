"""Sparse packs of any number of rows, on the disk and by URL. Used by scale.py.

Index, headers, trailers and block checksums are real; rows and HDF5's chunk tables, which packer does not
read, are holes of zeros.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from packer.bench.hardware_limits import versions
from packer.format.checksums import Trailer, block_checksum, digest
from packer.format.fields import (
    Extent,
    Field,
)
from packer.format.header import (
    INDEX_FILE,
    Header,
    block_rows,
)
from packer.packs.pack import Pack
from packer.packs.shards import write_index

SHARD_ROWS = 1524 * 43  # whole stretches, 12.9 GB of photos of 256 px: a minute of one core
_OFFSET = 1 << 20  # of the first row in its file


def write_pack(folder: str, rows: int, side: int) -> None:
    """Write a pack of shards whose rows are holes: images [side, side, 3] and labels of 1,000 classes."""
    os.makedirs(folder)
    fields = (
        Field("image", "|u1", (side, side, 3), {"layout": "HWC", "color": "rgb"}),
        Field("label", "<i8", ()),
    )
    row_bytes, classes = fields[0].row_bytes, tuple(f"class {k}" for k in range(1000))
    draws, shards, tables = np.random.default_rng(0), [], {}
    for number, first in enumerate(range(0, rows, SHARD_ROWS)):
        count = min(SHARD_ROWS, rows - first)
        block, labels = block_rows(count, row_bytes), _OFFSET + count * row_bytes
        header = Header(
            count,
            block,
            fields,
            {"image": (Extent("", _OFFSET, count, row_bytes),), "label": (Extent("", labels, count, 8),)},
            classes=classes,
            seed=0,
            statistics={"image": {name: draws.random(3).tolist() for name in ("mean", "std")}},
            provenance={"options": {"size": [side, side]}, "versions": versions()},
        )
        if count not in tables:
            sums = [
                [
                    block_checksum(np.zeros(min(block, count - b * block) * n, np.uint8))
                    for n in (row_bytes, 8)
                ]
                for b in (0, header.blocks - 1)
            ]
            tables[count] = np.array([sums[0]] * (header.blocks - 1) + [sums[1]], "<u8").tobytes()
        text, table, at = header.to_bytes(), tables[count], labels + count * 8
        end = at + len(table) + len(text)
        seal = Trailer(
            end, at + len(table), len(text), digest([text]), at, len(table), digest([table]), bytes(16)
        )
        with open(f"{folder}/{number:05d}.h5", "wb") as file:
            file.seek(at)
            file.write(table + text + seal.to_bytes())
        shards.append(Pack(f"{folder}/{number:05d}.h5", header, seal.to_bytes()))
    write_index(folder, shards)


class _Files(dict[str, Any]):
    """The objects of a bucket: files of a folder."""

    def get(self, key: str, default: Any = None) -> Any:
        path = Path(self["folder"], *key.split("/")[1:])
        return np.memmap(path, np.uint8, "r") if path.is_file() else default


def by_url(folder: str, run: Callable[[str, dict[str, str]], dict[str, Any]]) -> dict[str, Any]:
    """Call a function with a pack that this process serves by S3's protocol. Returns result and requests."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.remote import object_server

    before, object_server.digest = object_server.digest, lambda data: str(len(data))  # type: ignore[assignment]
    server = object_server.ObjectServer()
    server.objects = _Files(folder=folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    keys = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    try:
        found = run("s3://bucket/pack", keys)
    finally:
        object_server.digest = before
        server.shutdown()
        server.server_close()
    asked = sum(count for (method, _), count in server.requests.items() if method == "GET")
    index = sum(count for (_, key), count in server.requests.items() if key.endswith(INDEX_FILE))
    return found | {"requests": asked, "index_requests": index}
