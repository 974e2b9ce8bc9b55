"""The contract of a reader of packs: sample packs of every kind, their expected rows, and damaged copies."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from packer.codecs import NAMES
from packer.codecs.block_codecs import block_codec, codec_record
from packer.format.checksums import SIZE
from packer.format.fields import Field
from packer.format.header import HEADER_FILE, INDEX_FILE, TRAILER_FILE
from packer.packs.pack_opening import open_pack
from packer.packs.shards import write_index
from packer.writing.pack_writer import PackWriter


def check_reader(
    read: Callable[[str], Mapping[str, Any]],
    folder: str | os.PathLike[str],
    *,
    containers: Sequence[str] = ("h5", "npy", "shards"),
    stores: Sequence[str] = ("raw", "jpeg", *NAMES),
    seals: bool = True,
) -> None:
    """Check a program that reads packs, on small packs of every kind, intact and damaged.

    read: a function from the path of a pack to its fields: name -> rows, an array ``[N, ...]``, or a list of
        `bytes` for a ragged field. A JPEG row is the bytes of its JPEG file.
    folder: an empty folder for the sample packs.
    containers: those that the program reads: "h5", "npy", "shards".
    stores: storage of images: "raw", "jpeg", "gzip", "zstd", "blosc2". Packs in "npy" are "raw" or "jpeg".
    seals: True if the program must refuse damaged and unsealed packs; False for a general reader of HDF5 or
        .npy files.
    Raises AssertionError if rows differ, or the program reads a damaged pack.
    """
    for store, container in product(stores, containers):
        if container == "npy" and store in NAMES:
            continue
        path = Path(folder, f"{container}-{store}{'.h5' * (container == 'h5')}")
        if container == "shards":
            path.mkdir()
            parts = [write_sample_pack(path / f"{k:05d}.h5", store, rows) for k, rows in enumerate((10, 13))]
            write_index(str(path), [open_pack(path / f"{k:05d}.h5") for k in range(2)])
            expected = {name: _joined(*(part[name] for part in parts)) for name in parts[0]}
        else:
            expected = write_sample_pack(path, store)
        found = read(str(path))
        for name, rows in expected.items():
            assert _same(found[name], rows), f"{container}, {store}: the field {name!r} differs"
        for what, copy in _damaged_packs(path, container) if seals and store == stores[0] else ():
            try:
                read(str(copy))
            except Exception:
                continue
            raise AssertionError(f"{container}, {store}: a pack {what} is accepted")


def write_sample_pack(path: str | os.PathLike[str], store: str = "raw", rows: int = 23) -> dict[str, Any]:
    """Write a small pack with a field of every kind: images, labels, an unknown field of numbers, and keys.

    Return the expected rows: name -> an array ``[rows, ...]``, or a list of `bytes` for a ragged field.
    """
    shape, name = (16, 24, 3), os.fspath(path)
    draws = np.random.default_rng(rows)
    slopes = np.add.outer(np.arange(shape[0]), np.arange(shape[1]))[..., None] + np.array([0, 40, 80])
    images = (
        slopes + draws.integers(0, 9, (rows, *shape)) + 7 * np.arange(rows)[:, None, None, None]
    ).astype(np.uint8)
    keys = [
        b"" if row == 5 else b"a/" + b"x" * (row % 5) + (b"\xff" if row == 3 else b"%d" % row)
        for row in range(rows)
    ]
    content: dict[str, Any] = {
        "image": images,
        "label": np.arange(rows),
        "box": draws.random((rows, 2, 3), np.float32),
    }
    about, codec = {"layout": "HWC", "color": "rgb"}, None
    if store == "jpeg":
        from packer.codecs import jpeg

        content["image"] = [jpeg.encode(image, 90) for image in images]
        codec = {"name": "jpeg", "shape": list(shape), "quality": 90}
    elif store != "raw":
        codec = codec_record(block_codec(store, shape, images.dtype))
    fields = (
        Field("image", "|u1", None if store == "jpeg" else shape, about, codec),
        Field("label", "<i8", ()),
        Field("box", "<f4", (2, 3)),
        Field("key", "|u1", None, {"encoding": "utf-8"}),
    )
    format = "h5" if name.endswith(".h5") else "npy"
    with PackWriter(name, fields=fields, rows=rows, block_rows=5, format=format) as writer:
        for block, start in enumerate(range(0, rows, 5)):
            writer.write_block(block, {of: values[start : start + 5] for of, values in content.items()})
        writer.finish(rows=rows, ragged={"key": keys})
    return content | {"key": keys}


def _joined(first: Any, second: Any) -> Any:
    """Return the rows of two packs, concatenated."""
    return [*first, *second] if isinstance(first, list) else np.concatenate((first, second))


def _same(found: Any, rows: Any) -> bool:
    """Return True if a field's rows equal the expected ones; arrays also in dtype."""
    if isinstance(rows, list):
        return [*map(bytes, found)] == rows
    return np.asarray(found).dtype == rows.dtype and np.array_equal(found, rows)


def _damaged_packs(path: Path, container: str) -> Iterator[tuple[str, Path]]:
    """Yield damaged copies of a pack, which every reader must refuse, each with a description."""

    def renamed(data: bytes) -> bytes:
        return data.replace(b'"label"', b'"mabel"', 1)

    def halved(data: bytes) -> bytes:
        return data[: len(data) // 2]

    files: dict[str, tuple[tuple[str, Callable[[bytes], bytes]], ...]] = {
        "h5": (("", lambda data: data[:-SIZE]), ("", renamed)),
        "npy": ((TRAILER_FILE, lambda data: b""), (HEADER_FILE, renamed), ("box.npy", halved)),
        "shards": ((INDEX_FILE, renamed), ("00001.h5", halved)),
    }
    for number, (name, edit) in enumerate(files[container]):
        copy = path.with_name(f"damaged{number}-{path.name}")
        if path.is_dir():
            shutil.copytree(path, copy)
        else:
            shutil.copyfile(path, copy)
        file = copy / name
        data = file.read_bytes()
        file.write_bytes(edit(data))
        assert file.read_bytes() != data
        yield f"whose {name or 'file'} was damaged", copy
