from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.errors import FormatError
from packer.format import header as header_module
from packer.format.fields import Extent, Field
from packer.format.header import BLOCK_BYTES, MAX_BLOCKS, Header, block_rows

HEADER = Header(
    rows=7,
    block_rows=3,
    fields=(
        Field("image", "|u1", (2, 2, 3), {"layout": "HWC"}),
        Field("label", "<i8", ()),
        Field("key", "|u1", None),
    ),
    extents={
        "image": (Extent("", 100, 7, 12),),
        "label": (Extent("", 184, 4, 8), Extent("", 300, 3, 8)),
        "key": (Extent("", 400, 9, 1),),
        "key.offsets": (Extent("", 500, 8, 8),),
    },
    classes=("cat", "caf\u00e9 \udcff"),
    splits={"train": ((0, 2), (3, 5)), "val": ((5, 7),)},
    seed=3,
    statistics={"image": {"mean": [0.1, 0.2, 0.3], "std": [1 / 3, 0.5, 0.25]}},
    provenance={"options": {"size": [2, 2]}, "versions": {"opencv": "5"}},
    skipped=({"key": "bad \udc80.jpg", "reason": "is empty"},),
)


def test_round_trip_is_exact_and_canonical():
    data = HEADER.to_bytes()
    assert Header.from_bytes(data, "x") == HEADER
    assert Header.from_bytes(data, "x").to_bytes() == data
    assert data.isascii()
    assert b" " not in data.replace(b"caf\\u00e9 ", b"").replace(b"bad ", b"").replace(b"is empty", b"")


def test_bytes_of_format_1_do_not_change():
    small = Header(1, 1, (Field("x", "<f4", ()),), {"x": (Extent("x.npy", 128, 1, 4),)})
    assert small.to_bytes() == (
        b'{"block_rows":1,"checksum":"xxh3-64","classes":null,"complete":true,"extents":{"x":[["x.npy",128,1,4]]},'
        b'"fields":[{"about":{},"dtype":"<f4","name":"x","shape":[]}],"format":"packer","provenance":{},"rows":1,'
        b'"seed":null,"skipped":[],"splits":{},"statistics":{},"version":1}'
    )


COMPRESSED = Header(
    rows=7,
    block_rows=3,
    fields=(
        Field("image", "|u1", (2, 2, 3), {}, {"name": "gzip", "level": 1}),
        Field("photo", "|u1", None, {"layout": "HWC"}, {"name": "jpeg", "shape": [8, 9, 3], "quality": 90}),
        Field("any", "|u1", None, {}, {"name": "jpeg", "shape": None}),
    ),
    extents={
        "image": (Extent("", 10, 3, 12, 21), Extent("", 31, 3, 12, 2), Extent("", 40, 1, 12, 7)),
        "photo": (Extent("", 50, 100, 1),),
        "photo.offsets": (Extent("", 150, 8, 8),),
        "any": (),
        "any.offsets": (Extent("", 214, 8, 8),),
    },
)


def test_fields_with_codecs():
    data = COMPRESSED.to_bytes()
    assert Header.from_bytes(data, "x") == COMPRESSED
    assert Header.from_bytes(data, "x").to_bytes() == data
    image, photo, other = COMPRESSED.fields
    assert (image.compressed, photo.compressed, image.ragged, photo.ragged) == (True, False, False, True)
    assert photo.loaded == Field("photo", "|u1", (8, 9, 3), {"layout": "HWC"})
    assert (image.loaded, other.loaded) == (image, other)
    assert [(e.nbytes, e.end) for e in COMPRESSED.extents["image"]] == [(21, 31), (2, 33), (7, 47)]


@pytest.mark.parametrize(
    "extents",
    [
        [["", 10, 3, 12, 21], ["", 31, 4, 12, 2]],  # not one per block
        [["", 10, 7, 12, 21]],
        [["", 10, 3, 12, 21], ["", 31, 3, 12, 2]],
        [["", 10, 3, 12, 21], ["", 31, 3, 12], ["", 40, 1, 12, 7]],  # one that does not say how long it is
        [["", 10, 3, 12, 21], ["", 31, 3, 12, 2], ["", 40, 1, 12, 7], ["", 50, 0, 12, 7]],
    ],
)
def test_a_compressed_field_has_one_extent_a_block(extents: list[list[object]]):
    record = json.loads(COMPRESSED.to_bytes())
    record["extents"]["image"] = extents
    with pytest.raises(FormatError, match=r"^p: header is malformed \(.*\)\. Convert the images again\.$"):
        Header.from_bytes(json.dumps(record).encode(), "p")


SIZES = {"of": "image"}
MASK = {"layout": "HW", "of": "image", "sampling": "nearest"}


