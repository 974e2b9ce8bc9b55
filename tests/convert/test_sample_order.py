"""Which sample stands in which row: shuffles, drawn splits, and holes that are closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import randomness
from packer.convert.sample_order import arrange, fill
from packer.convert.split_assignment import Owners
from tests.convert.plain_rows import PlainRows, members, order_of

SPLITS = [
    None,
    "a=0.5,b=0.3,c=0.2",
    "a=rest,b=last:37",
    "b=rest,c=0.25,a=first:11,d=last:5",
    {"x": range(400), "y": "rest"},
    "a=rest,b=100,c=last:7",
]


@pytest.mark.parametrize("split", SPLITS, ids=str)
@given(rows=st.integers(410, 1200), shuffle=st.booleans(), seed=st.integers(-5, 1 << 70), data=st.data())
def test_splits_lie_one_after_the_other_each_shuffled_in_itself(
    split: Any, rows: int, shuffle: bool, seed: int, data: st.DataObject
):
    order, expected = order_of(rows, split, shuffle=shuffle, seed=seed), members(PlainRows(rows), split, seed)
    samples = order.samples
    assert samples.dtype == np.int64
    assert list(order.splits) == ([] if split is None else sorted(expected))
    first = 0
    for name, own in expected.items():
        a, b = order.splits.get(name, (0, rows))
        assert (a, b) == (first, first + len(own))
        key = randomness.key(seed, "convert", *([name] if name else []))
        drawn = own[randomness.permute(np.arange(len(own)), len(own), key)] if shuffle else own
        assert samples[a:b].tolist() == drawn.tolist()
        first = b
    assert first == rows
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    shard = order.part(start, stop)
    assert shard.samples.tolist() == samples[start:stop].tolist()
    for name, (a, b) in shard.splits.items():
        low, high = order.splits[name]
        assert (
            shard.samples[a:b].tolist()
            == samples[max(low, start) : max(low, start, min(high, stop))].tolist()
        )


@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_order_in_a_file_is_the_same(
    split: Any, shuffle: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plain = order_of(1000, split, shuffle=shuffle, seed=4)
    monkeypatch.setattr("packer.convert.sample_order._AT_ONCE", 7)
    mapped = order_of(1000, split, shuffle=shuffle, seed=4, folder=str(tmp_path))
    assert mapped.splits == plain.splits
    assert isinstance(mapped.samples, np.memmap)
    assert mapped.samples.tolist() == plain.samples.tolist()
    assert list(tmp_path.iterdir()) == []


def test_rows_in_no_split_and_splits_without_rows_are_left_out():
    owners = Owners(("a", "none", "b"), np.array([2, 0, 3, 2, 0]))
    order = arrange(owners, shuffle=False, seed=7)
    assert order.samples.tolist() == [1, 4, 0, 3]
    assert order.splits == {"a": (0, 2), "none": (2, 2), "b": (2, 4)}
    assert arrange(owners, shuffle=True, seed=7).splits == order.splits


def test_an_order_is_frozen_and_depends_on_name_and_seed_alone():
    """Packs of one seed must not change from version to version."""
    assert order_of(1000, seed=3).samples[:5].tolist() == [646, 925, 894, 541, 520]
    split = {"test": "last:90", "train": range(500), "val": range(500, 910)}
    order = order_of(1000, split, seed=3)
    assert order.splits == {"test": (0, 90), "train": (90, 590), "val": (590, 1000)}
    assert order.samples[:5].tolist() == [956, 933, 981, 949, 948]
    alone = order_of(90, "test=rest", seed=3).samples
    assert (order.samples[:90] - 910).tolist() == alone.tolist()
    assert alone.tolist() != order_of(90, "test=rest", seed=4).samples.tolist()
    assert alone.tolist() != order_of(90, "val=rest", seed=3).samples.tolist()


@st.composite
def holed(draw: st.DrawFn) -> tuple[list[int], dict[str, tuple[int, int]], int]:
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    rows = sum(sizes)
    whole = draw(st.sets(st.integers(0, len(sizes) - 1)))  # splits that are empty altogether
    bounds = np.cumsum([0, *sizes]).tolist()
    splits = {f"s{k}": (bounds[k], bounds[k + 1]) for k in range(len(sizes))}
    holes = set(draw(st.lists(st.integers(0, rows - 1), max_size=rows)))
    for k in whole:
        holes |= set(range(*splits[f"s{k}"]))
    return sorted(holes), splits if draw(st.booleans()) else {}, rows


@given(holed())
def test_moves_leave_the_good_rows_of_each_split_together(
    case: tuple[list[int], dict[str, tuple[int, int]], int],
):
    holes, splits, rows = case
    moves, after, kept = fill(holes, splits, rows)
    content: list[int | None] = [None if row in set(holes) else row for row in range(rows)]
    good = [row for row in content if row is not None]
    for to, origin in moves.items():  # in order, as the writer copies them
        assert content[origin] == origin  # what moves has not been written over, nor moved before
        content[to] = content[origin]
    assert kept == len(good)
    assert sorted(content[:kept]) == good  # type: ignore[type-var]
    assert all(to < kept for to in moves)
    assert list(after) == list(splits)
    first = 0
    for name, (start, stop) in splits.items():
        own = [row for row in good if start <= row < stop]
        assert after[name] == (first, first + len(own))
        assert sorted(content[first : first + len(own)]) == own  # type: ignore[type-var]
        first += len(own)
    behind = sum(
        max(1, sum(hole < stop for hole in holes)) for _, stop in (splits or {"": (0, rows)}).values()
    )
    assert len(moves) <= (behind if holes else 0)


def test_without_holes_nothing_moves():
    assert fill([], {"a": (0, 4), "b": (4, 6)}, 6) == ({}, {"a": (0, 4), "b": (4, 6)}, 6)


def test_the_last_good_rows_of_a_split_fill_its_holes():
    assert fill([1, 5], {}, 6) == ({1: 4}, {}, 4)
    assert fill([0], {"a": (0, 3), "b": (3, 6)}, 6) == ({0: 2, 2: 5}, {"a": (0, 2), "b": (2, 5)}, 5)
    assert fill([0, 1, 2], {"a": (0, 3), "b": (3, 6)}, 6) == (
        {0: 3, 1: 4, 2: 5},
        {"a": (0, 0), "b": (0, 3)},
        3,
    )
