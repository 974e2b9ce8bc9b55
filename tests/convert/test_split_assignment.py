"""assign: equal shares of each class, whole groups, rows by position, columns of splits; alike for every source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import Labels, Split, convert_images, convert_table, open_pack, pack_dataset, split_pack
from packer.convert import split_assignment
from packer.convert.split_assignment import Codes, Owners, assign, draw_groups, draw_rows
from packer.errors import SourceError, UsageError
from tests.convert.plain_rows import PlainRows, members

# Every source, one notation

ROWS = 60
LABELS = [number % 3 for number in range(ROWS)]
Draw = Callable[..., dict[str, list[int]]]


class Labelled(list):
    """A data set that tells its labels, as those of torchvision do."""

    targets = LABELS


@pytest.fixture(params=["images", "table", "arrays", "dataset", "generator", "pack"])
def draw(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Draw:
    """Convert rows 0 ... 59 of three classes; return the rows of each split, in their order."""
    monkeypatch.chdir(tmp_path)
    source = request.param
    lines = [f"{number:02},{label},p{number % 9}" for number, label in enumerate(LABELS)]
    Path("t.csv").write_text("\n".join(["x,label,patient", *lines]) + "\n")
    if source == "images":
        Path("i").mkdir()
        for number in range(ROWS):
            cv2.imwrite(f"i/{number:02}.png", np.full((4, 4, 3), number, np.uint8))

    def rows_of(path: str) -> np.ndarray:
        pack = open_pack(path)
        name = next(name for name in ("image", "features", "row") if any(f.name == name for f in pack.fields))
        return np.asarray(pack.read(name)).reshape(pack.rows, -1)[:, 0].astype(int)

    def run(split: Any, **options: Any) -> dict[str, list[int]]:
        samples = {"row": np.arange(ROWS), "label": np.array(LABELS)}
        if source == "images":
            convert_images(
                "i",
                "o.h5",
                size=4,
                labels=Labels("t.csv", column="label", as_="classes"),
                split=split,
                **options,
            )
        elif source == "table":
            options = {"shuffle": True, **options}
            convert_table("t.csv", "o.h5", label="label", features=["x"], split=split, **options)
        elif source == "pack":
            pack_dataset(samples, "all.h5", shuffle=False)
            options.pop("shuffle", None)
            Path("parts").mkdir()
            made = split_pack("all.h5", split, out="parts", **options)
            return {name: rows_of(report.out).tolist() for name, report in made.items()}
        else:
            each = Labelled({"row": row, "label": label} for row, label in enumerate(LABELS))
            given_ = {"arrays": samples, "dataset": each, "generator": iter(each)}[source]
            pack_dataset(given_, "o.h5", split=split, workers=1, **options)
        rows = rows_of("o.h5")
        return {name: rows[a:b].tolist() for name, ((a, b),) in open_pack("o.h5").header.splits.items()}

    return run


@pytest.mark.parametrize(
    "split",
    [
        "train=0.8,val=0.2",
        "train=80,val=20",
        "a=rest,b=7,c=first:4,d=last:5",
        {"a": 0.5, "b": "rest", "c": "last:10"},
        {"train": range(50), "test": range(50, 60)},
        {"train": "rest", "test": range(20, 35)},
    ],
    ids=str,
)
def test_every_source_draws_the_same_rows(draw: Draw, split: Any):
    expected = members(PlainRows(ROWS, LABELS), split, seed=3)
    found = draw(split, seed=3, shuffle=False)
    assert found == {name: rows.tolist() for name, rows in expected.items()}


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("0.8,0.2", "split 0.8,0.2: is not a list of names, each with a positive share"),
        ("a=0.5,b=0.6", "split a=0.5,b=0.6: the shares sum to 1.1, but must sum to 1"),
        ("a=0.5,A=0.5", "split a=0.5,A=0.5: names the splits 'A' and 'a', which differ only in case, spaces"),
        ("a=0.999,b=0.001", "split b=0.001: gets none of 60 rows. Pass a larger share."),
        ("a=first:40,b=last:30", "split a=first:40,b=last:30: needs 70 rows; there are 60. Pass fewer, or shares"),
        ("a=80,b=30", "split a=80,b=30: needs 110 rows; there are 60. Pass fewer, or shares, as train=0.9,val=0.1."),
        ("a=first:20", "split a=first:20: leaves 40 of 60 rows in no split. Add one with rest, as in train=rest."),
        ("a=rest,b=last:60", "split a=1: gets none of 0 rows."),
        ({"a": range(30)}, "split a=range(0, 30): leaves 30 of 60 rows in no split."),
        ({"a": range(30), "b": range(25, 60)}, "split a=range(0, 30),b=range(25, 60): needs 65 rows; there are 60."),
        ({"a": range(9), "b": range(5, 60)}, "split a=range(0, 9),b=range(5, 60): needs 64 rows; there are 60."),
        ({"a": range(9), "b": range(5, 12), "c": "rest"}, "split a=range(0, 9),b=range(5, 12),c=rest: has rows in two splits;"),
        ({"a": "rest", "b": range(50, 61)}, "split a=rest,b=range(50, 61): needs 61 rows; there are 60."),
    ],
    ids=str,
)  # fmt: skip
def test_every_source_refuses_the_same_splits(draw: Draw, split: Any, message: str):
    with pytest.raises(UsageError) as error:
        draw(split)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("split", [Split(column="patient"), Split("a=0.5,b=0.5", group="patient")], ids=str)
def test_columns_are_those_of_tables_and_of_labels(draw: Draw, request: pytest.FixtureRequest, split: Split):
    if request.node.callspec.params["draw"] in ("images", "table"):
        found = draw(split, seed=1, shuffle=False)
        patients = [f"p{number % 9}" for number in range(ROWS)]
        expected = members(PlainRows(ROWS, LABELS, {"patient": patients}), split, seed=1)
        assert found == {name: rows.tolist() for name, rows in expected.items()}
        return
    with pytest.raises(
        UsageError, match="='patient'\\): applies to columns of a table or of a CSV of labels; "
    ):
        draw(split)


# What is drawn


@st.composite
def draws(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, float], int]:
    weights = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    shares = {f"s{k}": weight / sum(weights) for k, weight in enumerate(weights)}
    classes = draw(st.integers(1, 12))
    strata = draw(st.lists(st.integers(0, classes - 1), min_size=60, max_size=200))
    return np.array(strata), shares, draw(st.integers(0, 1 << 40))


@given(draws(), st.integers(1, 50))
def test_each_split_holds_its_share_of_each_class(drawn: tuple[np.ndarray, dict[str, float], int], step: int):
    strata, shares, seed = drawn
    owners = draw_rows(strata, shares, seed)
    for number, share in enumerate(shares.values()):
        own = owners == number
        assert abs(own.sum() - share * len(strata)) < 1 + 1e-6
        for stratum in np.unique(strata):
            assert abs(own[strata == stratum].sum() - share * (strata == stratum).sum()) < 1 + 1e-6
    with pytest.MonkeyPatch.context() as patch:  # whatever is drawn at once
        patch.setattr(split_assignment, "_AT_ONCE", step)
        assert draw_rows(strata, shares, seed).tolist() == owners.tolist()


@pytest.mark.parametrize(
    "strata", [np.zeros(500, int), np.arange(500) % 7, np.arange(500)], ids=["alike", "classes", "all differ"]
)
def test_seeds_draw_differently_and_without_pattern(strata: np.ndarray):
    shares = {"train": 0.8, "val": 0.2}
    first, second = (np.flatnonzero(draw_rows(strata, shares, seed)).tolist() for seed in (0, 1))
    assert first != second
    assert len(first) == len(second) == 100
    assert len(set(np.diff(first).tolist())) > 5


def test_floats_do_not_cost_a_row():
    """0.29 * 100 is 28.999..."""
    assert np.bincount(draw_rows(np.zeros(100, int), {"a": 0.29, "b": 0.71}, 0)).tolist() == [29, 71]


def test_numbers_of_rows_are_exact():
    strata = np.random.default_rng(1).integers(0, 40, 1000)
    for text, counts in (
        ("a=700,b=293,c=7", [700, 293, 7]),
        ("a=rest,b=293,c=first:7", [700, 293, 7]),
        ("a=0.5,b=0.5,c=100", [450, 450, 100]),
        ({"c": range(400, 500), "a": 0.5, "b": 0.5}, [450, 450, 100]),
    ):
        found = members(PlainRows(1000, strata), text)
        assert [len(rows) for rows in found.values()] == counts
        assert sorted(np.concatenate(list(found.values())).tolist()) == list(range(1000))
    assert found["c"].tolist() == list(range(400, 500))


@given(st.integers(2, 60), st.integers(1, 6), st.integers(0, 1 << 40))
def test_groups_are_whole(many: int, classes: int, seed: int):
    rng = np.random.default_rng(seed)
    groups = np.append(np.arange(many), rng.integers(0, many, 400))
    strata = np.append(np.arange(classes), rng.integers(0, classes, len(groups) - classes))
    shares = {"a": 0.5, "b": 0.5}
    owners = draw_groups(groups, strata, shares, seed)
    assert len(owners) == many
    held = np.bincount(owners[groups], minlength=2)
    assert abs(held[0] - held[1]) <= 2 * np.bincount(groups).max()
    assert owners.tolist() == draw_groups(groups, strata, shares, seed).tolist()


def test_groups_have_about_the_shares_of_each_class():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 300, 6000)
    strata = np.where(rng.random(6000) < 0.8, groups % 3, rng.integers(0, 3, 6000))
    val = [draw_groups(groups, strata, {"train": 0.8, "val": 0.2}, seed)[groups] == 1 for seed in (0, 1)]
    for own in val:
        assert abs(own.mean() - 0.2) < 0.01
        assert all(abs(own[strata == k].mean() - 0.2) < 0.02 for k in range(3))
    assert 0.1 < (val[0] & val[1]).mean() / 0.2 < 0.4  # drawn from the seed
    with pytest.raises(UsageError, match=r"split b=0\.01: gets none of 2 groups\. Pass a larger share\."):
        assign(Split("a=0.99,b=0.01", group="g"), PlainRows(100, columns={"g": np.arange(100) % 2}), 0)


GOLDEN = {
    None: [1, 11, 12, 14, 15, 24, 26, 37],
    "classes": [2, 7, 24, 32, 52, 63, 66, 82],
    "groups": [3, 4, 12, 16, 17, 25, 29, 30],
}


@pytest.mark.parametrize("kind", GOLDEN)
def test_what_a_seed_draws_is_frozen(kind: str | None):
    """Packs of one seed must not change from version to version."""
    rows = PlainRows(1000, None if kind is None else np.arange(1000) % 3, {"g": np.arange(1000) * 7 % 13})
    found = members(rows, Split("train=0.8,val=0.2", group="g" if kind == "groups" else None), seed=3)
    assert found["val"][:8].tolist() == GOLDEN[kind]


# Columns


ALIKE = "which differ only in case, spaces or variants of letters. Write one"


@pytest.mark.parametrize(
    ("columns", "split", "message"),
    [
        (
            {"s": range(101)},
            {"column": "s"},
            "column s has 101 different values, as 0, 1, 10; at most 100 splits",
        ),
        (
            {"s": ["train", "val", "Train"]},
            {"column": "s"},
            f"column s names the splits 'Train' and 'train', {ALIKE} split alike, two unlike.",
        ),
        (
            {"g": ["p1", "q", "p1 "]},
            {"shares": "a=0.5,b=0.5", "group": "g"},
            rf"column g names the groups 'p1' and 'p1\x20', {ALIKE} group alike, two unlike.",
        ),
        (
            {"s": list("xyy"), "g": list("gHh")},
            {"column": "s", "group": "g"},
            f"column g names the groups 'H' and 'h', {ALIKE} group alike, two unlike.",
        ),
        (
            {"s": list("xyy"), "g": list("ghg")},
            {"column": "s", "group": "g"},
            "g g is in the splits x and y of column s; a group has to be in one split",
        ),
    ],
    ids=str,
)
def test_columns_that_name_no_splits(columns: dict[str, Any], split: dict[str, Any], message: str):
    rows = PlainRows(
        len(next(iter(columns.values()))), columns={name: list(cells) for name, cells in columns.items()}
    )
    with pytest.raises(SourceError) as error:
        assign(Split(**split), rows, 0)
    assert str(error.value).startswith(f"t: {message}")


def test_rows_that_are_refused_name_no_splits():
    rows = PlainRows(4, columns={"s": ["b", "a", "odd", "b"], "g": ["1", "2", "2", "1"]})
    rows.kept = np.array([True, True, False, True])
    owners = assign(Split(column="s", group="g"), rows, 0)
    assert owners.names == ("a", "b")
    assert owners.numbers.tolist() == [1, 0, 0, 1]
    rows.kept = np.zeros(4, np.bool_)
    assert assign(Split(column="s"), rows, 0).names == ("",)


def test_known_splits_and_parts_of_them():
    owners = Owners.from_splits({"b": np.array([3, 0]), "a": np.array([1])}, 5)
    assert (owners.names, owners.numbers.tolist()) == (("b", "a"), [0, 1, 2, 0, 2])
    assert owners.only(np.arange(5) > 0).numbers.tolist() == [2, 1, 2, 0, 2]
    assert Owners.from_splits({}, 3).numbers.tolist() == [0, 0, 0]
    codes = Codes.from_values(["b", "a", "b"])
    assert (codes.names, codes.numbers.tolist(), codes.numbers.dtype) == (["a", "b"], [1, 0, 1], np.uint8)
