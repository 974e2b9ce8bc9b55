"""Small packs for the tests of the format: random rows, written block by block."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packer.codecs import NAMES, jpeg
from packer.codecs.block_codecs import block_codec, codec_record
from packer.format.fields import Field
from packer.format.header import Header
from packer.packs.pack_opening import open_pack
from packer.packs.shards import write_index
from packer.writing.pack_writer import PackWriter

FIELDS = (
    Field("image", "|u1", (4, 6, 3), {"layout": "HWC", "color": "rgb"}),
    Field("label", "<i8", ()),
    Field("key", "|u1", None, {"encoding": "utf-8"}),
)
FORMATS = ("h5", "npy")
SHAPE = (16, 24, 3)


def rows_of(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Content for FIELDS: random images, labels 0, 1, 2, ..."""
    images = np.random.default_rng(seed).integers(0, 256, (rows, 4, 6, 3), dtype=np.uint8)
    return {"image": images, "label": np.arange(rows, dtype="<i8")}


def keys_of(rows: int) -> list[bytes]:
    """Keys of differing length, one of them not UTF-8, one empty."""
    return [
        b"a/" + b"x" * (i % 5) + (b"\xff" if i == 3 else b"%d" % i) if i != 5 else b"" for i in range(rows)
    ]


def write_pack(
    out: Path,
    *,
    rows: int = 23,
    block_rows: int = 5,
    keep: int | None = None,
    overwrite: bool = False,
    **members: object,
) -> Header:
    """A whole pack of random rows; keep: finish with fewer rows than planned."""
    content = rows_of(rows)
    with PackWriter(
        str(out),
        fields=FIELDS,
        rows=rows,
        block_rows=block_rows,
        format="h5" if out.suffix == ".h5" else "npy",
        overwrite=overwrite,
    ) as writer:
        for block in range(-(-rows // block_rows)):
            part = slice(block * block_rows, (block + 1) * block_rows)
            writer.write_block(block, {name: array[part] for name, array in content.items()})
        kept = rows if keep is None else keep
        return writer.finish(rows=kept, ragged={"key": keys_of(kept)}, **members)


def out_path(folder: Path, format: str, name: str = "pack") -> Path:
    """A name in the folder that asks for the format."""
    return folder / (f"{name}.h5" if format == "h5" else name)


_needs_zstandard = pytest.mark.skipif(
    importlib.util.find_spec("zstandard") is None, reason="zstandard is not installed"
)
KINDS = [
    pytest.param(
        (format, store),
        id=f"{format}-{store}",
        marks=[_needs_zstandard] if store in ("zstd", "blosc2") else [],
    )
    for format, stores in (("h5", ("raw", "jpeg", *NAMES)), ("npy", ("raw", "jpeg")))
    for store in stores
]
"""Every format with every way to store images in it."""


def image_field(store: str, shape: tuple[int, int, int] = SHAPE) -> Field:
    """How images are stored: "raw", "jpeg", or compressed by a codec of that name."""
    field = Field("image", "|u1", shape, {"layout": "HWC", "color": "rgb"})
    if store == "raw":
        return field
    if store == "jpeg":
        return replace(field, shape=None, codec={"name": "jpeg", "shape": list(shape), "quality": 90})
    return replace(field, codec=codec_record(block_codec(store, shape, np.dtype("|u1"))))


@dataclass(frozen=True)
class Content:
    """Rows of a pack with one field of each kind: image as `store` says, label, text (ragged, given with the blocks), key.

    images: uint8 [N, *shape]; labels: int64 [N].
    """

    store: str
    images: np.ndarray
    labels: np.ndarray
    texts: Sequence[bytes]
    keys: Sequence[bytes]

    @classmethod
    def random(cls, store: str, rows: int) -> Content:
        """Smooth pictures with a little noise; texts from 0 to some hundred bytes."""
        draws = np.random.default_rng(rows)
        ramps = np.add.outer(np.arange(SHAPE[0]), np.arange(SHAPE[1]))[..., None] + np.array([0, 40, 80])
        noise = draws.integers(0, 9, (rows, *SHAPE))
        images = (ramps + noise + 7 * np.arange(rows)[:, None, None, None]).astype(np.uint8)
        texts = [draws.bytes(int(n)) for n in draws.integers(0, 300, rows) * (np.arange(rows) % 4 > 0)]
        return cls(store, images, np.arange(rows, dtype="<i8"), texts, keys_of(rows))

    @property
    def fields(self) -> tuple[Field, ...]:
        return (
            image_field(self.store, self.images.shape[1:]),
            Field("label", "<i8", ()),
            Field("text", "|u1", None),
            Field("key", "|u1", None, {"encoding": "utf-8"}),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Iterable[int]) -> Content:
        """These rows, in that order."""
        rows = list(rows)
        texts, keys = [self.texts[row] for row in rows], [self.keys[row] for row in rows]
        return Content(self.store, self.images[rows], self.labels[rows], texts, keys)

    def stored_images(self) -> Any:
        """As the writer takes them: pixels, or JPEG files."""
        return [jpeg.encode(i, 90) for i in self.images] if self.store == "jpeg" else self.images

    def loaded_images(self) -> np.ndarray:
        """As they come back."""
        if self.store != "jpeg":
            return self.images
        return np.stack([jpeg.decode(data, 1 << 20) for data in self.stored_images()])


def begin(out: Path, content: Content, *, block_rows: int = 5, **options: Any) -> PackWriter:
    """A writer for such content."""
    format = "h5" if out.suffix == ".h5" else "npy"
    options = {"fields": content.fields, "rows": len(content), "block_rows": block_rows} | options
    return PackWriter(str(out), format=format, **options)


def write_blocks(
    writer: PackWriter, content: Content, blocks: Iterable[int], *, record: bool = False
) -> None:
    """Write blocks; record: in the journal, too."""
    stored = content.stored_images()
    for block in blocks:
        start = block * writer.block_rows
        stop = min(start + writer.block_rows, len(content))
        values = {"label": content.labels, "image": stored, "text": content.texts}
        writer.write_block(block, {name: array[start:stop] for name, array in values.items()})
        if record:
            writer.record(block, {"block": block})


def write_content(
    out: Path,
    content: Content,
    *,
    moves: Sequence[tuple[int, int]] = (),
    keep: int | None = None,
    plan: dict[str, Any] | None = None,
    overwrite: bool = False,
    resume: bool = False,
    inspect: Callable[[PackWriter], None] = lambda writer: None,
    block_rows: int = 5,
    **members: object,
) -> Header:
    """A whole pack, on from where a writer of the same plan was interrupted. inspect: is shown the writer before it writes."""
    options = {"plan": plan, "overwrite": overwrite, "resume": resume, "block_rows": block_rows}
    with begin(out, content, **options) as writer:
        inspect(writer)
        todo = [block for block in range(writer.blocks) if block not in writer.done]
        write_blocks(writer, content, todo, record=plan is not None)
        writer.move_rows(moves)
        kept = len(content) if keep is None else keep
        origin = dict(moves)
        keys = [content.keys[origin.get(row, row)] for row in range(kept)]
        return writer.finish(rows=kept, ragged={"key": keys}, **members)


def write_shards(
    folder: Path,
    content: Content,
    rows: Sequence[int],
    *,
    format: str = "h5",
    block_rows: int = 5,
    splits: dict[str, tuple[tuple[int, int], ...]] | None = None,
    **members: Any,
) -> Path:
    """A pack of shards with so many rows each; splits: of the whole pack."""
    folder.mkdir()
    shards, first = [], 0
    for number, count in enumerate(rows):
        path = out_path(folder, format, f"{number:05d}")
        part = content.take(range(first, first + count))
        own = {
            name: tuple((max(a, first) - first, min(b, first + count) - first) for a, b in spans)
            for name, spans in (splits or {}).items()
        }
        own = {name: tuple((a, b) for a, b in spans if a < b) for name, spans in own.items()}
        own = {name: spans for name, spans in own.items() if spans}
        write_content(path, part, block_rows=min(block_rows, count), splits=own, **members)
        shards.append(open_pack(path))
        first += count
    write_index(str(folder), shards)
    return folder


def files_of(path: Path) -> dict[str, bytes]:
    """A pack's files, name -> content; a single file under the name ""."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
