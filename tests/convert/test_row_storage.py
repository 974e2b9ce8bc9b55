"""How rows are stored: what is refused, what becomes of fields, and how large blocks and shards are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from packer.arguments import as_bytes
from packer.codecs import jpeg
from packer.convert.row_maker import RowMaker
from packer.convert.row_storage import RowStorage
from packer.errors import UsageError
from packer.format.fields import Field
from packer.format.header import BLOCK_BYTES, CODED_BLOCK_BYTES

IMAGE = Field("image", "|u1", (32, 16, 3), {"layout": "HWC"})
LABEL = Field("label", "<i8", ())
MASK = Field("mask", "|u1", (32, 16), {"sampling": "nearest"})
BOXES = Field("boxes", "|u1", None)


class Maker(RowMaker):
    """As much of a RowMaker as the size of a block depends on."""

    def __init__(self, *fields: Field, ragged_bytes: int = 0) -> None:
        self.fields, self.ragged_bytes = fields, ragged_bytes


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"format": "zarr"}, "format='zarr': is not one of 'h5', 'npy'. Pass one of them."),
        (
            {"store": "png"},
            "store='png': is not one of 'raw', 'jpeg', 'gzip', 'zstd', 'blosc2'. Pass one of them.",
        ),
        ({"store": "jpeg", "quality": 0}, "quality 0: is not within 1 to 100. Pass for example 90."),
        ({"store": "jpeg", "quality": 101}, "quality 101: is not within 1 to 100. Pass for example 90."),
        (
            {"format": "npy", "store": "gzip"},
            "store='gzip': .npy files are never compressed. Pass an output that ends in .h5.",
        ),
    ],
)
def test_each_wrong_choice_is_one_sentence(options: dict[str, Any], sentence: str):
    with pytest.raises(UsageError) as error:
        RowStorage(**{"format": "h5", **options})
    assert str(error.value) == sentence


def test_raw_fields_are_as_they_are_made():
    assert RowStorage("npy").fields((IMAGE, LABEL, MASK, BOXES)) == (IMAGE, LABEL, MASK, BOXES)


def test_jpeg_rows_are_of_any_length_and_say_their_shape():
    image, *others = RowStorage("npy", "jpeg", 75).fields((IMAGE, LABEL, MASK, BOXES))
    assert image == Field(
        "image", "|u1", None, IMAGE.about, {"name": "jpeg", "shape": [32, 16, 3], "quality": 75}
    )
    assert image.loaded == IMAGE
    assert others == [LABEL, MASK, BOXES]


def test_jpeg_has_no_transparency():
    with pytest.raises(UsageError) as error:
        RowStorage("npy", "jpeg").fields((Field("image", "|u1", (32, 16, 4)),))
    assert str(error.value) == "store jpeg: JPEG has no transparency. Pass channels='rgb', or store='raw'."


def test_compressed_are_the_large_fields_of_fixed_rows():
    small = Field("points", "<f4", (31, 2))
    large = Field("points", "<f4", (32, 2))
    image, label, mask, boxes, points, more = RowStorage("h5", "gzip").fields(
        (IMAGE, LABEL, MASK, BOXES, small, large)
    )
    assert [f.codec for f in (image, mask, more)] == [{"name": "gzip", "level": 1}] * 3
    assert image.shape == IMAGE.shape
    assert image.about == IMAGE.about
    assert (label, boxes, points) == (LABEL, BOXES, small)


def test_of_small_rows_alone_the_largest_are_compressed():
    """What was asked for is done: a table of few columns has no rows of 256 bytes."""
    features = Field("features", "<f4", (28,))
    stored, label = RowStorage("h5", "gzip").fields((features, LABEL))
    assert stored.compressed
    assert label == LABEL
    assert RowStorage("h5", "gzip").fields((LABEL,))[0].compressed
    assert RowStorage("h5", "gzip").fields((BOXES,)) == (BOXES,)


def test_blosc2_compares_whole_pixels():
    pytest.importorskip("blosc2")
    image, mask = RowStorage("h5", "blosc2").fields((IMAGE, MASK))
    assert (image.codec, mask.codec) == ({"name": "blosc2", "item": 3}, {"name": "blosc2", "item": 1})


def test_blocks_hold_so_many_bytes():
    row_bytes = IMAGE.row_bytes + 8
    raw = RowStorage("h5").block_rows(Maker(IMAGE, LABEL), 10**6)
    assert raw == -(-BLOCK_BYTES // row_bytes)
    assert RowStorage("h5").block_rows(Maker(IMAGE, LABEL), 7) == 7
    coded = RowStorage("h5", "gzip").block_rows(Maker(IMAGE, LABEL), 10**6)
    assert coded == -(-CODED_BLOCK_BYTES // row_bytes)
    kept = RowStorage("h5", "jpeg").block_rows(Maker(LABEL, ragged_bytes=5000), 10**6)
    assert kept == -(-CODED_BLOCK_BYTES // 5008)


@pytest.mark.parametrize(
    "storing",
    [
        RowStorage("h5"),
        RowStorage("npy", "jpeg", 75),
        RowStorage("h5", "gzip"),
        RowStorage("npy", shard_rows=1000),
    ],
)
def test_what_a_pack_records_gives_the_same_again(storing: RowStorage):
    assert RowStorage.from_record(storing.options()) == storing


def test_only_what_is_not_the_rule_is_recorded():
    assert RowStorage("npy").options() == {"format": "npy", "store": "raw"}
    assert RowStorage("npy", quality=3).options() == {"format": "npy", "store": "raw"}
    assert RowStorage("npy", "jpeg", 3, shard_rows=5).options() == {
        "format": "npy",
        "store": "jpeg",
        "quality": 3,
        "shard_rows": 5,
    }


def test_options_that_are_none_are_the_rule():
    options = {"format": "h5", "store": "raw", "quality": None, "shard_rows": None}
    assert RowStorage.from_record(options) == RowStorage("h5")


@pytest.mark.parametrize(
    ("storing", "gathered"),
    [(RowStorage("h5"), False), (RowStorage("h5", "jpeg", 80), True), (RowStorage("h5", "gzip"), True)],
)
def test_room(storing: RowStorage, gathered: bool):
    assert storing.gathered == gathered


def test_versions_are_those_of_what_makes_the_bytes():
    assert RowStorage("h5").versions() == {}
    assert RowStorage("h5", "jpeg").versions() == jpeg.versions()
    assert list(RowStorage("h5", "gzip").versions()) == ["zlib"]


def test_shards_of_about_so_many_bytes():
    assert RowStorage("h5").with_rows(1000) == RowStorage("h5")
    assert RowStorage("h5", shard_rows=5).with_rows(1000).shard_rows == 5
    assert RowStorage.parse("p", None, "raw", shards="2MB").with_rows(1000.5) == RowStorage(
        "h5", shard_rows=1999
    )
    assert RowStorage.parse("p", None, "raw", shards="10B").with_rows(1000).shard_rows == 1
    assert RowStorage.parse("p", None, "raw", shards=np.int64(7)) == RowStorage("h5", shard_rows=7)
    assert RowStorage.parse("p", None, "raw") == RowStorage("npy")


@pytest.mark.parametrize("shards", [0, -1, 2.5, True, "100000", "two", ""])
def test_what_is_neither_rows_nor_a_size(shards: Any):
    with pytest.raises(UsageError) as error:
        RowStorage.parse("p", None, "raw", shards=shards)
    assert str(error.value) == (
        f"shards={shards!r}: is neither a number of rows nor a size with its unit."
        " Pass for example shards=100000 or shards='2GB'."
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2GB", 2 * 10**9),
        ("2 gb", 2 * 10**9),
        ("2GiB", 2 * 2**30),
        ("1.5kB", 1500),
        (" 512MiB ", 512 * 2**20),
        ("3TB", 3 * 10**12),
        ("1TiB", 2**40),
        ("7", 7),
        (7, 7),
        (np.int64(7), 7),
    ],
)
def test_numbers_of_bytes(text: Any, number: int):
    assert as_bytes(text) == number


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1.2.3MB", "2PB", "0", "0.4", "1e9", "2 G B", -3])
def test_what_is_no_number_of_bytes(text: Any):
    assert as_bytes(text) is None
