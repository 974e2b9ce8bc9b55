"""Which sample stands in which row: shuffles, drawn splits, and holes that are closed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import randomness
from packer.convert.order import (
    Order,
    arrange,
    fill,
    parse_parts,
    parse_split,
    stratified,
    table_order,
)
from packer.convert.segments import Segments
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


@pytest.mark.parametrize(
    ("given_", "parts"),
    [
        ("train=0.9,val=0.1", {"train": 0.9, "val": 0.1}),
        (" val = 0.1 , train=9e-1", {"train": 0.9, "val": 0.1}),
        ("train=rest,test=last:500000", {"test": "last:500000", "train": "rest"}),
        ("train=0.9,val=0.1,test=last: 5", {"test": "last:5", "train": 0.9, "val": 0.1}),
        ({"train": "rest", "val": 0.1, "a": "first:7"}, {"a": "first:7", "train": "rest", "val": 0.1}),
        ("a=first:3,b=last:4", {"a": "first:3", "b": "last:4"}),
    ],
)
def test_parts_from_text_or_mapping(given_: Any, parts: dict[str, float | str]):
    assert parse_parts(given_) == parts
    assert list(parse_parts(given_)) == sorted(parts)
    assert parse_parts(parse_parts(given_)) == parts


@pytest.mark.parametrize(
    "text",
    [
        "", "train", "=1", "train=x", "train=0.5,train=0.5", "train=1,val=0", "a=nan,b=0.5", "a=rest,b=rest", "a=last:0",
        "a=last:-1", "a=last:x", "a=middle:4", "a=last", "a=first:1,b=first:2", "a=rest:4", "a=1=1", {},
    ],
)  # fmt: skip
def test_what_is_no_list_of_parts(text: Any):
    with pytest.raises(UsageError) as error:
        parse_parts(text)
    assert str(error.value) == (
        f"split {text}: is not a list of names, each with a positive share, rest, first:N or last:N."
        " Pass for example train=0.9,val=0.1 or train=rest,test=last:500000."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=0.5,b=0.4", "the shares make 0.9; 1 is needed. Pass for example train=0.9,val=0.1."),
        ("a=1.0,b=0.5,c=last:3", "the shares make 1.5; 1 is needed. Pass for example train=0.9,val=0.1."),
        (
            "a=1,b=rest",
            "the shares make 1 and leave nothing for the rest; less than 1 is needed. Pass smaller shares, or no rest.",
        ),
    ],
)
def test_shares_of_parts_that_do_not_make_one(text: str, message: str):
    with pytest.raises(UsageError) as error:
        parse_parts(text)
    assert str(error.value) == f"split {text}: {message}"


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (
            "a=first:60,b=last:50",
            "takes 110 rows from the ends; there are 100. Pass fewer.",
        ),
        ("a=first:60", "leaves 40 of 100 rows in no split. Add one with rest, as in train=rest."),
        (
            "a=0.999,b=0.001",
            "none of 100 rows falls to b. Pass a larger share, or fewer rows for the others.",
        ),
        (
            "a=rest,b=last:100",
            "none of 0 rows falls to a. Pass a larger share, or fewer rows for the others.",
        ),
    ],
)
def test_orders_of_tables_that_cannot_be(split: str, message: str):
    with pytest.raises(UsageError) as error:
        table_order(100, split=split, shuffle=True, seed=0)
    assert str(error.value) == f"split {split}: {message}"


GOLDEN = {
    "test": [956, 933, 981, 949, 948],
    "train": [177, 817, 599, 170, 527],
    "val": [854, 802, 608, 869, 407],
    "all": [646, 925, 894, 541, 520],
}


def test_a_tables_order_is_frozen():
    """Packs of one seed must not change from version to version."""
    split = "train=0.7,val=0.3,test=last:90"
    order = table_order(1000, split=split, shuffle=True, seed=3)
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
]


@pytest.mark.parametrize("split", SPLITS)
@given(rows=st.integers(410, 1200), shuffle=st.booleans(), seed=st.integers(0, 1 << 40), data=st.data())
def test_tables_hold_each_row_once_where_it_is_said_to_be(
    split: str | None, rows: int, shuffle: bool, seed: int, data: st.DataObject
):
    order = table_order(rows, split=split, shuffle=shuffle, seed=seed)
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
    sources = np.random.default_rng(1).permutation(rows)
    owner = order.owner(sources)
    for number, (a, b) in enumerate(spans or [(0, rows)]):
        assert sorted(sources[owner == number].tolist()) == sorted(everything[a:b].tolist())
        assert shuffle or (np.diff(everything[a:b]) > 0).all()
    for name, value in parts.items():
        a, b = order.splits[name]
        end, _, count = str(value).partition(":")
        if end in ("first", "last"):
            low = 0 if end == "first" else rows - int(count)
            assert sorted(everything[a:b].tolist()) == list(range(low, low + int(count)))
    # any way of asking
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(0, rows))
    assert samples[start:stop].tolist() == everything[start:stop].tolist()
    picked = data.draw(st.lists(st.integers(0, rows - 1), max_size=9))
    assert samples[np.array(picked, np.int64)].tolist() == everything[picked].tolist()
    assert samples[-1] == everything[-1]
    assert samples[rows // 2] == everything[rows // 2]
    # a shard
    part = order.part(start, max(start, stop))
    assert part.samples[:].tolist() == everything[start : max(start, stop)].tolist()
    for name, (a, b) in part.splits.items():
        low, high = order.splits[name]
        kept = everything[max(low, start) : max(low, start, min(high, stop))]
        assert part.samples[a:b].tolist() == kept.tolist()
    for some in (samples, part.samples):
        assert isinstance(some, Segments)
        at = some.positions(sources)
        there = at >= 0
        assert there.sum() == len(some)
        assert some[at[there]].tolist() == sources[there].tolist()
        inside = some.owner(sources)
        assert ((inside >= 0) == there).all()


@given(rows=st.integers(1, 500), seed=st.integers(0, 99), data=st.data())
def test_owners_in_arrays(rows: int, seed: int, data: st.DataObject):
    cut = data.draw(st.integers(0, rows))
    shuffled = np.random.default_rng(seed).permutation(rows)
    members = {"a": np.sort(shuffled[:cut]), "b": np.sort(shuffled[cut:])}
    order = arrange(members, shuffle=True, seed=seed)
    assert (
        order.owner(np.arange(rows)).tolist() == np.isin(np.arange(rows), members["b"]).astype(int).tolist()
    )
    assert order.owner(np.array([rows, rows + 7])).tolist() == [-1, -1]
    assert Order(shuffled, {}).owner(np.arange(rows)).tolist() == [0] * rows


def test_drawn_splits_are_no_pattern_and_differ_by_seed():
    first, second = (
        table_order(5000, split="train=0.8,val=0.2", shuffle=False, seed=seed) for seed in (0, 1)
    )
    val = [order.samples[slice(*order.splits["val"])] for order in (first, second)]
    assert len(val[0]) == len(val[1]) == 1000
    assert len(set(np.diff(val[0]).tolist())) > 10
    assert 120 < len(np.intersect1d(*val)) < 280  # a fifth of a fifth, by chance
    # the same rows whether or not they are shuffled
    shuffled = table_order(5000, split="train=0.8,val=0.2", shuffle=True, seed=0)
    assert sorted(shuffled.samples[slice(*shuffled.splits["val"])].tolist()) == val[0].tolist()


def test_an_order_of_a_thousand_billion_rows_costs_nothing():
    rows = 10**12
    order = table_order(rows, split="train=0.9,val=0.1,test=last:1000000000", shuffle=True, seed=0)
    some = order.samples[rows // 2 : rows // 2 + 100]
    assert (order.samples.positions(some) == np.arange(rows // 2, rows // 2 + 100)).all()  # type: ignore[attr-defined]
    assert (order.owner(some) == list(order.splits).index("train")).all()
    shard = order.part(rows - 5, rows)
    assert shard.splits["train"] == (0, 0)
    assert shard.samples[:].tolist() == order.samples[rows - 5 :].tolist()


def test_positions_beyond_the_rows_are_refused():
    samples = table_order(300, split="a=0.5,b=0.5", shuffle=True, seed=0).samples
    for wrong in (np.array([300]), np.array([-301])):
        with pytest.raises(IndexError):
            samples[wrong]
    with pytest.raises(IndexError):
        samples[300]
