"""Which sample stands in which row: shuffles, drawn splits, and holes that are closed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import randomness
from packer.convert.sample_order import (
    arrange,
    fill,
)


@pytest.mark.parametrize("count", [1, 2, 255, 300])
def test_without_splits_the_rows_are_the_seeds_permutation(count: int):
    samples = np.arange(count)
    order = arrange({"": samples}, shuffle=True, seed=7)
    expected = randomness.permute(samples, count, randomness.key(7, "convert"))
    assert order.samples.tolist() == expected.tolist()
    assert order.splits == {}
    assert sorted(order.samples.tolist()) == samples.tolist()


def test_unshuffled_keeps_the_order():
    members = {"train": np.array([0, 3, 4]), "val": np.array([1, 2])}
    order = arrange(members, shuffle=False, seed=7)
    assert order.samples.tolist() == [0, 3, 4, 1, 2]
    assert order.splits == {"train": (0, 3), "val": (3, 5)}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any), st.integers(-5, 1 << 70))
def test_splits_lie_one_after_the_other_each_shuffled_in_itself(sizes: list[int], seed: int):
    sizes = [size for size in sizes if size]
    dealt = np.split(np.random.default_rng(1).permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    members = {f"s{k}": np.sort(part) for k, part in enumerate(dealt)}
    order = arrange(members, shuffle=True, seed=seed)
    assert list(order.splits) == list(members)
    first = 0
    for name, samples in members.items():
        a, b = order.splits[name]
        assert (a, b) == (first, first + len(samples))
        assert sorted(order.samples[a:b].tolist()) == samples.tolist()
        first = b
    again = arrange(members, shuffle=True, seed=seed)
    assert again.samples.tolist() == order.samples.tolist()


def test_a_splits_order_depends_on_its_name_and_the_seed_alone():
    rows = np.arange(50)
    alone = arrange({"val": rows}, shuffle=True, seed=0).samples.tolist()
    behind = arrange({"train": np.arange(50, 60), "val": rows}, shuffle=True, seed=0).samples[10:].tolist()
    assert alone == behind
    assert alone != arrange({"test": rows}, shuffle=True, seed=0).samples.tolist()
    assert alone != arrange({"val": rows}, shuffle=True, seed=1).samples.tolist()


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
