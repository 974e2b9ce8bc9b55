"""Splits as they are written: shares, numbers and places; what is refused; what a pack records."""

from __future__ import annotations

from typing import Any

import pytest

from packer.convert.splits import Split, parse_shares
from packer.errors import PackerError, UsageError


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
        ({"val": range(7, 9), "train": range(7)}, {"train": range(7), "val": range(7, 9)}),
        ({"a": range(5), "b": "rest"}, {"a": range(5), "b": "rest"}),
    ],
)
def test_parts_from_text_or_mapping(given_: Any, parts: dict[str, Any]):
    assert parse_shares(given_) == parts
    assert list(parse_shares(given_)) == sorted(parts)
    assert parse_shares(parse_shares(given_)) == parts


@pytest.mark.parametrize(
    "text",
    [
        "", "train", "=1", "train=x", "train=0.5,train=0.5", "train=1,val=0", "a=nan,b=0.5", "a=rest,b=rest", "a=last:0",
        "a=last:-1", "a=last:x", "a=middle:4", "a=last", "a=first:1,b=first:2", "a=rest:4", "a=1=1", {}, "a=1.5,b=20", "a=-1,b=2", "a=inf",
        "0.8,0.2", [0.7, 0.2, 0.1], 0.2, 5, True, None, [None], b"train=1",
        {"a": range(0, 6, 2)}, {"a": range(-3, 0)}, {" ": range(3)}, {"a": [0, 2], "b": [1, 3]},
    ],
)  # fmt: skip
def test_what_is_no_list_of_parts(text: Any):
    with pytest.raises(UsageError) as error:
        parse_shares(text)
    assert str(error.value) == (
        f"split {text}: is not a list of names, each with a positive share, a number of rows, rest, first:N or last:N."
        " Pass for example train=0.9,val=0.1 or train=rest,test=last:500000."
    )


@pytest.mark.parametrize(
    ("text", "total"),
    [("a=0.5,b=0.4", 0.9), ("train=0.9,val=0.2", 1.1), ("a=1.0,b=0.5,c=last:3", 1.5), ("a=1,b=rest", 1)],
)
def test_shares_of_parts_that_do_not_make_one(text: str, total: float):
    with pytest.raises(UsageError, match=rf"the shares sum to {total}, but must sum to 1 \(percentages"):
        parse_shares(text)


def test_rounded_shares_are_taken():
    assert sum(parse_shares("a=0.333333,b=0.333333,c=0.333334").values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("train=0.5,Train=0.5", "'Train' and 'train'"),
        ("fold 1=1,fold  1=2", r"'fold \x201' and 'fold 1'"),
        ("caf\u00e9=0.5,cafe\u0301=0.5", r"'cafe\u0301' and 'café'"),
    ],
)
def test_names_that_look_alike_are_shown_apart(text: str, names: str):
    with pytest.raises(UsageError) as error:
        parse_shares(text)
    assert str(error.value) == (
        f"split {text}: names the splits {names}, which differ only in case, spaces or variants of letters."
        " Write one split alike, two unlike."
    )


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"group": "p"}, "split=Split(group='p'): groups need shares, or a column that names their splits."),
        ({"shares": "a=1", "column": "s"}, "split=Split(column='s'): names the splits of rows, but split= draws them."),
        ({"shares": "a=90,b=20", "group": "p"}, "split=Split(group='p'): groups are divided by shares, not by numbers"),
        ({"shares": "a=rest,b=last:3", "group": "p"}, "split=Split(group='p'): groups are divided by shares, not"),
        ({"shares": {"a": range(3)}, "group": "p"}, "split=Split(group='p'): groups are divided by shares, not"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(given_: dict[str, Any], message: str):
    with pytest.raises(UsageError) as error:
        Split(**given_)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("split", "why"),
    [
        (Split("a=0.5,b=0.5"), ""),
        (Split(column="s"), ""),
        (Split(column="s", group="p"), ""),
        (Split("a=500,b=rest"), "are not shares"),
        (Split("a=first:3,b=rest"), "are not shares"),
        (Split({"a": range(3), "b": range(3, 9)}), "are not shares"),
        (Split("a=0.5,b=0.5", group="p"), "have groups of 'p'"),
    ],
)
def test_packs_that_more_rows_are_added_to(split: Split, why: str):
    record = split.record(seed=7)
    assert Split.from_record(record) == split
    assert record["split_seed"] == (None if "range" in str(split) else 7)
    if not why:
        split.check_growable("t")
        return
    with pytest.raises(PackerError, match=rf"t: has splits \(a, b\) that {why}"):
        split.check_growable("t")