def own_sizes(
    about: dict[str, object], codec: object = None, name: str = "mask", size: object = "<i4"
) -> bytes:
    """The header of a pack with a field of pictures of sizes of their own, and their heights and widths."""
    fields = (
        Field(name, "|u1", None, about, codec),
        *(Field(side, size, (), SIZES) for side in ("height", "width") if size is not None),
    )
    extents = {f.name: (Extent("", 0, 7, f.row_bytes),) for f in fields}
    return Header(7, 3, fields, extents | {f"{name}.offsets": (Extent("", 0, 8, 8),)}).to_bytes()


PNG = {"name": "png", "shape": None}


@pytest.mark.parametrize(
    ("about", "codec", "own"),
    [
        (MASK, PNG, ("png", "|u1", None)),
        (MASK | {"layout": "HWC", "channels": 3, "dtype": "<u2"}, PNG, ("png", "<u2", 3)),
        (MASK | {"dtype": "<f4"}, None, (None, "<f4", None)),
        ({"layout": "HWC", "color": "rgba"}, None, (None, "|u1", 4)),
        ({"layout": "HWC", "color": "gray"}, {"name": "jpeg", "shape": None}, ("jpeg", "|u1", 1)),
        (MASK, {"name": "later"}, ("later", "|u1", None)),
    ],
)
def test_pictures_of_sizes_of_their_own(about: dict[str, object], codec: object, own: tuple[object, ...]):
    header = Header.from_bytes(own_sizes(about, codec), "x")
    assert header.fields[0].own_size == own
    assert [f.by_default for f in header.fields] == [True, False, False]
    assert [f.own_size for f in header.fields[1:]] == [None, None]


@pytest.mark.parametrize(
    ("about", "codec", "size"),
    [
        (MASK, None, None),
        (MASK, None, "<i8"),
        (MASK | {"dtype": "<f4"}, PNG, "<i4"),
        (MASK | {"dtype": "<f8"}, None, "<i4"),
        (MASK | {"layout": "HWC"}, PNG, "<i4"),
        (MASK | {"layout": "HWC", "channels": 5}, PNG, "<i4"),
        (MASK | {"layout": "HWC", "channels": 0}, None, "<i4"),
    ],
)
def test_pictures_that_cannot_be_read_are_refused(about: dict[str, object], codec: object, size: object):
    with pytest.raises(FormatError, match="header is malformed"):
        Header.from_bytes(own_sizes(about, codec, size=size), "x")


def test_normalization_is_the_recorded_one_else_the_packs_own():
    own, other = HEADER.statistics["image"], {"mean": [0.5, 0.5, 1], "std": [0.25, 0.0, 0.25]}
    assert HEADER.normalization == own
    assert replace(HEADER, statistics={}).normalization == {}
    recorded = replace(HEADER, provenance={"options": {"normalize": other}})
    assert recorded.normalization == Header.from_bytes(recorded.to_bytes(), "p").normalization == other
    assert recorded.statistics["image"] == own


def test_the_split_train_is_measured_apart():
    train = {"image": {"mean": [0.5, 0.5, 1.0], "std": [0.25, 0.0, 0.25]}}
    measured = replace(HEADER, train_statistics=train)
    again = Header.from_bytes(measured.to_bytes(), "p")
    assert again.normalization == measured.normalization == train["image"] != HEADER.normalization
    assert again.statistics == HEADER.statistics
    assert b"train_statistics" not in HEADER.to_bytes()
    assert Header.from_bytes(HEADER.to_bytes(), "p").train_statistics == {}
    for wrong in (b'"train_statistics":3', b'"train_statistics":{"image":[1]}'):
        forged = HEADER.to_bytes().replace(b'"version":1', wrong + b',"version":1')
        with pytest.raises(FormatError, match="header is malformed"):
            Header.from_bytes(forged, "p")


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        {},
        {"mean": [0.5]},
        {"mean": [0.5], "std": [0.5, 0.5]},
        {"mean": [0.5], "std": ["x"]},
        {"mean": [0.5], "std": [True]},
        {"mean": 1, "std": 1},
        {"mean": [0.5], "std": [0.5], "more": []},
    ],
)
def test_a_malformed_normalization_is_refused(value: object):
    record = json.loads(HEADER.to_bytes()) | {"provenance": {"options": {"normalize": value}}}
    with pytest.raises(FormatError, match=r"^p: header is malformed \(ValueError\(.normalize is "):
        Header.from_bytes(json.dumps(record).encode(), "p")


