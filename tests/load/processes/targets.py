"""A pack that has everything that moves with an image, and what a library makes of its rows when it is called by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer import randomness
from packer.format.fields import Field
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.writing.pack_writer import PackWriter

ROWS, HEIGHT, WIDTH = 40, 20, 16
FIELDS = (
    Field("image", "|u1", (HEIGHT, WIDTH, 3), {"layout": "HWC", "color": "rgb"}),
    Field("label", "<i8", ()),
    Field("seg", "|u1", (HEIGHT, WIDTH), {"layout": "HW", "sampling": "nearest"}),
    Field("parts", "|u1", (HEIGHT, WIDTH, 2), {"layout": "HWC", "sampling": "nearest"}),
    Field("keypoints", "<f4", (3, 2), {"format": "xy", "unseen": "nan"}),
    Field("weight", "<f4", (3,)),
    Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4], "format": "xyxy"}),
    Field("box_label", "|u1", None, {"dtype": "<i8", "row_shape": []}),
    Field("key", "|u1", None, {"encoding": "utf-8"}),
)
EVERYTHING = tuple(f.name for f in FIELDS)
SEED = 5

Row = dict[str, Any]


def row_of(number: int) -> Row:
    """The row's values: smooth pictures, so that resizing them is no matter of chance, boxes and points inside."""
    draws = np.random.default_rng(number)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    image = np.stack([8 * y + number, 10 * x + number, 5 * (x + y) + 30], axis=-1)
    corners = draws.uniform(0, [WIDTH / 2, HEIGHT / 2], (number % 4, 2))
    ends = corners + draws.uniform(2, [WIDTH / 2, HEIGHT / 2], (number % 4, 2))
    points = draws.uniform(0, [WIDTH - 1, HEIGHT - 1], (3, 2))
    points[number % 3 :][number % 2 :] = np.nan
    return {
        "image": image.astype(np.uint8),
        "label": np.int64(number % 7),
        "seg": draws.integers(0, 9, (HEIGHT, WIDTH), dtype=np.uint8),
        "parts": draws.integers(0, 9, (HEIGHT, WIDTH, 2), dtype=np.uint8),
        "keypoints": points.astype(np.float32),
        "weight": draws.random(3, dtype=np.float32),
        "boxes": np.concatenate([corners, ends], axis=1).astype(np.float32),
        "box_label": draws.integers(0, 90, number % 4),
        "key": f"row/{number}",
    }


def make_pack(out: Path) -> Pack:
    """ROWS rows of FIELDS."""
    rows = [row_of(number) for number in range(ROWS)]
    fixed = {f.name: np.stack([row[f.name] for row in rows]) for f in FIELDS if not f.ragged}
    with PackWriter(str(out), fields=FIELDS, rows=ROWS, block_rows=ROWS, format="h5") as writer:
        writer.write_block(0, fixed)
        ragged = {f.name: [row[f.name] for row in rows] for f in FIELDS if f.ragged and f.name != "key"}
        writer.finish(
            rows=ROWS,
            ragged={name: [value.tobytes() for value in values] for name, values in ragged.items()}
            | {"key": [row["key"].encode() for row in rows]},
        )
    return open_pack(out)


def seeds(numbers: NDArray[np.int64], epoch: int = 0) -> list[int]:
    """What the generators are seeded with for these rows."""
    found = randomness.integers(numbers, randomness.key(SEED, epoch, "transform"), 1 << 32)
    return [int(seed) for seed in found]


def row_values(batch: Any, i: int) -> Row:
    """A row of a batch of NumPy arrays."""
    return {name: getattr(batch, name)[i] for name in batch._fields}


def assert_same(found: Row, expected: Row) -> None:
    """The same names in the same order, dtypes, shapes and numbers."""
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert np.asarray(found[name]).dtype == np.asarray(value).dtype, name
        np.testing.assert_array_equal(found[name], value, err_msg=name)
