"""Which row of a table stands in which row of its pack: splits by share, from the ends, computed; records in that order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.convert.sample_order import arrange
from packer.convert.splits import Split, parse_parts, stratified
from packer.errors import UsageError
from packer.tables.table_order import table_order
from packer.tables.table_splits import Owners


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            "a=first:60,b=last:50",
            "needs 110 rows from the ends; there are 100. Pass fewer, or shares, as train=0.9,val=0.1.",
        ),
        ("a=80,b=30", "needs 110 rows; there are 100. Pass fewer, or shares, as train=0.9,val=0.1."),
        ("a=60,b=30", "leaves 10 of 100 rows in no split. Add one with rest, as in train=rest."),
        ("a=first:60", "leaves 40 of 100 rows in no split. Add one with rest, as in train=rest."),
    ],
)
def test_orders_of_tables_that_cannot_be(split: str, message: str):
    with pytest.raises(UsageError) as error:
        table_order(100, split=Split(split), shuffle=True, seed=0)
    assert str(error.value) == f"split {split}: {message}"


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("a=0.999,b=0.001", "b=0.001: gets none of 100 rows"),
        ("a=rest,b=last:100", "a=1: gets none of 0 rows"),
    ],
)
def test_splits_of_tables_that_would_be_empty(split: str, message: str):
    with pytest.raises(UsageError) as error:
        table_order(100, split=Split(split), shuffle=True, seed=0)
    assert str(error.value) == f"split {message}. Pass a larger share."


GOLDEN = {
    "test": [956, 933, 981, 949, 948],
    "train": [177, 817, 599, 170, 527],
    "val": [854, 802, 608, 869, 407],
    "all": [646, 925, 894, 541, 520],
}


def test_a_tables_order_is_frozen():
    """Packs of one seed must not change from version to version."""
    split = "train=0.7,val=0.3,test=last:90"
    order = table_order(1000, split=Split.of(split), shuffle=True, seed=3)
    assert order.splits == {"test": (0, 90), "train": (90, 727), "val": (727, 1000)}
    assert order.samples[:5].tolist() == GOLDEN["test"]
    assert order.samples[90:95].tolist() == GOLDEN["train"]
    assert order.samples[727:732].tolist() == GOLDEN["val"]
    assert table_order(1000, split=None, shuffle=True, seed=3).samples[:5].tolist() == GOLDEN["all"]


def test_without_splits_a_table_is_ordered_as_images_are():
    order = table_order(1000, split=None, shuffle=True, seed=7)
    assert order.splits == {}
    assert (
        order.samples[:].tolist() == arrange({"": np.arange(1000)}, shuffle=True, seed=7).samples[:].tolist()
    )
    assert table_order(9, split=None, shuffle=False, seed=7).samples[:].tolist() == list(range(9))


SPLITS = [
    None,
    "a=0.5,b=0.3,c=0.2",
    "a=rest,b=last:37",
    "b=rest,c=0.25,a=first:11,d=last:5",
    "x=first:400,y=rest",
    "a=rest,b=100,c=last:7",
]


@pytest.mark.parametrize("split", SPLITS)
@given(rows=st.integers(410, 1200), shuffle=st.booleans(), seed=st.integers(0, 1 << 40), data=st.data())
def test_tables_hold_each_row_once_where_it_is_said_to_be(
    split: str | None, rows: int, shuffle: bool, seed: int, data: st.DataObject
):
    order = table_order(rows, split=Split.of(split), shuffle=shuffle, seed=seed)
    samples = order.samples
    everything = samples[:]
    assert len(samples) == rows
    assert everything.dtype == np.int64
    assert sorted(everything.tolist()) == list(range(rows))
    # splits
    parts = {} if split is None else parse_parts(split)
    assert list(order.splits) == list(parts)
    spans = list(order.splits.values())
    assert [a for a, _ in spans] + [rows] * bool(spans) == [0] * bool(spans) + [b for _, b in spans]
    for a, b in spans or [(0, rows)]:
        assert shuffle or (np.diff(everything[a:b]) > 0).all()
    for name, value in parts.items():
        a, b = order.splits[name]
        end, _, count = str(value).partition(":")
        if end in ("first", "last"):
            low = 0 if end == "first" else rows - int(count)
            assert sorted(everything[a:b].tolist()) == list(range(low, low + int(count)))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(0, rows))
    # a shard
    part = order.part(start, max(start, stop))
    assert part.samples[:].tolist() == everything[start : max(start, stop)].tolist()
    for name, (a, b) in part.splits.items():
        low, high = order.splits[name]
        kept = everything[max(low, start) : max(low, start, min(high, stop))]
        assert part.samples[a:b].tolist() == kept.tolist()


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_order_in_a_file_is_the_same(
    split: str | None, shuffle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = table_order(1000, split=Split.of(split), shuffle=shuffle, seed=4)
    monkeypatch.setattr("packer.tables.table_order._DRAWN", 7)
    mapped = table_order(1000, split=Split.of(split), shuffle=shuffle, seed=4, path=str(tmp_path / "order"))
    assert mapped.splits == plain.splits
    assert isinstance(mapped.samples, np.memmap)
    assert mapped.samples.tolist() == plain.samples[:].tolist()


def test_drawn_splits_are_no_pattern_and_differ_by_seed():
    first, second = (
        table_order(5000, split=Split("train=0.8,val=0.2"), shuffle=False, seed=seed) for seed in (0, 1)
    )
    val = [order.samples[slice(*order.splits["val"])] for order in (first, second)]
    assert len(val[0]) == len(val[1]) == 1000
    assert len(set(np.diff(val[0]).tolist())) > 10
    assert 120 < len(np.intersect1d(*val)) < 280  # a fifth of a fifth, by chance
    # the same rows whether or not they are shuffled
    shuffled = table_order(5000, split=Split("train=0.8,val=0.2"), shuffle=True, seed=0)
    assert sorted(shuffled.samples[slice(*shuffled.splits["val"])].tolist()) == val[0].tolist()


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_of_known_splits_are_ordered_as_images_are(
    shuffle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("packer.tables.table_order._DRAWN", 70)
    strata = np.random.default_rng(0).integers(0, 5, 1000)
    members = stratified(strata, 1000, {"a": 0.7, "b": 0.3}, 3)
    expected = arrange(members, shuffle=shuffle, seed=3)
    owners = Owners(("a", "b"), np.isin(np.arange(1000), members["b"]).astype(np.uint8))
    for path in (None, str(tmp_path / "order")):
        split = Split("a=0.7,b=0.3")
        order = table_order(1000, split=split, shuffle=shuffle, seed=3, path=path, owners=owners)
        assert order.splits == expected.splits
        assert order.samples.tolist() == expected.samples.tolist()
    # Beside rows that are taken by their place, and by a column.
    split = Split("a=0.7,b=0.3,z=first:10")
    order = table_order(1010, split=split, shuffle=shuffle, seed=3, owners=owners)
    assert sorted(order.samples[1000:].tolist()) == list(range(10))
    assert (order.samples[:1000] - 10).tolist() == expected.samples.tolist()
    order = table_order(1000, split=Split(column="s"), shuffle=shuffle, seed=3, owners=owners)
    assert (order.splits, order.samples.tolist()) == (expected.splits, expected.samples.tolist())
