"""Columns of a table that decide splits: their names, groups, the label's classes; notes on classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from packer import Split
from packer.errors import SourceError, UsageError
from packer.packs.pack import Pack
from packer.packs.pack_opening import open_pack
from packer.tables import staged_columns
from packer.tables.table_conversion import append_table, convert_table
from tests.convert.plain_rows import order_of

ROWS = 3000


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of rows that are numbered by i, with columns of groups and splits of every type."""
    monkeypatch.setattr(staged_columns, "_STEP", 700)
    draws = np.random.default_rng(0)
    number = draws.integers(0, 100, ROWS)
    frame = pandas.DataFrame(
        {
            "i": np.arange(ROWS),
            "y": np.where(draws.random(ROWS) < 0.1, "rare", "common"),
            "patient": [f"p{n}" for n in number],
            "id": number + 10**12,
            "code": [f"{n:04}" for n in number],
            "score": number / 4,
            "set": np.where(number % 5 == 0, "val", "train"),
            "fold": number % 5,
            "held": number % 5 == 0,
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def convert(table: Path, split: Any, **options: Any) -> tuple[Pack, dict[str, np.ndarray]]:
    """Return the pack, and the rows of the table that each split has, in their order."""
    options = {"label": "y", "features": ["i"], "overwrite": True, **options}
    pack = open_pack(convert_table(table, table.parent / "t.h5", split=split, **options).out)
    rows = pack.read("features")[:, 0].astype(int)
    return pack, {name: rows[a:b] for name, ((a, b),) in pack.header.splits.items()}


@pytest.mark.parametrize(
    "label", [{}, {"label": "fold"}, {"label": "fold", "label_as": "classes"}, {"label": "held"}]
)
def test_each_split_has_its_share_of_each_class(table: Path, label: dict[str, Any]):
    pack, rows = convert(table, "train=0.8,val=0.2", seed=3, **label)
    labels = pandas.read_csv(table)[label.get("label", "y")].to_numpy()
    strata = np.unique(labels, return_inverse=True)[1]
    if label:  # numbered as they come in the table: of texts by the first row of each
        expected = order_of(ROWS, "train=0.8,val=0.2", label=strata, seed=3)
        assert np.concatenate(list(rows.values())).tolist() == expected.samples.tolist()
    for own in rows.values():
        share = len(own) / ROWS
        assert np.abs(np.bincount(strata[own]) - share * np.bincount(strata)).max() <= 1
    assert pack.header.provenance["options"]["split"] == {"train": 0.8, "val": 0.2}


def test_labels_that_are_no_classes_are_dealt_out_without_regard_to_them(table: Path):
    plain = convert(table, "train=0.8,val=0.2", label="score")[1]
    assert {name: len(rows) for name, rows in plain.items()} == {"train": 2400, "val": 600}
    rest = convert(table, "train=0.8,val=0.2", label=None, shuffle=True)[1]
    assert rest["val"].tolist() == plain["val"].tolist()
    many = convert(table, "train=0.8,val=0.2", label="i", features=["fold", "id"])[0]
    assert many.header.splits == {"train": ((0, 2400),), "val": ((2400, 3000),)}


@pytest.mark.parametrize("column", ["patient", "id", "code", "score"])
@pytest.mark.parametrize("more", [{}, {"keep": ["patient", "id", "code", "score"]}])
def test_groups_of_any_type_stay_whole(table: Path, column: str, more: dict[str, Any]):
    pack, rows = convert(table, Split("train=80,val=20", group=column), **more)
    groups = pandas.read_csv(table)[column].to_numpy()
    assert not set(groups[rows["train"]]) & set(groups[rows["val"]])
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(ROWS))
    assert abs(len(rows["val"]) - 600) < 60
    assert [f.name for f in pack.fields] == ["features", "label", *more.get("keep", ()), "source_row"]


@pytest.mark.parametrize(
    ("column", "names"),
    [("set", ["train", "val"]), ("fold", ["0", "1", "2", "3", "4"]), ("held", ["false", "true"])],
)
def test_a_column_names_the_splits(table: Path, column: str, names: list[str]):
    _, rows = convert(table, Split(column=column, group="patient"))
    cells = pandas.read_csv(table)[column].astype(str).str.lower().to_numpy()
    assert list(rows) == names
    for name, own in rows.items():
        assert set(cells[own]) == {name}
        assert len(own) == (cells == name).sum()


def test_what_columns_of_splits_are_refused(table: Path):
    with pytest.raises(
        UsageError, match=r"split: no column is named 'folds'; the nearest is 'fold'\. Pass a column"
    ):
        convert(table, Split(column="folds"))
    frame = pandas.read_csv(table)
    frame["code"] = np.where(frame["i"] % 2, "A", "a")
    frame.loc[3, "patient"] = None
    frame.to_csv(table, index=False)
    for split, noun in ((Split(column="code"), "splits"), (Split("a=0.5,b=0.5", group="code"), "groups")):
        with pytest.raises(
            SourceError, match=f"t.csv: column code names the {noun} 'A' and 'a', which differ only"
        ):
            convert(table, split)
    with pytest.raises(
        SourceError, match="line 5, column 'patient': is missing; it defines the row's split or place"
    ):
        convert(table, Split("a=0.5,b=0.5", group="patient"))


@pytest.mark.parametrize("more", [{"keep": ["set"]}, {"features": ["i", "set"]}])
def test_an_empty_cell_of_a_stored_column_decides_no_split(table: Path, more: dict[str, Any]):
    """It was taken for another split, or the row for one of none."""
    frame = pandas.read_csv(table)
    frame.loc[3, "set"] = None
    frame.to_csv(table, index=False)
    with pytest.raises(
        SourceError, match="column 'set' decides the split or place of each row and is empty in 1 row"
    ):
        convert(table, Split(column="set"), **more)


@pytest.mark.parametrize("split", [Split(column="set"), Split("train=80,val=20", group="patient")])
def test_a_table_is_mapped_like_one_without_the_columns_of_splits(table: Path, split: Split):
    frame = pandas.read_csv(table)
    expected = convert(table, split)[0].header.splits
    frame.drop(columns=["set", "patient"]).to_csv(table.parent / "less.csv", index=False)
    like = convert_table(table.parent / "less.csv", table.parent / "like.h5", label="y", features=["i"]).out
    found = convert_table(table, table.parent / "u.h5", like=like, split=split).out
    assert open_pack(found).header.splits == expected


def test_the_pack_says_how_rows_were_dealt(table: Path):
    """More rows are added, and another table is mapped alike."""
    split = Split(column="set")
    pack, rows = convert(table, split)
    assert pack.header.provenance["options"]["split_column"] == "set"
    assert {c["name"]: c["role"] for c in pack.header.table["columns"]}["set"] == "drop"
    alike = convert_table(table, table.parent / "u.h5", like=pack.path, split=Split(column="set")).out
    assert open_pack(alike).header.splits == pack.header.splits
    convert_table(table, table.parent / "s", label="y", features=["i"], shards=1000, split=split)
    pandas.read_csv(table)[:100].to_csv(table.parent / "more.csv", index=False)
    append_table(table.parent / "s", table.parent / "more.csv")
    grown = open_pack(table.parent / "s").header.splits
    first = int((pandas.read_csv(table)["set"][:100] == "val").sum())
    assert sum(b - a for a, b in grown["val"]) == len(rows["val"]) + first


# Classes that not every split has

ALONE = "are in one split only, or not in train; splits and rows of each"


@pytest.mark.parametrize(
    ("labels", "split", "notes"),
    [
        (
            ["lynx", "lynx", "lynx", "wolf", *["cat"] * 36, *["dog"] * 40],
            ["train", "val", "val", "test"] * 20,
            [f"1 of 4 classes of 'y' {ALONE}: 'wolf' (test 1)."],
        ),
        (
            ["cat", "cat", "dog", "new"] * 20,
            ["train", "val", "train", "val"] * 19 + ["test"] * 4,
            [f"1 of 3 classes of 'y' {ALONE}: 'new' (test 1, val 19)."],
        ),
        (
            [0] * 60 + [1] * 40,
            "train=rest,val=last:30",
            [
                f"1 of 2 values of 'y' {ALONE}: '0' (train 60).",
                "1 of 2 splits have one of the 2 values of 'y': val ('1').",
            ],
        ),
        (
            ["rare", *["cat", "dog"] * 40],
            "train=0.8,val=0.2",
            [f"1 of 3 classes of 'y' {ALONE}: 'rare' (train 1)."],
        ),
        (
            list("abcde") * 8 + list("fghij"),
            "train=rest,val=last:5",
            [
                f"10 of 10 classes of 'y' {ALONE}: 'a' (train 8), 'b' (train 8), 'c' (train 8) and others.",
            ],
        ),
        ([n % 2 for n in range(80)], "train=0.8,val=0.2", []),
        ([n * 7 % 80 for n in range(80)], "train=0.8,val=0.2", []),  # numbers
        (["cat", "dog"] * 40, None, []),
    ],
)
def test_classes_of_one_split_and_splits_of_one_class_are_told(
    tmp_path: Path, labels: list[Any], split: Any, notes: list[str]
) -> None:
    frame = pandas.DataFrame({"x": np.random.default_rng(0).normal(size=len(labels)), "y": labels})
    if isinstance(split, list):
        frame["fold"], split = split, Split(column="fold")
    frame.to_csv(tmp_path / "c.csv", index=False)
    report = convert_table(tmp_path / "c.csv", tmp_path / "c.h5", label="y", split=split)
    assert [str(note) for note in report.notes] == notes


def test_dates_and_times_name_splits_as_they_are_written(tmp_path: Path) -> None:
    for cells in (
        ["2018-01-01", "1969-12-31"],
        ["2018-01-01 08:30:00", "1969-12-31 23:59:59"],
        ["8:30:00", "0:00:10"],
    ):
        (tmp_path / "a.csv").write_text(
            "s,a,y\n" + "".join(f"{cells[n % 2]},{n},{n * n}\n" for n in range(8))
        )
        out = convert_table(
            tmp_path / "a.csv", tmp_path / "a.h5", label="y", split=Split(column="s"), overwrite=True
        ).out
        assert sorted(open_pack(out).header.splits) == sorted(cells)
