"""What a table's conversion says of columns that would lose or change what they hold: rounded numbers, texts, indexes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from packer.cli.option_words import in_options
from packer.packs.pack_opening import open_pack
from packer.tables import apply
from packer.tables.reading import text_table as text
from packer.tables.table_conversion import TablePlan, convert_table

ROWS = 2000


def converted(
    frame: pandas.DataFrame, folder: Path, index: bool = False, **options: Any
) -> tuple[Any, tuple[str, ...]]:
    """A frame, written as CSV and packed in its order. Returns: the pack, and the notes, each of which is told."""
    path = folder / "t.csv"
    frame.to_csv(path, index=index)
    plans: list[TablePlan] = []
    report = convert_table(
        path, folder / "t.h5", shuffle=False, overwrite=True, on_plan=plans.append, **options
    )
    assert set(plans[0].notes) <= set(report.notes)
    return open_pack(report.out), tuple(map(in_options, report.notes))


def distinct(pack: Any, name: str) -> int:
    return len(np.unique(pack.read("features")[:, pack.header.table["features"].index(name)]))


# Rounded numbers


@pytest.fixture
def large() -> pandas.DataFrame:
    numbers = np.arange(ROWS)
    return pandas.DataFrame(
        {
            "epoch": 1_700_000_123 + 2 * numbers,
            "phone": 4_915_112_345_678 + 2 * numbers,
            "when": 1_700_000_123.5 + numbers,
            "small": numbers * 8000,
            "fraction": numbers / 7,
            "y": numbers % 2,
        }
    )


def test_numbers_that_float32_rounds_are_told(large: pandas.DataFrame, tmp_path: Path):
    pack, notes = converted(large, tmp_path, label="y")
    assert distinct(pack, "phone") == 1
    assert notes == tuple(
        f"column '{name}' holds numbers to about {most}; float32 holds all whole ones only to 16,777,216, and rounds larger ones."
        f" If they are identifiers or times, pass --keep {name}, --drop {name} or --type {name}=category; --dtype float64 stores them"
        " as they are."
        for name, most in (
            ("epoch", "1,700,004,096"),
            ("phone", "4,915,112,443,904"),
            ("when", "1,700,002,176"),
        )
    )


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float64"},
        {"keep": ["epoch", "phone", "when"]},
        {"drop": ["epoch", "phone", "when"]},
        {"standardize": True},
    ],
)
def test_the_options_that_are_named_help(large: pandas.DataFrame, tmp_path: Path, options: dict[str, Any]):
    pack, notes = converted(large, tmp_path, label="y", **options)
    assert notes == ()
    if "keep" in options:
        assert np.array_equal(pack.read("phone"), large["phone"])
        assert np.array_equal(pack.read("when"), large["when"])
    elif "drop" not in options:
        assert distinct(pack, "phone") == distinct(pack, "epoch") == ROWS


def test_parquet_is_told_as_text_is(large: pandas.DataFrame, tmp_path: Path):
    _, notes = converted(large, tmp_path, label="y")
    large.to_parquet(tmp_path / "t.parquet", index=False)
    assert (
        tuple(map(in_options, convert_table(tmp_path / "t.parquet", tmp_path / "p.h5", label="y").notes))
        == notes
    )


def test_labels_and_float16_and_what_even_float64_rounds(tmp_path: Path):
    frame = pandas.DataFrame(
        {"x": np.arange(3000), "id": 2**60 + np.arange(3000), "y": 1e8 + np.arange(3000) / 4}
    )
    _, notes = converted(frame, tmp_path, label="y")
    assert notes[1].startswith(
        "column 'y' holds numbers to about 100,000,750; float32 holds all whole ones only"
    )
    assert notes[1].endswith(" pass --label-as classes; --dtype float64 stores them as they are.")
    _, notes = converted(frame, tmp_path, drop=["id"], label="y", dtype="float16")
    assert notes[0].startswith(
        "column 'x' holds numbers to about 2,999; float16 holds all whole ones only to 2,048,"
    )
    for options in ({"dtype": "float64"}, {"dtype": "float64", "standardize": True}):
        _, notes = converted(frame, tmp_path, label="y", **options)
        assert len(notes) == 2
        assert notes[1].endswith(" Pass --drop x or --keep x.")  # it numbers the rows
        assert notes[0].startswith("column 'id' holds numbers to about 1,152,921,504,606,8")
        assert notes[0].endswith("pass --keep id, --drop id or --type id=category.")
    _, notes = converted(frame / 7, tmp_path, drop=["id"], label="y")
    assert not any("holds numbers" in note for note in notes)


@pytest.mark.parametrize("split", [None, "train=0.5,test=rest"])
def test_numbers_that_grow_behind_the_first_rows_are_told(
    tmp_path: Path, split: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(text, "PIECE", 1 << 14)
    frame = pandas.DataFrame({"many": np.arange(5000) * 10_000, "x": np.arange(5000) / 4, "y": 0.5})
    _, notes = converted(frame, tmp_path, split=split, label="y")
    assert [note[:41] for note in notes] == ["column 'many' holds numbers to about 49,9"]
    assert converted(frame[:1600], tmp_path, split=split, label="y")[1] == ()


def test_a_float64_pack_maps_new_rows_and_loads_as_it_says(large: pandas.DataFrame, tmp_path: Path):
    pack, _ = converted(large, tmp_path, label="y", dtype="float64")
    features = pack.read("features")
    assert features.dtype == np.float64
    assert pack.header.field("features").dtype == "<f8"
    names = pack.header.table["features"]
    assert np.array_equal(features, large[names].to_numpy(np.float64))
    assert np.array_equal(apply(pack, large)["features"], features)
    large[:100].to_csv(tmp_path / "new.csv", index=False)
    convert_table(tmp_path / "new.csv", tmp_path / "new.h5", like=tmp_path / "t.h5", shuffle=False)
    assert np.array_equal(open_pack(tmp_path / "new.h5").read("features"), features[:100])
    from packer import PackedBatchDataset

    with PackedBatchDataset(tmp_path / "t.h5", batch_size=500) as batches:
        loaded = np.concatenate([batch.features.numpy() for batch in batches])
    assert loaded.dtype == np.float64
    assert np.array_equal(loaded, features)
    statistics = {c["name"]: c["statistics"] for c in pack.header.table["columns"]}
    assert statistics["phone"]["max"] == large["phone"].max()


# No label


def test_a_table_without_a_label_is_told(tmp_path: Path):
    frame = pandas.DataFrame({"x": [1.5, 2.5], "target": [0, 1]})
    assert converted(frame, tmp_path)[1] == (
        "no label is given: every column without another role is a feature. Pass --label COLUMN to set one.",
    )
    for options in ({"label": "target"}, {"features": ["x"]}):
        assert converted(frame, tmp_path, **options)[1] == ()


# Numbers and dates written for people

PEOPLE = pandas.DataFrame(
    {
        "price": ["$1,234.50", "$3", None, "-$0.10"] * 30,
        "rate": ["12%", "7.3%", "-1%", "0%"] * 30,
        "day": ["01/31/2013", "2/28/2013", "12/1/2013", "1/1/2014"] * 30,
        "seen": ["01/31/2013 17:30", "2/28/2013 5:30 AM", "12/1/2013 0:00", "1/1/2014 12:00 PM"] * 30,
        "count": ["?", "2", "3", "4"] * 30,
        "y": [0, 1, 0, 1] * 15 + [1, 0, 0, 1] * 15,
    }
)
WAYS = {"price": "currency", "rate": "percent", "day": "date-mdy", "seen": "timestamp-mdy"}


def test_texts_that_are_more_are_told(tmp_path: Path):
    pack, notes = converted(PEOPLE, tmp_path, label="y")
    assert pack.header.table["categories"] == ["price", "rate", "day", "seen", "count"]
    for note, name in zip(notes, [*WAYS, "count"], strict=True):
        assert note.startswith(f"column '{name}' is read as category; it holds ")
        assert (f"pass --type {name}={WAYS[name]}" if name in WAYS else "If '?' means missing") in note
    # Kept as texts they are as they were; a label of such texts is told.
    assert (
        converted(PEOPLE, tmp_path, keep=["price", "rate", "day", "seen", "count"], features=["y"])[1] == ()
    )
    _, notes = converted(PEOPLE[["price", "y"]].dropna(), tmp_path, label="price")
    assert "--type price=currency" in notes[0]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_types_that_are_named_read_them(tmp_path: Path, ending: str):
    path = tmp_path / f"t.{ending}"
    if ending == "csv":
        PEOPLE.to_csv(path, index=False)
    else:
        PEOPLE.to_parquet(path, index=False)
    types = {**WAYS, "count": "number"}
    if ending == "parquet":
        PEOPLE.assign(count=["2"] * len(PEOPLE)).to_parquet(path, index=False)
    report = convert_table(
        path,
        tmp_path / "t.h5",
        types=types,
        csv={"na": "?"},
        label="y",
        keep="rate",
        shuffle=False,
        missing="zero",
    )
    assert report.notes == ()
    pack = open_pack(report.out)
    table = pack.header.table
    assert table["features"] == ["price", "day", "seen", "seen.seconds", "count"]
    days = [15736, 15764, 16040, 16071]
    expected = np.array(
        [
            [1234.5, 3, 0, -0.1],
            days,
            days,
            [63000, 19800, 0, 43200],
            [0, 2, 3, 4] if ending == "csv" else [2] * 4,
        ],
        np.float32,
    ).T
    assert np.array_equal(pack.read("features"), np.tile(expected, (30, 1)))
    assert pack.read("rate")[:4].tolist() == [0.12, 0.073, -0.01, 0]
    # New rows are mapped alike: as text, as a frame of texts, as a frame of numbers and dates.
    frame = PEOPLE if ending == "csv" else PEOPLE.assign(count=["2"] * len(PEOPLE))
    assert np.array_equal(apply(pack, frame)["features"], pack.read("features"))
    assert np.array_equal(apply(pack, frame)["rate"], pack.read("rate"))
    read = frame.assign(
        price=np.tile([1234.5, 3, np.nan, -0.1], 30), rate=np.tile([0.12, 0.073, -0.01, 0], 30)
    )
    assert np.array_equal(apply(pack, read)["features"], pack.read("features"))
    PEOPLE[:8].to_csv(tmp_path / "new.csv", index=False)
    if ending == "parquet":
        frame[:8].to_csv(tmp_path / "new.csv", index=False)
    report = convert_table(tmp_path / "new.csv", tmp_path / "new.h5", like=tmp_path / "t.h5", shuffle=False)
    assert report.notes == ()
    assert np.array_equal(open_pack(report.out).read("features"), pack.read("features")[:8])


def test_a_conversion_of_such_columns_does_not_depend_on_pieces_or_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "t.csv"
    pandas.concat([PEOPLE] * 20).to_csv(path, index=False)
    options: dict[str, Any] = {"types": {**WAYS, "count": "number"}, "csv": {"na": "?"}, "label": "y"}
    convert_table(path, tmp_path / "a.h5", workers=1, **options)
    monkeypatch.setattr(text, "PIECE", 1 << 12)
    convert_table(path, tmp_path / "b.h5", workers=3, **options)
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


# Indexes


def test_the_index_that_pandas_writes_is_left_out(tmp_path: Path):
    frame = pandas.DataFrame({"x": np.arange(50) / 4, "y": np.arange(50) % 2})
    pack, notes = converted(frame, tmp_path, index=True, label="y")
    assert pack.header.table["features"] == ["x"]
    assert notes == (
        "column 'column_0' is taken for the names of the rows and left out. To use it, pass --keep column_0,"
        " or --type column_0=number for a feature.",
    )
    shuffled = frame.sample(frac=0.5, random_state=0)
    pack, notes = converted(shuffled, tmp_path, index=True, label="y")
    assert pack.header.table["features"] == ["x"]
    assert notes[0].startswith("column 'column_0' is taken for the names of")
    twice = pandas.concat([frame, frame])  # each counts anew
    assert converted(twice, tmp_path, index=True, label="y")[0].header.table["features"] == ["x"]
    for options, features in (
        ({"keep": "column_0"}, ["x"]),
        ({"types": {"column_0": "integer"}}, ["column_0", "x"]),
    ):
        pack, notes = converted(frame, tmp_path, index=True, label="y", **options)
        assert pack.header.table["features"] == features
        assert not any("as the index" in note for note in notes)
    assert open_pack(tmp_path / "t.h5").rows == 50
    # New rows have one, or have none.
    converted(frame, tmp_path, index=True, label="y")
    frame.to_csv(tmp_path / "new.csv", index=False)
    like = {"like": tmp_path / "t.h5", "shuffle": False}
    assert convert_table(tmp_path / "new.csv", tmp_path / "new.h5", **like).notes == ()


def test_an_index_that_was_read_and_written_again_is_left_out(tmp_path: Path):
    frame = pandas.DataFrame({"Unnamed: 0": np.arange(50), "x": np.arange(50) / 4})
    pack, notes = converted(frame, tmp_path, index=True)
    assert pack.header.table["features"] == ["x"]
    assert notes[1] == (
        "column 'Unnamed: 0' is taken for the names of the rows and left out. To use it, pass --keep 'Unnamed: 0',"
        " or --type 'Unnamed: 0=number' for a feature."
    )


def test_a_first_column_without_a_name_is_left_out_whatever_it_holds(tmp_path: Path):
    for values in ([5, 5, 7], [0.5, 1.5, 2.5], ["a", "b", "c"]):
        frame = pandas.DataFrame({"": values, "z": [1, 2, 3], "x": [1, 2, 3]})
        pack, notes = converted(frame, tmp_path, label="x")
        assert [*pack.header.table["features"], *pack.header.table["categories"]] == ["z"]
        assert notes[-1].startswith("column 'column_0' is taken for the names of the rows and left out.")
        pack, notes = converted(frame, tmp_path, label="x", keep="column_0")
        assert not any("taken for the names" in note for note in notes)


def test_the_index_of_parquet_is_left_out(tmp_path: Path):
    frame = pandas.DataFrame({"x": [1.5, 2.5, 3.5], "y": [0, 1, 0]}, index=[7, 3, 9])
    frame.to_parquet(tmp_path / "t.parquet")
    report = convert_table(tmp_path / "t.parquet", tmp_path / "t.h5", label="y")
    assert open_pack(report.out).header.table["features"] == ["x"]
    assert tuple(map(in_options, report.notes)) == (
        "column '__index_level_0__' is taken for the names of the rows and left out. To use it, pass"
        " --keep __index_level_0__, or --type __index_level_0__=number for a feature.",
    )