def test_columns_blocks_and_row_bytes():
    assert HEADER.columns == ("image", "label", "key", "key.offsets")
    assert HEADER.blocks == 3
    assert [f.row_bytes for f in HEADER.fields] == [12, 8, 1]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"format": "other"}, "is not one of packer's"),
        ({"rows": 1 << 62}, f"is malformed (ValueError('{1 << 62} is not a size'))"),
        ({"rows": -1}, "is malformed (ValueError('-1 is not a size'))"),
        ({"rows": 7.0}, "is malformed (ValueError('7.0 is not a size'))"),
        ({"rows": True}, "is malformed (ValueError('True is not a size'))"),
        ({"block_rows": 8}, "is malformed (ValueError('block_rows is 8 of 7 rows'))"),
        ({"fields": []}, "is malformed (ValueError('fields are []'))"),
        ({"fields": None}, "is malformed (TypeError(\"'NoneType' object is not iterable\"))"),
        ({"extents": {}}, "is malformed (ValueError('extents are given for []'))"),
        ({"classes": 5}, "is malformed (TypeError(\"'int' object is not iterable\"))"),
    ],
)
def test_each_malformed_header_is_one_sentence(change: dict[str, object], found: str):
    record = json.loads(HEADER.to_bytes()) | change
    with pytest.raises(FormatError) as error:
        Header.from_bytes(json.dumps(record).encode(), "p")
    assert str(error.value) == f"p: header {found}. Convert the images again."


def test_a_header_of_another_version():
    record = json.loads(HEADER.to_bytes()) | {"version": 2}
    with pytest.raises(FormatError) as error:
        Header.from_bytes(json.dumps(record).encode(), "p")
    assert str(error.value) == (
        "p: format version is 2; this packer reads 1. Upgrade packer, or convert the images again."
    )


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("fields", 0, "name"), "../image"),
        (("fields", 0, "name"), "label"),
        (("fields", 0, "dtype"), "|O"),
        (("fields", 0, "dtype"), ">i8"),
        (("fields", 0, "shape"), [2, 0, 3]),
        (("fields", 0, "shape"), [1 << 30, 1 << 30]),
        (("fields", 2, "dtype"), "<i8"),
        (("extents", "image", 0, 0), "../other.npy"),
        (("extents", "image", 0, 0), ".."),
        (("extents", "image", 0, 0), "."),
        (("extents", "image", 0, 0), "a\0b"),
        (("extents", "image", 0, 0), "\ud800"),
        (("extents", "image", 0, 2), 6),
        (("extents", "image", 0, 3), 13),
        (("extents", "image", 0, 1), 1 << 63),
        (("extents", "key.offsets", 0, 2), 7),
        (("extents", "image", 0), ["", 100, 7, 12, 84]),  # as if it were compressed
        (("fields", 0, "codec"), {"name": "gzip", "level": 1}),  # and the other way round
        (("fields", 2, "codec"), {"level": 1}),
        (("fields", 2, "codec"), {"name": 7}),
        (("fields", 2, "codec"), {"name": "jpeg", "shape": [8, 8]}),
        (("fields", 2, "codec"), {"name": "jpeg", "shape": [8, 0, 3]}),
        (("fields", 2, "codec"), {"name": "jpeg", "shape": [1 << 20, 1 << 20, 3]}),
        (("fields", 2, "codec"), "jpeg"),
        (("splits", "train"), [[0, 8]]),
        (("splits", "train"), [[3, 5], [0, 2]]),
        (("splits", "train"), [[0, 4], [3, 5]]),
        (("splits", "train"), [[5, 3]]),
        (("splits", "train"), [0, 5]),
    ],
)
def test_members_that_contradict_each_other_are_refused(place: tuple[object, ...], value: object):
    record = json.loads(HEADER.to_bytes())
    inner = record
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    with pytest.raises(FormatError, match=r"^p: header is malformed \(.*\)\. Convert the images again\.$"):
        Header.from_bytes(json.dumps(record).encode(), "p")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_noise_is_a_format_error(data: bytes):
    with pytest.raises(FormatError):
        Header.from_bytes(data, "p")


@given(st.data())
def test_a_changed_byte_never_escapes_as_another_error(data: st.DataObject):
    text = bytearray(HEADER.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 127))
    with contextlib.suppress(FormatError):
        Header.from_bytes(bytes(text), "p")


