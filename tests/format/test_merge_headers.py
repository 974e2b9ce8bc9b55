from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from packer.format.fields import Extent, Field
from packer.format.header import Header
from packer.packs.pack_opening import open_pack
from packer.packs.shards import merge_headers
from tests.format.packs import FORMATS, Content, write_shards

FIELDS = (Field("image", "|u1", (2, 2, 3)), Field("key", "|u1", None))


def header(rows: int, **members: object) -> Header:
    extents = {
        "image": (Extent("", 100, rows, 12),),
        "key": (Extent("", 200, 9, 1),),
        "key.offsets": (Extent("", 300, rows + 1, 8),),
    }
    return Header(rows, min(rows, 2), FIELDS, extents, **members)  # type: ignore[arg-type]


def test_extents_follow_each_other_and_name_their_files():
    one, two = header(3, seed=5, classes=("a",)), header(4, seed=5, classes=("a",))
    both = merge_headers([one, two])
    assert (both.rows, both.fields, both.seed, both.classes) == (7, FIELDS, 5, ("a",))
    assert both.extents["image"] == (Extent("0", 100, 3, 12), Extent("1", 100, 4, 12))
    assert both.extents["key.offsets"] == (Extent("0", 300, 4, 8), Extent("1", 300, 5, 8))


def test_files_of_directories_and_compressed_blocks():
    extents = {"image": (Extent("image.npy", 128, 2, 12, 7), Extent("image.npy", 135, 1, 12, 5))}
    part = replace(header(3), extents=extents)
    assert merge_headers([part, part]).extents["image"] == (
        Extent("0/image.npy", 128, 2, 12, 7),
        Extent("0/image.npy", 135, 1, 12, 5),
        Extent("1/image.npy", 128, 2, 12, 7),
        Extent("1/image.npy", 135, 1, 12, 5),
    )


def test_splits_are_counted_on_and_joined_where_they_touch():
    parts = [
        header(10, splits={"train": ((0, 7), (8, 10)), "val": ((7, 8),)}),
        header(5, splits={"train": ((0, 5),)}),
        header(5, splits={"train": ((1, 4),), "test": ((4, 5),)}),
    ]
    assert merge_headers(parts).splits == {
        "train": ((0, 7), (8, 15), (16, 19)),
        "val": ((7, 8),),
        "test": ((19, 20),),
    }


def test_skipped_inputs_follow_each_other():
    skipped = [{"key": name, "reason": "is empty"} for name in "abc"]
    parts = [header(1, skipped=tuple(skipped[:2])), header(1), header(1, skipped=(skipped[2],))]
    assert merge_headers(parts).skipped == tuple(skipped)


def test_shards_of_one_table_have_its_mapping():
    table = {"columns": [{"name": "x"}], "features": ["x"], "categories": []}
    assert merge_headers([header(1, table=table), header(2, table=dict(table))]).table == table
    assert merge_headers([header(1, table=table), header(2, table=table | {"fit": "train"})]).table is None
    assert merge_headers([header(1, table=table), header(2)]).table is None


def test_one_header_stays_as_it_is_but_for_the_files():
    alone = header(3, splits={"train": ((0, 2),)}, statistics={"image": {"mean": [0.5], "std": [0.25]}})
    both = merge_headers([alone])
    assert replace(both, extents=alone.extents) == alone


def statistics(pixels: np.ndarray) -> dict[str, dict[str, list[float]]]:
    flat = pixels.reshape(-1, 3) / 255
    return {"image": {"mean": flat.mean(0).tolist(), "std": flat.std(0).tolist()}}


@pytest.mark.parametrize("spread", [1, 40, 255])
def test_statistics_are_those_of_all_rows(spread: int):
    draws = np.random.default_rng(spread)
    rows = (1, 40, 3, 16)
    levels = draws.integers(0, 256 - spread, (4, 1, 1, 1, 3))
    pixels = [
        level + draws.integers(0, spread + 1, (n, 4, 4, 3)) for n, level in zip(rows, levels, strict=True)
    ]
    both = merge_headers([header(n, statistics=statistics(p)) for n, p in zip(rows, pixels, strict=True)])
    expected = statistics(np.concatenate(pixels))["image"]
    for name in ("mean", "std"):
        assert both.statistics["image"][name] == pytest.approx(expected[name], rel=0, abs=1e-12)


def test_equal_pixels_have_no_deviation():
    parts = [header(n, statistics={"image": {"mean": [0.1], "std": [0.0]}}) for n in (3, 7)]
    found = merge_headers(parts).statistics["image"]
    assert found["mean"] == pytest.approx([0.1], abs=1e-15)
    assert found["std"] == pytest.approx([0.0], abs=1e-8)  # what is left of 0.1 * 0.1 - 0.1 * 0.1


@pytest.mark.parametrize(
    "other", [{}, {"image": {"mean": [0.5], "std": [0.5]}}, {"image": {"mean": [0.5] * 3}}, {"depth": {}}]
)
def test_statistics_that_not_all_have_are_left_out(other: dict[str, dict[str, list[float]]]):
    full = header(3, statistics={"image": {"mean": [0.5] * 3, "std": [0.5] * 3}})
    assert merge_headers([full, header(2, statistics=other)]).statistics == {}
    assert merge_headers([header(2, statistics={}), full]).statistics == {}


@pytest.mark.parametrize("format", FORMATS)
def test_of_a_pack_on_the_disk(tmp_path: Path, format: str):
    content = Content.random("raw", 12)
    folder = write_shards(
        tmp_path / "p", content, (4, 8), format=format, splits={"a": ((0, 1), (3, 6))}, classes=("cat",)
    )
    pack = open_pack(folder)
    assert pack.header.splits == {"a": ((0, 1), (3, 6))}
    assert [part.header.splits for part in pack.parts] == [{"a": ((0, 1), (3, 4))}, {"a": ((0, 2),)}]
    assert pack.header.classes == ("cat",)
    assert pack.header == merge_headers([part.header for part in pack.parts])
    assert all(Path(pack.file(e)).is_file() for extents in pack.header.extents.values() for e in extents)
