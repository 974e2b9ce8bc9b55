"""Which sample stands in which row: shuffles, drawn splits, and holes that are closed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import randomness
from packer.convert.sample_order import (
    arrange,
    fill,
    members_of,
    parse_spans,
    parse_split,
    stratified,
)
from packer.errors import UsageError


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


@pytest.mark.parametrize(
    "given_", ["train=0.9,val=0.1", " val = 0.1 , train=9e-1", {"train": 0.9, "val": 0.1}]
)
def test_shares_from_text_or_mapping(given_: Any):
    shares = parse_split(given_)
    assert shares == {"train": 0.9, "val": 0.1}
    assert list(shares) == [
        "train",
        "val",
    ]  # whatever the order in which they are given: the pack records none


@pytest.mark.parametrize(
    "text",
    [
        "train",
        "train=",
        "=1",
        "train=x",
        "train=0.5,train=0.5",
        "train=1,val=0",
        "train=1.5,val=-0.5",
        "a=nan,b=0.5",
        "a=0.5,b=nan",
        "",
        {"a": None},
        {},
    ],
)
def test_what_is_no_list_of_shares(text: Any):
    with pytest.raises(UsageError) as error:
        parse_split(text)
    assert str(error.value) == (
        f"split {text}: is not a list of names and positive shares. Pass for example train=0.9,val=0.1."
    )


@pytest.mark.parametrize(
    ("text", "total"), [("train=0.9,val=0.2", "1.1"), ("a=0.5", "0.5"), ("a=inf", "inf")]
)
def test_shares_that_do_not_make_one(text: str, total: str):
    with pytest.raises(UsageError) as error:
        parse_split(text)
    assert str(error.value) == (
        f"split {text}: the shares make {total}; 1 is needed. Pass for example train=0.9,val=0.1."
    )


def test_rounded_shares_are_taken():
    assert sum(parse_split("a=0.333333,b=0.333333,c=0.333334").values()) == pytest.approx(1)


@st.composite
def draws(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, float], int]:
    weights = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    shares = {f"s{k}": weight / sum(weights) for k, weight in enumerate(weights)}
    classes = draw(st.integers(1, 12))
    strata = draw(st.lists(st.integers(0, classes - 1), min_size=60, max_size=200))
    return np.array(strata), shares, draw(st.integers(0, 1 << 40))


@given(draws())
def test_each_split_holds_its_share_of_each_class(drawn: tuple[np.ndarray, dict[str, float], int]):
    strata, shares, seed = drawn
    try:
        members = stratified(strata, len(strata), shares, seed)
    except UsageError:
        assert min(shares.values()) * len(strata) < 1
        return
    assert list(members) == list(shares)
    assert sorted(np.concatenate(list(members.values())).tolist()) == list(range(len(strata)))
    for name, samples in members.items():
        assert (np.diff(samples) > 0).all()
        assert abs(len(samples) - shares[name] * len(strata)) < 1 + 1e-6
        for number in np.unique(strata):
            own, there = (strata[samples] == number).sum(), (strata == number).sum()
            assert abs(own - shares[name] * there) < 1 + 1e-6
    again = stratified(strata, len(strata), shares, seed)
    assert {name: samples.tolist() for name, samples in again.items()} == {
        name: samples.tolist() for name, samples in members.items()
    }


@pytest.mark.parametrize(
    "strata", [None, np.arange(100) % 7, np.arange(100)], ids=["alike", "classes", "all differ"]
)
def test_seeds_draw_differently(strata: np.ndarray | None):
    shares = {"train": 0.8, "val": 0.2}
    first, second = (stratified(strata, 100, shares, seed)["val"].tolist() for seed in (0, 1))
    assert first != second
    assert len(first) == len(second) == 20


def test_a_draw_is_no_pattern():
    """Whole thirds, and neighbours as often apart as together: not every fifth sample."""
    shares = {"train": 0.8, "val": 0.2}
    for strata in (None, np.arange(500)):
        gaps = set(np.diff(stratified(strata, 500, shares, 3)["val"]).tolist())
        assert len(gaps) > 5


def test_floats_do_not_cost_a_sample():
    """0.29 * 100 is 28.999..."""
    members = stratified(None, 100, {"a": 0.29, "b": 0.71}, 0)
    assert {name: len(samples) for name, samples in members.items()} == {"a": 29, "b": 71}


def test_an_empty_split_is_refused():
    with pytest.raises(UsageError) as error:
        stratified(np.arange(20) % 2, 20, {"train": 0.99, "val": 0.01}, 0)
    assert str(error.value) == "split val=0.01: none of 20 samples falls to it. Pass a larger share."


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


# --- tables ------------------------------------------------------------------------------------------------


def test_splits_may_be_given_as_the_samples_of_each():
    spans = parse_spans({"val": range(7, 9), "train": range(7), "none": range(3, 3)})
    assert list(spans) == ["none", "train", "val"]
    members = members_of(spans, 9)
    assert {name: samples.tolist() for name, samples in members.items()} == {
        "none": [],
        "train": list(range(7)),
        "val": [7, 8],
    }
    with pytest.raises(UsageError) as error:
        members_of(spans, 10)
    assert (
        str(error.value) == "split: has 9 samples in all, and there are 10. Pass ranges that have each once."
    )


@pytest.mark.parametrize(
    "given_",
    [
        {"a": range(3), "b": range(4, 5)},
        {"a": range(3), "b": range(2, 5)},
        {"a": range(1, 3)},
        {"a": range(0, 6, 2), "b": range(1, 6, 2)},
        {"a": range(3), "b": 0.5},
        {"a": range(0)},
        {" ": range(3)},
    ],
    ids=str,
)
def test_ranges_have_each_sample_once(given_: Any):
    with pytest.raises(UsageError) as error:
        parse_spans(given_)
    assert str(error.value) == (
        f"split {given_}: does not have each sample once. Pass for example {{'train': range(900), 'val': range(900, 1000)}}."
    )
