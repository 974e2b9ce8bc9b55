"""Rows that are pictures of sizes of their own, decoded: raw bytes, PNG files, and what does not fit their sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packer.codecs import png
from packer.errors import FormatError
from packer.format.fields import Field
from packer.format.own_size import partner_storage
from packer.orders.runs import consecutive, one_run
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.read.array_store import PackStore
from packer.read.encoded_images import EncodedImages
from packer.writing.pack_writer import PackWriter

SIDES = [(4, 6), (3, 8), (5, 2)]
DRAWS = np.random.default_rng(0)
IMAGES: list[NDArray[Any]] = [DRAWS.integers(0, 256, (*size, 4)).astype("u1") for size in SIDES]
DEPTHS: list[NDArray[Any]] = [DRAWS.random((*size, 2)).astype("<f4") for size in SIDES]
MASKS: list[NDArray[Any]] = [DRAWS.integers(0, 1 << 16, size).astype("<u2") for size in SIDES]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    out = str(tmp_path_factory.mktemp("own") / "p.h5")
    rows: dict[str, Any] = {
        "image": [row.tobytes() for row in IMAGES],
        "depth": [row.tobytes() for row in DEPTHS],
        "mask": [png.encode(row) for row in MASKS],
        "height": np.array([h for h, _ in SIDES], "<i4"),
        "width": np.array([w for _, w in SIDES], "<i4"),
    }
    fields = (
        Field("image", "|u1", None, {"layout": "HWC", "color": "rgba"}),
        Field("depth", "|u1", None, *partner_storage("<f4", 2, soft=True)),
        Field("mask", "|u1", None, *partner_storage("<u2", 1, soft=False)),
        *(Field(side, "<i4", (), {"of": "image"}) for side in ("height", "width")),
    )
    with PackWriter(out, fields=fields, rows=3, block_rows=2, format="h5") as writer:
        for block in range(2):
            writer.write_block(block, {name: part[2 * block : 2 * block + 2] for name, part in rows.items()})
        writer.finish(rows=3, ragged={})
    return open_pack(out)


@pytest.mark.parametrize(("name", "values"), [("image", IMAGES), ("depth", DEPTHS), ("mask", MASKS)])
def test_rows_come_back_in_any_order(pack: Pack, name: str, values: list[NDArray[Any]]):
    numbers = [2, 0, 1]
    found = PackStore(pack, ()).decoded(name, consecutive(np.array(numbers)))
    for one, number in zip(found, numbers, strict=True):
        assert (one.dtype, one.shape) == (values[number].dtype, values[number].shape)
        assert np.array_equal(one, values[number])
        assert one.flags.writeable


@pytest.mark.parametrize(
    ("name", "row", "size", "reason"),
    [
        ("image", IMAGES[0].tobytes()[:-1], (4, 6), "it has 95 bytes, and its height and width are 4 and 6"),
        ("image", IMAGES[0].tobytes(), (-4, -6), "it has 96 bytes, and its height and width are -4 and -6"),
        ("depth", DEPTHS[0].tobytes(), (4, 7), "it has 192 bytes, and its height and width are 4 and 7"),
        ("mask", png.encode(MASKS[0]), (6, 4), "a PNG file of 6 x 4 pixels; its height and width are 6 and 4"),
        ("mask", png.encode(MASKS[0].astype("u1")), (4, 6), "uint8 [4, 6] for uint16 [4, 6]"),
        ("mask", png.encode(MASKS[0])[:-1], (4, 6), "a PNG file in several parts, cut short, or damaged"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_are_named(
    pack: Pack, name: str, row: bytes, size: tuple[int, int], reason: str
):
    with pytest.raises(FormatError) as error:
        EncodedImages(pack, pack.header.field(name), [row], [1], np.array([size], np.int32)).decode(0)
    assert str(error.value) == (
        f"{pack.path}: row 1 of {name!r} is damaged ({reason}). Run packer verify, or convert the images again."
    )


def test_an_unknown_codec_is_refused(pack: Pack):
    later = Field("mask", "|u1", None, partner_storage("|u1", 1, soft=False)[0], {"name": "later"})
    with pytest.raises(FormatError) as error:
        next(
            PackStore(replace(pack, header=replace(pack.header, fields=(later,))), ()).decoded(
                "mask", one_run(0, 1)
            )
        )
    assert str(error.value) == (
        f"{pack.path}: 'mask' is stored with codec 'later', which this packer does not know. Upgrade packer."
    )
