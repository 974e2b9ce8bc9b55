"""Small packs for the tests of the format: random rows, written block by block."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from packer.format.header import Field, Header
from packer.format.writer import PackWriter

FIELDS = (
    Field("image", "|u1", (4, 6, 3), {"layout": "HWC", "color": "rgb"}),
    Field("label", "<i8", ()),
    Field("key", "|u1", None, {"encoding": "utf-8"}),
)
FORMATS = ("h5", "npy")


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
            writer.write_block(block, {}, {name: array[part] for name, array in content.items()})
        kept = rows if keep is None else keep
        return writer.finish(rows=kept, ragged={"key": keys_of(kept)}, **members)


def out_path(folder: Path, format: str, name: str = "pack") -> Path:
    """A name in the folder that asks for the format."""
    return folder / (f"{name}.h5" if format == "h5" else name)
