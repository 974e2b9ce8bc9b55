"""Packs of every kind, for looking at: 8 images, with all that may stand beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from packer.format.fields import Field
from packer.previews.contact_sheet import Preview
from packer.previews.drawing import GAP, MARGIN, SheetGrid
from packer.writing.pack_writer import PackWriter

ROWS = 8
Pixels = NDArray[np.uint8]
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make(images, name="pack.h5", label=..., mask=..., classes=...) -> a pack of these fields."""

    def run(
        images: Pixels | None,
        name: str = "pack.h5",
        *,
        about: Mapping[str, Any] | None = None,
        ragged: Mapping[str, tuple[list[int], list[NDArray[Any]]]] | None = None,
        members: Mapping[str, Any] | None = None,
        **columns: NDArray[Any],
    ) -> Path:
        fixed = ({} if images is None else {"image": images}) | columns
        lists = {key: rows for key, (_, rows) in (ragged or {}).items()}
        fields = [
            Field(
                key,
                array.dtype.str if array.dtype.itemsize > 1 else "|" + array.dtype.str[1:],
                array.shape[1:],
                {"layout": "HWC"} if key == "image" else (about or {}).get(key, {}),
            )
            for key, array in fixed.items()
        ]
        fields += [
            Field(key, "|u1", None, {"dtype": rows[0].dtype.str, "row_shape": shape})
            for key, (shape, rows) in (ragged or {}).items()
        ]
        count = len(next(iter(fixed.values())))
        out = tmp_path / name
        kind = "h5" if out.suffix == ".h5" else "npy"
        with PackWriter(str(out), fields=fields, rows=count, block_rows=count, format=kind) as writer:
            writer.write_block(0, {key: np.ascontiguousarray(array) for key, array in fixed.items()})
            blobs = {key: [row.tobytes() for row in rows] for key, rows in lists.items()}
            writer.finish(rows=count, ragged=blobs, **(members or {}))
        return out

    return run


@pytest.fixture
def images() -> Pixels:
    """uint8 [8, 32, 32, 3], noise."""
    return np.random.default_rng(0).integers(0, 256, (ROWS, 32, 32, 3), dtype=np.uint8)


def tiles(made: Preview, size: tuple[int, int]) -> Pixels:
    """What a PNG sheet shows: [rows, repeat, h, w, 3] of images of size (h, w) that were enlarged by a whole factor, made small again."""
    sheet = np.asarray(Image.open(made.path))
    assert sheet.shape == (made.size[1], made.size[0], 3)
    factor = max(1, round(110 / max(size)))
    tile = (size[1] * factor, size[0] * factor)
    bare = SheetGrid(made.rows, made.repeat, made.columns, tile, 0)
    words = (made.size[1] - bare.size[1]) // bare.lines
    grid = SheetGrid(made.rows, made.repeat, made.columns, tile, words)
    assert grid.size == made.size
    assert (MARGIN, GAP) == (20, 10)
    shown = []
    for row in range(made.rows):
        for repeat in range(made.repeat):
            left, top = grid.corner(row, repeat)
            cut = sheet[top : top + tile[1], left : left + tile[0]]
            small = cut[::factor, ::factor]
            assert np.array_equal(small.repeat(factor, 0).repeat(factor, 1), cut)
            shown.append(small)
    return np.array(shown).reshape(made.rows, made.repeat, *size, 3)
