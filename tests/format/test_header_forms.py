"""Each member of a header has one form, checked once: whatever stands in its place, only packer's errors follow."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from packer import PackerError
from packer.errors import FormatError
from packer.format.fields import Extent, Field
from packer.format.header import Header
from packer.packs.description import describe
from packer.packs.pack import Pack

BOXES = Field("boxes", "|u1", None, {"dtype": "<f4", "row_shape": [4], "format": "xyxy"})
HEADER = Header(
    rows=4,
    block_rows=2,
    fields=(
        Field("image", "|u1", None, {"layout": "HWC", "color": "rgb"}, {"name": "jpeg", "shape": [8, 9, 3]}),
        Field("mask", "|u1", None, {"layout": "HW", "of": "image", "sampling": "nearest"}, {"name": "png"}),
        Field("packed", "<u2", (4,), {"bits": 1, "fit": "crop"}, {"name": "gzip", "level": 1}),
        Field("label", "<f4", (2,), {"columns": ["a", "b"]}),
        BOXES,
        Field("key", "|u1", None, {"encoding": "utf-8"}),
    ),
    extents={
        "image": (Extent("", 0, 900, 1),),
        "mask": (Extent("", 900, 90, 1),),
        "packed": (Extent("", 1000, 2, 8, 9), Extent("", 1009, 2, 8, 9)),
        "label": (Extent("", 1100, 4, 8),),
        "boxes": (Extent("", 1200, 64, 1),),
        "key": (Extent("", 1300, 9, 1),),
        **{f"{name}.offsets": (Extent("", 2000, 5, 8),) for name in ("image", "mask", "boxes", "key")},
    },
    classes=("cat", "dog"),
    splits={"train": ((0, 2), (3, 4))},
    seed=0,
    statistics={"image": {"mean": [0.5] * 3, "std": [0.2] * 3}},
    train_statistics={"image": {"mean": [0.4] * 3, "std": [0.1] * 3}},
    provenance={
        "options": {
            "size": [8, 9],
            "fit": "crop",
            "channels": "rgb",
            "max_pixels": 99,
            "normalize": {"mean": [0.5], "std": [0.5]},
        },
        "source": {"names": ["a.csv"], "digests": ["00"], "images": 4, "reading": {}},
        "versions": {"packer": "1"},
    },
    skipped=({"key": "a", "reason": "b"},),
)
DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**63, 10**99, 0.5, 1e308, "", "label", "x" * 9000, "\x1b[31m\0\u202e<b>", "\ud800", [], {}, DEEP,
    [None], [1, 2], [[1, 1], [2, 3]], ["a"], {"a": 1}, "<f4", "keep", {"name": "jpeg", "shape": None},
)  # fmt: skip


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Every node of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, *path, key)


RECORD = json.loads(HEADER.to_bytes())


def forged(path: tuple[Any, ...], value: Any) -> bytes:
    """The header with another value in one place."""
    record = copy.deepcopy(RECORD)
    inner = record
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(record).encode()


@pytest.mark.parametrize("member", sorted(RECORD))
def test_any_value_anywhere_is_refused_or_has_the_form_that_readers_rely_on(member: str) -> None:
    for path in [(member,), *places(RECORD[member], member)]:
        for value in VALUES:
            with suppress(PackerError):
                header = Header.from_bytes(forged(path, value), "p")
                pack = Pack("p", header, b"")
                assert not set("\x1b\0\u202e").intersection(pack._repr_html_()), (path, value)
                assert describe("p", header, [], [])
                assert header.normalization.keys() in ({"mean", "std"}, set())
                for f in header.fields:
                    assert f.loaded.row_bytes + f.deep + f.by_default > 0
                    assert f.own_size is None or f.most > 0


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("fields", 4, "about", "dtype"), [None]),
        (("fields", 4, "about", "dtype"), "label"),
        (("fields", 4, "about", "row_shape"), 1e308),
        (("fields", 4, "about"), {"row_shape": [4]}),
        (("fields", 0, "about", "color"), "label"),
        (("fields", 1, "about", "layout"), 1),
        (("fields", 5, "about", "encoding"), "idna"),
        (("fields", 5, "shape"), [1]),
        (("fields", 3, "about"), {"of": "image"}),
        (("provenance", "options", "fields"), 0.5),
        (("provenance", "options", "choices"), [1]),
        (("provenance", "source", "images"), "3"),
        (("provenance", "source", "reading"), {"types": "abc"}),
        (("provenance", "source", "reading"), {"na": 3}),
        (("train_statistics", "image", "std"), None),
        (("fields", 3, "about", "columns"), [1]),
        (("fields", 3, "about", "points"), ["a"]),
        (("fields", 3, "about", "points"), "ab"),
        (("fields", 3, "about", "flip_pairs"), [["a", "b"]]),
        (("fields", 3, "about", "flip_pairs"), ["ab"]),
        (("fields", 3, "about", "flip_pairs"), [["a", ["b"]]]),
        (("fields", 0, "codec", "quality"), 0),
        (("statistics", "image", "mean", 0), 1e308),
        (("provenance", "options", "max_pixels"), ""),
        (("provenance", "options", "channels"), [None]),
        (("provenance", "source"), -1),
        (("provenance", "source", "digests", 0), [[1, 1]]),
        (("provenance", "versions"), {"packer": 1}),
        (("skipped",), None),
        (("skipped", 0, "reason"), 0),
        (("classes", 0), "\ud800"),
        (("seed",), True),
        (("complete",), 1),
    ],
)
def test_a_value_of_another_form_is_one_sentence(path: tuple[Any, ...], value: Any) -> None:
    with pytest.raises(
        FormatError, match=r"^p: header is malformed \(.*\)\. Convert the images again\.$"
    ) as error:
        Header.from_bytes(forged(path, value), "p")
    assert len(str(error.value)) < 500


def test_the_unpacked_size_of_rows_is_bounded_by_their_bytes() -> None:
    for path, value, what in [
        (("fields", 0, "codec", "shape"), [65_500, 65_500, 3], "900 bytes cannot hold 4 rows of 'image'"),
        (("extents", "packed", 0, 4), 0, "blocks of 'packed' cannot hold 16 bytes each"),
    ]:
        with pytest.raises(FormatError, match=what):
            Header.from_bytes(forged(path, value), "p")


@pytest.mark.parametrize(("name", "ratio"), [("gzip", 1032), ("zstd", 1 << 15), ("blosc2", 12_288)])
def test_blocks_that_are_all_zeros_are_read_and_no_smaller_ones(name: str, ratio: int) -> None:
    for rows, stored, allowed in ((1, -(-(1 << 31) // ratio), True), (1, (1 << 31) // ratio - 1, False),
                                  (1 << 10, 1 << 30, False), (1 << 4, 1 << 30, True)):  # fmt: skip
        row_bytes = (1 << 31) // (rows if rows > 16 else 16 * rows) * (16 if rows == 1 else 1)
        field = Field("x", "|u1", (row_bytes,), {}, {"name": name})
        header = Header(rows, rows, (field,), {"x": (Extent("", 0, rows, row_bytes, stored),)})
        if allowed:
            assert Header.from_bytes(header.to_bytes(), "p") == header
        else:
            with pytest.raises(FormatError, match=r"blocks of 'x' (cannot hold|take)"):
                Header.from_bytes(header.to_bytes(), "p")
