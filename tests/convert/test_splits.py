"""Splits: shares, numbers and places; equal shares of each class; whole groups; the samples of each given."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer.convert.splits import (
    Split,
    StrataDraw,
    check_groups,
    group_owners,
    members_of,
    names_of,
    parse_parts,
    parse_spans,
    stratified,
)
from packer.errors import PackerError, SourceError, UsageError


@pytest.mark.parametrize(
    ("given_", "parts"),
    [
        ("train=0.9,val=0.1", {"train": 0.9, "val": 0.1}),
        (" val = 0.1 , train=9e-1", {"train": 0.9, "val": 0.1}),
        ("train=rest,test=last:500000", {"test": "last:500000", "train": "rest"}),
        ("train=0.9,val=0.1,test=last: 5", {"test": "last:5", "train": 0.9, "val": 0.1}),
        ({"train": "rest", "val": 0.1, "a": "first:7"}, {"a": "first:7", "train": "rest", "val": 0.1}),
        ("a=first:3,b=last:4", {"a": "first:3", "b": "last:4"}),
        ("train=80,val=20", {"train": 0.8, "val": 0.2}),
        ("a=66.7,b=33.3", {"a": 0.667, "b": 0.333}),
        ("train=900,val=100", {"train": 900, "val": 100}),
        ("train=rest,val=20", {"train": "rest", "val": 20}),
        ("a=99,b=1,c=first:5", {"a": 99, "b": 1, "c": "first:5"}),
        ("a=0.5,b=0.5,c=50", {"a": 0.5, "b": 0.5, "c": 50}),
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
        "a=last:-1", "a=last:x", "a=middle:4", "a=last", "a=first:1,b=first:2", "a=rest:4", "a=1=1", {}, "a=1.5,b=20", "a=-1,b=2", "a=inf",
    ],
)  # fmt: skip
def test_what_is_no_list_of_parts(text: Any):
    with pytest.raises(UsageError) as error:
        parse_parts(text)
    assert str(error.value) == (
        f"split {text}: is not a list of names, each with a positive share, a number of rows, rest, first:N or last:N."
        " Pass for example train=0.9,val=0.1 or train=rest,test=last:500000."
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0.8,0.2", "train=0.8,val=0.2"),
        ([0.7, 0.2, 0.1], "train=0.7,val=0.2,test=0.1"),
        ("80, 20", "train=80,val= 20"),
        (0.2, "train=0.8,val=0.2"),
        ("rest,last:500", "train=rest,val=last:500"),
        ("0.7,0.2", "train=0.9,val=0.1"),  # its own shares would be refused
        ([0.2] * 5, "train=0.9,val=0.1"),
        (5, "train=0.9,val=0.1"),
    ],
)
def test_shares_without_names_are_given_names(text: Any, meant: str):
    with pytest.raises(UsageError) as error:
        parse_parts(text)
    said = f"split {text}: names no splits; each share needs a name. Pass split={meant!r}."
    assert str(error.value) == said
    parse_parts(meant)


@pytest.mark.parametrize("given_", [True, np.array([0.8, 0.2]), None, [None], b"train=1"])
def test_splits_of_another_type(given_: Any):
    with pytest.raises(UsageError) as error:
        parse_parts(given_)
    assert re.fullmatch(
        r"split .{4,25}: is neither text nor a mapping of names to shares. Pass for example split='train=0.9,val=0.1'\.",
        str(error.value),
    )


@pytest.mark.parametrize(
    ("text", "total"),
    [("a=0.5,b=0.4", 0.9), ("train=0.9,val=0.2", 1.1), ("a=1.0,b=0.5,c=last:3", 1.5), ("a=1,b=rest", 1)],
)
def test_shares_of_parts_that_do_not_make_one(text: str, total: float):
    with pytest.raises(UsageError, match=rf"the shares sum to {total}, but must sum to 1 \(percentages"):
        parse_parts(text)


def test_rounded_shares_are_taken():
    assert sum(parse_parts("a=0.333333,b=0.333333,c=0.333334").values()) == pytest.approx(1)


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
    assert str(error.value) == "split val=0.01: gets none of 20 samples. Pass a larger share."


@given(draws(), st.integers(1, 50))
def test_strata_are_drawn_alike_whatever_comes_at_once(
    drawn: tuple[np.ndarray, dict[str, float], int], step: int
):
    strata, shares, seed = drawn
    codes = np.unique(strata, return_inverse=True)[1]
    try:
        draw = StrataDraw(np.bincount(codes).tolist(), shares, seed)
    except UsageError:
        return
    owners = np.concatenate([draw.next(codes[at : at + step]) for at in range(0, len(codes), step)])
    members = stratified(strata, len(strata), shares, seed)
    assert [np.flatnonzero(owners == k).tolist() for k in range(len(shares))] == [
        m.tolist() for m in members.values()
    ]


def test_numbers_of_rows_are_exact():
    strata = np.random.default_rng(1).integers(0, 40, 1000)
    for text, counts in (
        ("a=700,b=293,c=7", [700, 293, 7]),
        ("a=rest,b=293,c=first:7", [700, 293, 7]),
        ("a=0.5,b=0.5,c=100", [450, 450, 100]),
    ):
        members = Split(text).members(1000, 0, strata=strata)
        assert [len(rows) for rows in members.values()] == counts
        assert sorted(np.concatenate(list(members.values())).tolist()) == list(range(1000))
    assert Split("a=80,b=20").record() == {"split": {"a": 0.8, "b": 0.2}}


@given(st.integers(2, 60), st.integers(1, 6), st.integers(0, 1 << 40))
def test_groups_are_whole(many: int, classes: int, seed: int):
    rng = np.random.default_rng(seed)
    rows = np.append(np.arange(many), rng.integers(0, many, 400))
    stratum = np.append(np.arange(classes), rng.integers(0, classes, len(rows) - classes))
    shares = {"a": 0.5, "b": 0.5}
    owners = group_owners(rows, stratum, shares, seed)
    assert len(owners) == many
    held = np.bincount(owners[rows], minlength=2)
    assert abs(held[0] - held[1]) <= 2 * np.bincount(rows).max()
    assert owners.tolist() == group_owners(rows, stratum, shares, seed).tolist()


def test_groups_have_about_the_shares_of_each_class():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 300, 6000)
    stratum = np.where(rng.random(6000) < 0.8, rows % 3, rng.integers(0, 3, 6000))
    val = [group_owners(rows, stratum, {"train": 0.8, "val": 0.2}, seed)[rows] == 1 for seed in (0, 1)]
    for own in val:
        assert abs(own.mean() - 0.2) < 0.01
        assert all(abs(own[stratum == k].mean() - 0.2) < 0.02 for k in range(3))
    assert 0.1 < (val[0] & val[1]).mean() / 0.2 < 0.4  # drawn from the seed
    with pytest.raises(UsageError, match=r"split b=0\.01: gets none of 2 groups\. Pass a larger share\."):
        group_owners(np.arange(100) % 2, np.zeros(100, np.int64), {"a": 0.99, "b": 0.01}, 0)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"group": "p"}, "split=Split(group='p'): groups need shares, or a column that names their splits."),
        ({"shares": "a=1", "column": "s"}, "split=Split(column='s'): names the splits of rows, but split= draws them."),
        ({"column": "s", "group": "s"}, "column s: is both column and group;"),
        ({"shares": "a=90,b=20", "group": "p"}, "split=Split(group='p'): groups are divided by shares, not by numbers"),
        ({"shares": "a=rest,b=last:3", "group": "p"}, "split=Split(group='p'): groups are divided by shares, not"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(given_: dict[str, Any], message: str):
    with pytest.raises(UsageError) as error:
        Split(**given_)
    assert str(error.value).startswith(message)


def test_columns_that_name_no_splits():
    split = Split(column="id", group="p")
    assert names_of("t", split, ["val", "train", "val"]) == ("train", "val")
    with pytest.raises(
        SourceError,
        match="t: column id has 101 different values, as 0, 1, 10; at most 100 splits are allowed",
    ):
        names_of("t", split, map(str, range(101)))
    called = "abc".__getitem__
    check_groups("t", split, ["x", "y"], np.array([0, 1, 1]), np.array([0, 1, 1]), called)
    with pytest.raises(
        SourceError, match="t: p b is in the splits x and y of column id; a group has to be in one split"
    ):
        check_groups("t", split, ["x", "y"], np.array([0, 1, 0]), np.array([0, 1, 1]), called)


@pytest.mark.parametrize(
    ("split", "why"),
    [
        (Split("a=0.5,b=0.5"), ""),
        (Split(column="s"), ""),
        (Split(column="s", group="p"), ""),
        (Split("a=500,b=rest"), "are not shares"),
        (Split("a=first:3,b=rest"), "are not shares"),
        (Split("a=0.5,b=0.5", group="p"), "have groups of 'p'"),
    ],
)
def test_packs_that_more_rows_are_added_to(split: Split, why: str):
    assert Split.of_record(split.record()) == split
    if not why:
        split.check_growable("t")
        return
    with pytest.raises(PackerError, match=rf"t: has splits \(a, b\) that {why}"):
        split.check_growable("t")


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
        str(error.value)
        == "split: has 9 samples in all, but there are 10. Pass ranges that hold each sample once."
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
        {"a": [0, 2], "b": [1, 3]},
    ],
    ids=str,
)
def test_ranges_have_each_sample_once(given_: Any):
    with pytest.raises(UsageError) as error:
        parse_spans(given_)
    shown = {name: "list" if isinstance(part, list) else part for name, part in given_.items()}
    assert str(error.value) == (
        f"split {shown}: is not a set of ranges that hold each sample once. Pass for example"
        " {'train': range(900), 'val': range(900, 1000)}, of samples in the order of their splits."
    )