@given(rows=st.integers(1, 10**9), row_bytes=st.integers(1, 1 << 24))
def test_blocks_exceed_the_chunk_cache_and_stay_few(rows: int, row_bytes: int):
    size = block_rows(rows, row_bytes)
    assert 1 <= size <= rows
    assert size == rows or size * row_bytes >= BLOCK_BYTES
    assert -(-rows // size) <= MAX_BLOCKS


COLUMN = {
    "name": "x", "type": "number", "role": "feature", "missing": "nan", "fill": None, "indicator": True, "log1p": False,
    "standardize": None, "categories": None, "one_hot": False, "field": None,
    "statistics": {
        "rows": 3, "missing": 1, "mean": 0.5, "std": 0.5, "min": 0.0, "max": 1.0, "integral": True,
        "histogram": {"edges": [0.0, 1.0], "counts": [1, 1]},
    },
}  # fmt: skip
CATEGORY = COLUMN | {
    "name": "caf\u00e9", "type": "category", "indicator": False, "categories": ["a"],
    "statistics": {"rows": 3, "missing": 0, "distinct": 1, "counts": [["a", 3]]},
}  # fmt: skip
TABLE = {
    "columns": [COLUMN, CATEGORY],
    "features": ["x", "x.missing"],
    "categories": ["caf\u00e9"],
    "dtype": "<f4",
    "label": None,
    "fit": "all",
    "reading": {"na": ["?"]},
    "skipped": {"rows": 1, "reasons": {"is odd": 1}, "first": [{"key": "x.csv: line 3", "reason": "is odd"}]},
}
FROM_TABLE = Header(
    rows=3,
    block_rows=3,
    fields=(Field("features", "<f4", (2,)), Field("categories", "<i8", (1,))),
    extents={"features": (Extent("", 0, 3, 8),), "categories": (Extent("", 24, 3, 8),)},
    table=TABLE,
)


def test_the_mapping_of_a_table_comes_back_and_other_packs_do_not_have_the_member():
    data = FROM_TABLE.to_bytes()
    assert Header.from_bytes(data, "x") == FROM_TABLE
    assert Header.from_bytes(data, "x").to_bytes() == data
    # Members with their usual values are left out.
    assert (
        b'"table":{"categories":["caf\\u00e9"],"columns":[{"indicator":true,"name":"x","statistics":{' in data
    )
    assert b"table" not in HEADER.to_bytes()
    assert Header.from_bytes(data.replace(b'"table":{', b'"other":{'), "x").table is None


@pytest.mark.parametrize(
    "table",
    [
        3, [], {}, "x", TABLE | {"columns": []}, TABLE | {"columns": [1]}, TABLE | {"columns": [{}]}, TABLE | {"columns": [{"name": 1}]},
        TABLE | {"columns": [{"name": "x"}, {"name": "x"}]}, TABLE | {"features": None}, TABLE | {"features": ["x"]},
        TABLE | {"features": ["x", 1]}, TABLE | {"categories": []}, TABLE | {"categories": 1}, TABLE | {"fill": [{"a": float("inf")}]},
        TABLE | {"fill": float("nan")}, TABLE | {"label": 3}, TABLE | {"dtype": None}, TABLE | {"reading": {"na": [None]}},
        TABLE | {"skipped": {"rows": 1, "reasons": {"x": "y"}, "first": []}}, TABLE | {"skipped": 3},
        *(TABLE | {"columns": [COLUMN | {member: 7}, CATEGORY]} for member in COLUMN if member != "fill"),
        TABLE | {"columns": [COLUMN | {"fill": True}, CATEGORY]}, TABLE | {"columns": [COLUMN | {"statistics": None}, CATEGORY]},
        *(
            TABLE | {"columns": [COLUMN | {"statistics": COLUMN["statistics"] | {member: [wrong]}}, CATEGORY]}
            for member in COLUMN["statistics"]
            for wrong in ("a", None, -1)
        ),
        *(
            TABLE | {"columns": [COLUMN, CATEGORY | {"statistics": CATEGORY["statistics"] | {member: ["a"]}}]}
            for member in CATEGORY["statistics"]
        ),
    ],
)  # fmt: skip
def test_malformed_mappings_of_tables(table: object):
    record = json.loads(FROM_TABLE.to_bytes()) | {"table": table}
    with pytest.raises(FormatError, match=r"^x: header is (malformed|not JSON) \("):
        Header.from_bytes(json.dumps(record).encode(), "x")


def test_a_message_is_short_whatever_the_header_holds() -> None:
    record = json.loads(HEADER.to_bytes())
    record["splits"] = {"a": [[0, 1]] * 10_000}
    with pytest.raises(FormatError) as caught:
        Header.from_bytes(json.dumps(record).encode(), "a.h5")
    assert len(str(caught.value)) < 500
    assert str(caught.value).endswith(" ...). Convert the images again.")


def test_very_many_extents_are_refused_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_module, "read_json", None)  # would be a TypeError
    with pytest.raises(FormatError) as caught:
        Header.from_bytes(b"[" * (header_module.MAX_EXTENTS + 1), "a.h5")
    assert str(caught.value) == (
        "a.h5: header is not JSON (it lists 524,289 extents; at most 524,288 are read). Convert the images again."
    )
