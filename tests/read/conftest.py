"""Packs whose images spell out their row number, so that every read can be checked by its content."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

from packer.format.fields import Field
from packer.orders.runs import Runs
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.writing.pack_writer import PackWriter
from tests.format.packs import KINDS, Content, write_content, write_shards

SHAPE = (8, 6, 3)
ROWS = 103


@functools.cache
def image_of(row: int) -> np.ndarray:
    """The image of a row: random, with the row number in its first eight bytes; read-only."""
    image = np.random.default_rng(row).integers(0, 256, SHAPE, dtype=np.uint8)
    image.reshape(-1)[:8] = np.frombuffer(np.int64(row).tobytes(), np.uint8)
    image.flags.writeable = False
    return image


def runs_of(*runs: tuple[int, int]) -> Runs:
    """Runs of (first row, number of rows)."""
    return Runs(np.array([a for a, _ in runs], np.int64), np.array([n for _, n in runs], np.int64))


def make_pack(out: Path, rows: int = ROWS) -> Pack:
    """Rows with label = 3 * row and key = row/<number>."""
    fields = (
        Field("image", "|u1", SHAPE, {"layout": "HWC"}),
        Field("label", "<i8", ()),
        Field("key", "|u1", None, {"encoding": "utf-8"}),
    )
    images = np.stack([image_of(row) for row in range(rows)])
    labels = 3 * np.arange(rows, dtype="<i8")
    size = min(rows, 16)
    with PackWriter(
        str(out), fields=fields, rows=rows, block_rows=size, format="h5" if out.suffix else "npy"
    ) as writer:
        for block in range(-(-rows // size)):
            part = slice(block * size, (block + 1) * size)
            writer.write_block(block, {"image": images[part], "label": labels[part]})
        writer.finish(rows=rows, ragged={"key": [b"row/%d" % row for row in range(rows)]})
    return open_pack(out)


SPLITS = {"train": ((0, 30), (50, 90)), "val": ((30, 50), (90, ROWS)), "none": ((5, 5),)}
SHARDS = (40, 1, 62)


def content_of(store: str, rows: int = ROWS) -> Content:
    """The same rows, stored in some way, with a text of row % 5 letters each."""
    return Content(
        store,
        np.stack([image_of(row) for row in range(rows)]),
        3 * np.arange(rows, dtype="<i8"),
        [b"abcd"[: row % 5] for row in range(rows)],
        [b"row/%d" % row for row in range(rows)],
    )


def make_stored(folder: Path, format: str, store: str, shards: tuple[int, ...] | None) -> Pack:
    """A pack of ROWS rows with SPLITS, in one part or in shards."""
    content, out = content_of(store), folder / ("p.h5" if format == "h5" else "p")
    if shards is None:
        write_content(out, content, block_rows=16, splits=SPLITS)
    else:
        write_shards(out, content, shards, format=format, block_rows=16, splits=SPLITS)
    return open_pack(out)


STORED = [
    pytest.param((*kind.values[0], shards), id=f"{kind.id}-{'shards' if shards else 'one'}", marks=kind.marks)
    for kind in KINDS
    for shards in (None, SHARDS)
]


@pytest.fixture(scope="session", params=STORED)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Every way to store a pack; not to be changed."""
    return make_stored(tmp_path_factory.mktemp("stored"), *request.param)


@pytest.fixture(scope="session")
def expected() -> dict[str, np.ndarray]:
    """Way to store images -> what is loaded of them, uint8 [ROWS, *SHAPE]."""
    raw, lossy = content_of("raw").loaded_images(), content_of("jpeg").loaded_images()
    return {"jpeg": lossy} | dict.fromkeys(("raw", "gzip", "zstd", "blosc2"), raw)


def store_of(pack: Pack) -> str:
    """How its images are stored."""
    codec = pack.header.field("image").codec
    return "raw" if codec is None else str(codec["name"])


@pytest.fixture(scope="session", params=["h5", "npy"])
def pack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("packs")
    return make_pack(folder / ("p.h5" if request.param == "h5" else "p"))


WAYS = [
    f"{way}, {form}" for way in ("calls", "copies", "few copies") for form in ("in C", "in NumPy")
]  # into the files: a call a run, copies from mappings, copies that let the mappings' pages go


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way into the files."""
    use_way(monkeypatch, str(request.param))
    return str(request.param)


def use_way(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Make the reader choose that way for the small packs of the tests."""
    way, _, form = way.partition(", ")
    if form == "in NumPy":
        monkeypatch.setattr("packer.native.COMPILED", False)
    limits = {"calls": (0, 0), "copies": (0, 1 << 40), "few copies": (1 << 40, 0)}
    for name, value in zip(("SMALL_RUN_BYTES", "MAPPED_BYTES"), limits[way], strict=True):
        monkeypatch.setattr(f"packer.read.gather.{name}", value)
    monkeypatch.setattr("packer.read.gather.GROWTH_BYTES", 0)
    monkeypatch.setattr("packer.read.gather._RUNS_AT_ONCE", 2)
