from __future__ import annotations

import json
import os
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from packer.errors import FormatError, PackerError
from packer.packs.pack_opening import open_pack
from packer.packs.shards import read_index, write_index
from tests.format.packs import FORMATS, KINDS, Content, out_path, write_content, write_shards
from tests.packs.test_shards import text_of

MEMBERS = {
    "classes": ("cat", "dog"),
    "statistics": {"image": {"mean": [0.5, 0.25, 0.1], "std": [1.0, 0.5, 1 / 3]}},
    "provenance": {"options": {"size": [4, 6]}, "versions": {"packer": "0"}},
    "skipped": ({"key": "b\udcffd.jpg", "reason": "is empty"},),
}


@pytest.mark.parametrize("kind", KINDS)
def test_headers_come_back(tmp_path: Path, kind: tuple[str, str]):
    splits = {"train": ((0, 9),), "val": ((9, 20),)}
    rows = (7, 1, 12)
    folder = write_shards(
        tmp_path / "p", Content.random(kind[1], 20), rows, format=kind[0], splits=splits, **MEMBERS
    )
    shards = read_index(str(folder)).shards
    assert list(shards) == [open_pack(shard.path) for shard in shards]


@pytest.mark.parametrize("format", FORMATS)
def test_what_shards_have_in_common_stands_once(tmp_path: Path, format: str):
    folder = write_shards(tmp_path / "p", Content.random("raw", 8), (2, 2, 2, 2), format=format, **MEMBERS)
    packs = [open_pack(part.path) for part in open_pack(folder).parts]
    for number in range(4, 6):
        path = out_path(folder, format, f"0000{number}")
        other = MEMBERS | {"provenance": {"options": {}, "versions": {"packer": "1"}}}
        write_content(path, Content.random("raw", 2), **other)
        packs.append(open_pack(path))
    write_index(str(folder), packs)
    record = json.loads((folder / "index.json").read_bytes())["headers"]
    assert {"fields", "classes", "provenance", "trailer", "block_rows", "extents"} <= record[0].keys()
    others = {"trailer", "extents", "statistics"}
    assert all(own.keys() <= others for own in record[1:4])
    assert all(own.keys() <= {*others, "provenance"} for own in record[4:])
    again = open_pack(folder)
    assert again.parts[5].header == packs[5].header
    assert again.parts[5].header.classes is again.header.classes


def test_memory_is_that_of_one_list_of_class_names(tmp_path: Path):
    names = tuple(f"a class with a long name, number {number}" for number in range(5000))
    folder = write_shards(
        tmp_path / "p", Content.random("raw", 40), (2,) * 20, **(MEMBERS | {"classes": names})
    )
    tracemalloc.start()
    shards = read_index(str(folder)).shards
    one = sum(map(sys.getsizeof, names))
    assert all(own.header.classes is shards[0].header.classes for own in shards)
    assert tracemalloc.get_traced_memory()[0] < 4 * one
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    write_index(str(folder), shards)
    assert tracemalloc.get_traced_memory()[1] - before < 10 * one  # of 20 shards
    tracemalloc.stop()


def test_bytes_of_format_1_do_not_change(tmp_path: Path):
    folder = write_shards(tmp_path / "p", Content.random("raw", 12), (7, 5), format="npy", **MEMBERS)
    record = json.loads((folder / "index.json").read_bytes())
    assert sorted(record) == ["checksum", "format", "headers", "shards", "version"]
    first, second = record["headers"]
    assert first["extents"]["label"] == [["label.npy", 128, 7, 8]]
    assert second["extents"]["label.offsets" if "label.offsets" in second["extents"] else "label"] == [
        ["label.npy", 128, 5, 8]
    ]
    assert first["classes"] == ["cat", "dog"]
    assert "table" not in first
    assert set(second) <= {"rows", "block_rows", "extents", "statistics", "trailer"}
    assert first["trailer"][:4] == "AAAA"  # a directory's container has no length
    assert len(first["trailer"]) == 4 * -(-128 // 3)


@pytest.mark.parametrize("depth", [50, 61])
def test_what_a_reader_would_refuse_is_not_written(tmp_path: Path, depth: int):
    """In a header such options are read; in the index they would be too deep."""
    options: dict[str, Any] = {}
    for _ in range(depth):
        options = {"o": options}
    members = {"provenance": {"options": options}}
    if depth == 50:
        folder = write_shards(tmp_path / "p", Content.random("raw", 4), (2, 2), **members)
        assert open_pack(folder).header.provenance == members["provenance"]
        return
    with pytest.raises(PackerError) as error:
        write_shards(tmp_path / "p", Content.random("raw", 4), (2, 2), **members)
    assert str(error.value) == (
        f"{tmp_path}/p: the index of 2 shards would be unreadable (it is nested more than 64 deep)."
        " Pass fewer, larger shards."
    )
    assert "index.json" not in os.listdir(tmp_path / "p")


def test_a_header_that_is_not_the_sealed_one_is_not_listed(tmp_path: Path):
    """As that of a later version would be, some of which this one does not read."""
    folder = write_shards(tmp_path / "p", Content.random("raw", 4), (2, 2))
    one, two = read_index(str(folder)).shards
    with pytest.raises(FormatError, match="is not the shard that"):
        write_index(str(folder), [one, replace(two, header=one.header)])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three") / "p"
    splits = {"val": ((1, 2), (3, 5))}
    return write_shards(folder, Content.random("raw", 6), (2, 3, 1), splits=splits, **MEMBERS)


def replaced(record: Any, *path: Any, value: Any) -> None:
    for name in path[:-1]:
        record = record[name]
    record[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("headers",), 5, "'int' object is not iterable"),
        (("headers",), [{}, {}], "'trailer'"),
        (("headers", 1), 5, "'int' object has no attribute 'get'"),
        (("headers", 0, "trailer"), "AAAA", "a trailer does not match its shard's seal"),
        (("headers", 1, "trailer"), "A" * 172, "a trailer does not match its shard's seal"),
        (
            ("headers", 1, "seed"),
            [],
            "int() argument must be a string, a bytes-like object or a real number, not 'list'",
        ),
        (("headers", 1, "classes"), ["a"], "its shards have different fields or classes"),
        (("headers", 1, "fields"), [], "its shards have different fields or classes"),
        (("headers", 1, "block_rows"), 4, "block_rows is 4 of 3 rows"),
        (("headers", 1, "rows"), 4, "extents of 'image' do not hold 4 rows"),
        (("headers", 0, "splits"), {"val": [[0, 3]]}, "split 'val' is ((0, 3),) of 2 rows"),
        (("headers", 1, "statistics"), {"image": {"mean": "x"}}, "could not convert string to float: 'x'"),
        (("headers", 1, "extents"), {}, "extents are given for []"),
        (("headers", 1, "extents", "label"), [["", 0, True, 8]], "True is not a size"),
        (("headers", 1, "extents", "label"), [["", 1 << 62, 3, 8]], f"{1 << 62} is not a size"),
        (("headers", 1, "extents", "label"), [["../x", 0, 3, 8]], "extents of 'label' lie outside the pack"),
        (
            ("headers", 1, "extents", "label"),
            [["", 0, 3, 8, 8]],
            "extents of 'label' do not fit its dtype and shape",
        ),
    ],
)
def test_each_impossible_record_is_one_sentence(
    three: Path, tmp_path: Path, path: tuple[Any, ...], value: Any, reason: str
):
    record = json.loads((three / "index.json").read_bytes())
    del record["checksum"]
    replaced(record, *path, value=value)
    record["checksum"] = xxhash.xxh3_128_hexdigest(text_of(record))
    (tmp_path / "index.json").write_bytes(text_of(record))
    with pytest.raises(FormatError) as error:
        open_pack(tmp_path)
    assert str(error.value) == f"{tmp_path}/index.json: is damaged ({reason}). Convert the images again."
